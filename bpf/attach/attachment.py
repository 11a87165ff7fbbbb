"""Attaching a program to an interface: by bpf_link, or to TC by netlink before kernel 6.6.

A bpf_link ends with the process that holds it, also by `kill -9`. Other people's programs are
never replaced or removed. On TC hooks the program becomes the first in line: an earlier one could
keep packets from it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from bpf.abi import BEFORE, AttachType
from bpf.attach import order, rtnetlink
from bpf.attach.interface import AnyHook, EventHook, Hook, Interface
from bpf.errors import KernelError, ProbedeckError
from bpf.links import link_create
from bpf.syscall import PRIVILEGES, prog_info

__all__ = ["Attachment", "Hook", "attach"]

XDP_FLAGS_SKB_MODE = 1 << 1
XDP_FLAGS_DRV_MODE = 1 << 2
_GENERIC = "large segments count as one packet"
_TCX = {Hook.TC_INGRESS: AttachType.TCX_INGRESS, Hook.TC_EGRESS: AttachType.TCX_EGRESS}


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attached program."""

    mode: str
    """`native` or `generic` (XDP), `tcx` or `clsact` (TC), `link` (events)."""
    close: Callable[[], None]
    """Detach it; `clsact` in the network namespace where it was attached."""
    note: str = ""
    """Why the mode is not the best one; empty if it is."""


def attach(
    hook: AnyHook, prog_fd: int, interface: Interface, *, by_link: bool = True, generic: bool = True
) -> Attachment:
    """Attach a program.

    `by_link=False` attaches to TC as kernels before 6.6 need it. `generic=False` refuses an XDP
    hook that the driver does not run itself.

    Raises ProbedeckError if another XDP program holds the interface, KernelError if nothing works.
    """
    if isinstance(hook, EventHook):
        return Attachment("link", hook.attach(prog_fd))
    link = partial(_link, prog_fd, interface.index)
    ways: list[tuple[str, Callable[[], Callable[[], None]]]] = []
    if hook is Hook.XDP:
        ways.append(("native", partial(link, AttachType.XDP, XDP_FLAGS_DRV_MODE)))
        if generic:
            ways.append(("generic", partial(link, AttachType.XDP, XDP_FLAGS_SKB_MODE)))
    else:
        if by_link:
            ways.append(("tcx", partial(link, _TCX[hook], BEFORE)))
        egress = hook is Hook.TC_EGRESS
        ways.append(("clsact", partial(attach_tc, prog_fd, interface.index, egress=egress)))

    refusals: list[str] = []
    for mode, way in ways:
        try:
            close = way()
        except OSError as error:
            if error.errno == errno.EPERM:
                raise KernelError(
                    f"not allowed to attach to {interface.name}", hint=PRIVILEGES
                ) from None
            refusals.append(f"{mode}: {_reason(mode, hook, interface, error)}")
        else:
            notes = [*refusals, _GENERIC] if mode == "generic" else refusals
            return Attachment(mode, close, "; ".join(notes))
    raise KernelError(f"{interface.name} takes no {hook.value} program ({'; '.join(refusals)})")


def _link(prog_fd: int, ifindex: int, kind: AttachType, flags: int) -> Callable[[], None]:
    return partial(os.close, link_create(prog_fd, ifindex, kind, flags))


def _reason(mode: str, hook: Hook, interface: Interface, error: OSError) -> str:
    """Return the kernel's reason. Raises ProbedeckError if another XDP program is attached.

    Drivers return EBUSY and EEXIST for other reasons, too.
    """
    if hook is Hook.XDP and error.errno in (errno.EBUSY, errno.EEXIST):
        if programs := order.xdp_programs(interface.index):
            raise ProbedeckError(
                f"{programs[-1]} is on {interface.name} and is left alone",
                hint="--ingress auto or tc counts beside it",
            ) from None
        if error.errno == errno.EEXIST:
            return "an interface above it has an XDP program"
    # A link on an interface that is gone is an invalid argument to the kernel.
    if not interface.name_now():
        return os.strerror(errno.ENODEV)
    if mode == "tcx" and error.errno == errno.EINVAL:
        return "kernel 6.6 has it"
    return os.strerror(error.errno or 0)


STATE: Path | None = None
"""Where records are kept; None: see `_state_directory`."""
_PARENT = {"ingress": rtnetlink.CLSACT_INGRESS, "egress": rtnetlink.CLSACT_EGRESS}
_NAME = "probedeck"
_LOST = "without records, a killed probedeck would leave its program on the interface"


@dataclass(frozen=True, slots=True)
class _Record:
    """A filter that does not end with its process."""

    pid: int
    started: str
    """The process's start time: process ids come back."""
    netns: int
    """Inode of the network namespace that `ifindex` is of."""
    ifindex: int
    prog_id: int
    kind: str
    """`ingress` or `egress`."""


def attach_tc(prog_fd: int, ifindex: int, *, egress: bool) -> Callable[[], None]:
    """Attach a direct-action filter on clsact, first in line; return its detaching function."""
    reap()
    kind = "egress" if egress else "ingress"
    parent = _PARENT[kind]
    with _recorded(ifindex, prog_fd, kind) as record:
        try:
            rtnetlink.add_clsact(ifindex)
        except FileExistsError:
            # The kernel would take a filter for egress on an ingress qdisc, and run it on ingress.
            if egress and "ingress" in rtnetlink.qdiscs(ifindex):
                raise KernelError(
                    "the interface has an ingress qdisc of another program, which has no egress "
                    "hook",
                    hint="have that program use clsact, which has both",
                ) from None
        priority = _first_priority(ifindex, parent)
        rtnetlink.add_filter(ifindex, parent, priority, record.prog_id, prog_fd, _NAME)
    return lambda: _detach(record)


def reap() -> int:
    """Detach the filters that dead processes left; return how many there were."""
    here = _namespace()
    dead = [r for r in _records() if r.netns == here and _start_time(r.pid) != r.started]
    for record in dead:
        _detach(record)
    return len(dead)


def _first_priority(ifindex: int, parent: int) -> int:
    """Return the lowest priority that takes a bpf filter; packets meet the newest of one first.

    The filters of one priority are of one kind and one protocol.
    """
    taken = {
        found.priority
        for found in rtnetlink.filters(ifindex, parent)
        if (found.kind, found.protocol) != ("bpf", rtnetlink.ETH_P_ALL)
    }
    return next(priority for priority in range(1, 1 << 16) if priority not in taken)


def _detach(record: _Record) -> None:
    """Remove a filter, if it still has our program."""
    parent = _PARENT[record.kind]
    with contextlib.suppress(OSError):
        for found in rtnetlink.filters(record.ifindex, parent):
            if found.program_id == record.prog_id and found.name == _NAME:
                rtnetlink.delete_filter(record.ifindex, parent, found.priority, found.handle)
    _path(_state_directory(), record).unlink(missing_ok=True)


@contextlib.contextmanager
def _recorded(ifindex: int, prog_fd: int, kind: str) -> Iterator[_Record]:
    """Keep a record of the filter that is made inside, unless that fails."""
    pid = os.getpid()
    record = _Record(pid, _start_time(pid), _namespace(), ifindex, prog_info(prog_fd).id, kind)
    directory = _state_directory()
    path = _path(directory, record)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        _check_owner(directory)
        path.write_text(json.dumps(asdict(record)), encoding="ascii")
    except OSError as error:
        raise KernelError(f"cannot keep a record of the filter: {error}", hint=_LOST) from None
    try:
        yield record
    except BaseException:
        path.unlink()
        raise


def _state_directory() -> Path:
    """Return the directory of records. Raises KernelError if the user lacks one.

    Root's is fixed: records must be found again, whatever started the process. Other users' is the
    service's RuntimeDirectory, or one of their login session.
    """
    if STATE is not None:
        return STATE
    if os.geteuid() == 0:
        return Path("/run/probedeck")
    if service := os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(service)
    session = Path(f"/run/user/{os.geteuid()}")
    if session.is_dir():
        return session / "probedeck"
    raise KernelError(
        f"no directory for records of attached programs: neither $RUNTIME_DIRECTORY nor {session}",
        hint="run as root, or give the unit RuntimeDirectory=probedeck and "
        "RuntimeDirectoryPreserve=yes",
    )


def _check_owner(directory: Path) -> None:
    """Raise KernelError if other users could have written to the directory."""
    found = directory.lstat()
    owned = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
    if not owned or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise KernelError(
            f"{directory} is not safe: it must be a directory that nobody else can write to "
            f"(uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})",
            hint="remove it; probedeck makes its own",
        )


def _namespace() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def _path(directory: Path, record: _Record) -> Path:
    return directory / f"{record.prog_id}-{record.ifindex}-{record.kind}.json"


def _records() -> Iterator[_Record]:
    """Read the records; delete those that this release did not write."""
    directory = _state_directory()
    if not directory.exists():
        return
    _check_owner(directory)
    for path in directory.glob("*.json"):
        try:
            record = _parse(json.loads(path.read_text(encoding="ascii")))
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        yield record


def _parse(data: Any) -> _Record:
    """Raises TypeError or ValueError for anything but a record."""
    record = _Record(**data)
    for field in fields(_Record):
        expected = str if field.type == "str" else int
        if type(getattr(record, field.name)) is not expected:
            raise TypeError(f"{field.name} is no {expected.__name__}")
    if record.kind not in _PARENT:
        raise ValueError(f"{record.kind} is no kind")
    return record


def _start_time(pid: int) -> str:
    """Return field 22 of /proc/PID/stat; empty if the process is gone."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat_line.rpartition(")")[2].split()[19]
