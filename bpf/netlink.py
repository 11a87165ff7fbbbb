"""Attaching without bpf_link, by netlink: XDP and clsact, for kernels before 5.9 and 6.6.

Such an attachment outlives its process. What was attached is therefore noted in a directory of
root's, before it is made, and what a dead process left in this network namespace is removed before
the next attachment; by program id, so that nothing else is touched. A clsact qdisc is never
removed: others may have come to use it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from bpf.errors import KernelError
from bpf.syscall import prog_fd_by_id, prog_info

STATE = Path("/run/probedeck")
_XDP_FLAGS_UPDATE_IF_NOEXIST = 1 << 0
_XDP_FLAGS_REPLACE = 1 << 4
_PARENT = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003
_NAME = "probedeck"
_PRIORITY = 49151

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class _Record:
    """An attachment that does not end with its process."""

    pid: int
    started: str
    """The process's start time: process ids come back."""
    netns: int
    """Inode of the network namespace that `ifindex` is of."""
    ifindex: int
    prog_id: int
    kind: str
    """`xdp`, `ingress` or `egress`."""
    detail: int
    """XDP mode flag, or the filter's handle."""


def _apart(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `function` in a thread of its own: pyroute2 fails in one that runs an event loop."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function, *args, **kwargs).result()

    return run


@contextlib.contextmanager
def _netlink() -> Iterator[Any]:
    """A netlink socket, whose errors are OSErrors like those of bpf(2)."""
    with IPRoute() as socket:
        try:
            yield socket
        except NetlinkError as error:
            raise OSError(error.code, os.strerror(error.code)) from None


@_apart
def xdp_program(ifindex: int) -> int:
    """Id of the XDP program on an interface; 0 where there is none."""
    with _netlink() as netlink:
        for link in netlink.get_links(ifindex):
            xdp = link.get_attr("IFLA_XDP")
            if xdp:
                for name in (
                    "IFLA_XDP_PROG_ID",
                    "IFLA_XDP_DRV_PROG_ID",
                    "IFLA_XDP_SKB_PROG_ID",
                    "IFLA_XDP_HW_PROG_ID",
                ):
                    if prog_id := xdp.get_attr(name):
                        return int(prog_id)
    return 0


@_apart
def attach_xdp(prog_fd: int, ifindex: int, mode: int) -> Callable[[], None]:
    """Attach where no XDP program is; returns what detaches it. EBUSY where there is one."""
    reap()
    with _noted(ifindex, prog_fd, "xdp", mode) as record, _netlink() as netlink:
        _set_xdp(netlink, ifindex, prog_fd, mode | _XDP_FLAGS_UPDATE_IF_NOEXIST)
    return lambda: _detach(record)


@_apart
def attach_tc(prog_fd: int, ifindex: int, *, egress: bool) -> Callable[[], None]:
    """Attach a direct-action filter on clsact; returns what detaches it."""
    reap()
    handle = prog_info(prog_fd).id
    kind = "egress" if egress else "ingress"
    with _noted(ifindex, prog_fd, kind, handle) as record, _netlink() as netlink:
        try:
            netlink.tc("add", "clsact", ifindex)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise
        netlink.tc(
            "add-filter", "bpf", ifindex, handle,
            fd=prog_fd, name=_NAME, parent=_PARENT[kind],
            prio=_PRIORITY, protocol=_ETH_P_ALL, direct_action=True,
        )  # fmt: skip
    return lambda: _detach(record)


def reap() -> int:
    """Detach what processes left that are no more; returns how many there were."""
    here = _namespace()
    dead = [r for r in _records() if r.netns == here and _start_time(r.pid) != r.started]
    for record in dead:
        _detach(record)
    return len(dead)


def _set_xdp(netlink: Any, ifindex: int, fd: int, flags: int, expected_fd: int = -1) -> None:
    attributes = [("IFLA_XDP_FD", fd), ("IFLA_XDP_FLAGS", flags)]
    if expected_fd >= 0:
        attributes.append(("IFLA_XDP_EXPECTED_FD", expected_fd))
    netlink.link("set", index=ifindex, xdp={"attrs": attributes})


@_apart
def _detach(record: _Record) -> None:
    """Take an attachment away, if it is still there and still the same program."""
    with contextlib.suppress(OSError), _netlink() as netlink:
        if record.kind == "xdp":
            fd = prog_fd_by_id(record.prog_id)
            try:
                # Refused by the kernel unless the program there is the expected one.
                _set_xdp(netlink, record.ifindex, -1, record.detail | _XDP_FLAGS_REPLACE, fd)
            finally:
                os.close(fd)
        elif _has_our_filter(netlink, record):
            netlink.tc(
                "del-filter", "bpf", record.ifindex, record.detail,
                parent=_PARENT[record.kind], prio=_PRIORITY, protocol=_ETH_P_ALL,
            )  # fmt: skip
    _path(record).unlink(missing_ok=True)


def _has_our_filter(netlink: Any, record: _Record) -> bool:
    """Whether the filter is still as it was made: who replaces its program gives another name."""
    return any(
        found["handle"] == record.detail
        and found["info"] >> 16 == _PRIORITY
        and found.get_nested("TCA_OPTIONS", "TCA_BPF_NAME") == _NAME
        for found in netlink.get_filters(record.ifindex, 0, _PARENT[record.kind])
    )


@contextlib.contextmanager
def _noted(ifindex: int, prog_fd: int, kind: str, detail: int) -> Iterator[_Record]:
    """Keep a record of the attachment that is made inside, unless that fails."""
    pid = os.getpid()
    record = _Record(
        pid, _start_time(pid), _namespace(), ifindex, prog_info(prog_fd).id, kind, detail
    )
    try:
        STATE.mkdir(mode=0o700, exist_ok=True)
        _path(record).write_text(json.dumps(asdict(record)), encoding="ascii")
    except OSError as error:
        raise KernelError(
            f"cannot keep a record of what is attached: {error}",
            hint="without one a killed probedeck would leave its program on the interface",
        ) from None
    try:
        yield record
    except BaseException:
        _path(record).unlink()
        raise


def _namespace() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def _path(record: _Record) -> Path:
    return STATE / f"{record.prog_id}-{record.ifindex}-{record.kind}.json"


def _records() -> Iterator[_Record]:
    for path in STATE.glob("*.json"):
        try:
            yield _Record(**json.loads(path.read_text(encoding="ascii")))
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
