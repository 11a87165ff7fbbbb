"""Attaching a program to an interface: by bpf_link, or by netlink where the kernel is older.

A bpf_link ends with the process that holds it, however that ends. Nobody else's program is ever
replaced or removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bpf.abi import AttachType, ProgType
from bpf.errors import DeckError, KernelError
from bpf.interface import Interface
from bpf.syscall import PRIVILEGES, link_create, prog_fd_by_id, prog_info

XDP_FLAGS_SKB_MODE = 1 << 1
XDP_FLAGS_DRV_MODE = 1 << 2


class Hook(Enum):
    """Where a program sees packets."""

    XDP = "xdp"
    TC_INGRESS = "tc ingress"
    TC_EGRESS = "tc egress"

    @property
    def prog_type(self) -> ProgType:
        return ProgType.XDP if self is Hook.XDP else ProgType.SCHED_CLS

    @property
    def macro(self) -> str:
        """What a probe's source sees defined for this hook (include/probe.h)."""
        return f"HOOK_{self.name}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attached program."""

    mode: str
    """`native` or `generic` (XDP), `tcx` or `clsact`; with `netlink ` before it without a link."""
    close: Callable[[], None]
    """Detach it; without a link, in the network namespace where it was attached."""
    note: str = ""
    """Why the mode is not the best one; empty where it is."""


def attach(hook: Hook, prog_fd: int, interface: Interface, *, by_link: bool = True) -> Attachment:
    """Attach a program; `by_link=False` is what kernels without bpf_link get.

    Raises DeckError where another program is in the way, KernelError where nothing works.
    """
    ways: list[tuple[str, Callable[[], Callable[[], None]]]] = []
    if hook is Hook.XDP:
        modes = (("native", XDP_FLAGS_DRV_MODE), ("generic", XDP_FLAGS_SKB_MODE))
        if by_link:
            ways += [
                (name, _linker(prog_fd, interface, AttachType.XDP, flag)) for name, flag in modes
            ]
        ways += [
            (f"netlink {name}", _netlink_xdp(prog_fd, interface, flag)) for name, flag in modes
        ]
    else:
        if by_link:
            kind = AttachType.TCX_INGRESS if hook is Hook.TC_INGRESS else AttachType.TCX_EGRESS
            ways.append(("tcx", _linker(prog_fd, interface, kind, 0)))
        ways.append(("clsact", _netlink_tc(hook, prog_fd, interface)))

    refusals: list[str] = []
    for mode, way in ways:
        try:
            close = way()
        except OSError as error:
            if hook is Hook.XDP and error.errno in (errno.EBUSY, errno.EEXIST):
                raise _in_the_way(interface) from None
            if error.errno == errno.EPERM:
                raise KernelError(
                    f"not allowed to attach to {interface.name}", hint=PRIVILEGES
                ) from None
            refusals.append(f"{mode}: {os.strerror(error.errno or 0)}")
        else:
            return Attachment(mode, close, "; ".join(refusals))
    raise KernelError(f"{interface.name} takes no {hook.value} program ({'; '.join(refusals)})")


def _linker(
    prog_fd: int, interface: Interface, kind: AttachType, flags: int
) -> Callable[[], Callable[[], None]]:
    def link() -> Callable[[], None]:
        fd = link_create(prog_fd, interface.index, kind, flags)
        return lambda: os.close(fd)

    return link


def _netlink_xdp(prog_fd: int, interface: Interface, flag: int) -> Callable[[], Callable[[], None]]:
    def attach_it() -> Callable[[], None]:
        from bpf import netlink  # pyroute2 takes 100 ms to import, and is seldom needed

        return netlink.attach_xdp(prog_fd, interface.index, flag)

    return attach_it


def _netlink_tc(hook: Hook, prog_fd: int, interface: Interface) -> Callable[[], Callable[[], None]]:
    def attach_it() -> Callable[[], None]:
        from bpf import netlink

        return netlink.attach_tc(prog_fd, interface.index, egress=hook is Hook.TC_EGRESS)

    return attach_it


def _in_the_way(interface: Interface) -> DeckError:
    """Say whose XDP program is on the interface."""
    from bpf import netlink

    prog_id = netlink.xdp_program(interface.index)
    who = "another XDP program"
    if prog_id:
        try:
            fd = prog_fd_by_id(prog_id)
        except OSError:
            who = f"XDP program id {prog_id}"
        else:
            name = prog_info(fd).name
            os.close(fd)
            who = f"XDP program {name or '(no name)'!r} id {prog_id}"
    return DeckError(
        f"{who} is on {interface.name} and is left alone",
        hint="watch ingress beside it with `--ingress tc`",
    )
