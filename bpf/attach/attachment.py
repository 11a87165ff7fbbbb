"""Attaching a program to an interface: by bpf_link, or to TC by netlink before kernel 6.6.

A bpf_link ends with the process that holds it, also by `kill -9`. Other people's programs are
never replaced or removed. On TC hooks the program becomes the first in line: an earlier one could
keep packets from it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bpf.abi import BEFORE, AttachType
from bpf.attach import order
from bpf.attach.interface import AnyHook, EventHook, Hook, Interface
from bpf.attach.netlink import attach_tc
from bpf.errors import KernelError, ProbedeckError
from bpf.links import link_create
from bpf.syscall import PRIVILEGES

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
