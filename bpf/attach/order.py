"""The programs of a hook in the order in which packets meet them, other people's included.

A program that runs earlier decides whether ours sees a packet at all: XDP programs run before the
TC hooks, TCX programs before the filters of a clsact qdisc.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from bpf.abi import AttachType
from bpf.attach import rtnetlink
from bpf.attach.hook import Hook
from bpf.attach.rtnetlink import CLSACT_EGRESS, CLSACT_INGRESS, TcFilter
from bpf.links import prog_query
from bpf.syscall import opened, prog_fd_by_id, prog_info

OWN_NAME = "probedeck"
"""Name of the program that probedeck attaches (bpf.attach.chain)."""
_TC = {
    Hook.TC_INGRESS: (AttachType.TCX_INGRESS, CLSACT_INGRESS),
    Hook.TC_EGRESS: (AttachType.TCX_EGRESS, CLSACT_EGRESS),
}


@dataclass(frozen=True, slots=True)
class HookProgram:
    """A program or filter on a hook."""

    kind: str
    """`XDP`, `TCX`, `clsact`, or for a filter without a program its kind, such as `u32`."""
    id: int
    """The program's id, 0 for a filter without a program."""
    name: str
    """The program's name; empty if the kernel does not tell."""

    def __str__(self) -> str:
        """How users read it: `TCX program 'cil_from_netdev' id 12`."""
        if not self.id:
            return f"{self.kind} filter {self.name}"
        return f"{self.kind} program {self.name or '(no name)'!r} id {self.id}"


def on_hook(hook: Hook, ifindex: int) -> list[HookProgram]:
    """Return the programs that packets meet on their way through a hook, first to last.

    For TC ingress these begin with an XDP program. Raises OSError if the interface does not exist.
    """
    found: list[HookProgram] = []
    if hook is not Hook.TC_EGRESS:
        found += xdp_programs(ifindex)
    if hook is not Hook.XDP:
        attach_type, parent = _TC[hook]
        found += (described("TCX", prog_id) for prog_id in _tcx(ifindex, attach_type))
        found += _clsact(rtnetlink.filters(ifindex, parent))
    return found


def xdp_programs(ifindex: int) -> list[HookProgram]:
    """Return an interface's XDP programs. Raises OSError if the interface does not exist."""
    return [described("XDP", prog_id) for prog_id in rtnetlink.link(ifindex).xdp_ids]


def _tcx(ifindex: int, attach_type: AttachType) -> list[int]:
    try:
        return prog_query(ifindex, attach_type)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EPERM):
            return []  # kernels before 6.6 have no TCX; without CAP_NET_ADMIN they tell nothing
        raise


def _clsact(filters: list[TcFilter]) -> list[HookProgram]:
    found: list[HookProgram] = []
    for each in filters:
        if each.program_id:
            found.append(described("clsact", each.program_id))
            continue
        # A u32 filter is several entries: its hash tables and its rules.
        program = HookProgram(each.kind, 0, f"with priority {each.priority}")
        if program not in found:
            found.append(program)
    return found


def described(kind: str, prog_id: int) -> HookProgram:
    """Return a program by its id; without its name if the kernel does not tell."""
    try:
        fd = prog_fd_by_id(prog_id)
    except OSError:  # gone meanwhile, or no CAP_SYS_ADMIN
        return HookProgram(kind, prog_id, "")
    with opened(fd):
        return HookProgram(kind, prog_id, prog_info(fd).name)
