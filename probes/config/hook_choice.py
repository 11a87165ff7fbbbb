"""The hook that a direction needs, from its configuration and its source or object."""

from __future__ import annotations

from bpf.abi import ProgType
from bpf.attach.interface import AnyHook, EventHook, Hook
from bpf.compiler.source import fits_every_hook
from bpf.objects.dialect import object_sections, packet_types, source_sections
from probes.config.model import DirectionConfig, Side


def hook_of(side: Side, direction: DirectionConfig) -> AnyHook | None:
    """Return the hook that a direction's program needs; None: any that suits the interface.

    A program for libbpf says it by its section, such as `SEC("tc")`.
    """
    if direction.hook == "raw_tp":
        return EventHook(direction.tracepoint)
    if direction.hook == "cgroup":
        return EventHook(direction.attach, direction.cgroup)
    if side == "egress":
        return Hook.TC_EGRESS
    if direction.hook == "tc":
        return Hook.TC_INGRESS
    if direction.hook is None and direction.is_for_libbpf:
        data, source, function = direction.data, direction.source, direction.function
        sections = object_sections(data) if data else source_sections(source, function)
        is_tc = packet_types(sections, source) == {ProgType.SCHED_CLS}
        return Hook.TC_INGRESS if is_tc else Hook.XDP
    text = "\n".join((direction.source, direction.prelude_text, *direction.headers.values()))
    if direction.hook == "xdp" or not fits_every_hook(text):
        return Hook.XDP
    return None
