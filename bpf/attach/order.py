"""The programs of a hook in the order in which packets meet them, other people's included.

A program that runs earlier decides whether ours sees a packet at all: XDP programs run before the
TC hooks, TCX programs before the filters of a clsact qdisc.
"""

from __future__ import annotations

import errno

from bpf.abi import AttachType
from bpf.attach import rtnetlink
from bpf.attach.interface import Hook, HookProgram, described
from bpf.attach.rtnetlink import CLSACT_EGRESS, CLSACT_INGRESS, TcFilter
from bpf.links import prog_query

OWN_NAME = "probedeck"
"""Name of the program that probedeck attaches (bpf.attach.chain)."""
_TC = {
    Hook.TC_INGRESS: (AttachType.TCX_INGRESS, CLSACT_INGRESS),
    Hook.TC_EGRESS: (AttachType.TCX_EGRESS, CLSACT_EGRESS),
}


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
