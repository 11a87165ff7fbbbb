"""Reading what programs count by `lose()` of bpf/include/probe.h."""

from __future__ import annotations

from bpf.abi import MapType
from bpf.compiler import CompiledMap
from bpf.maps import Map, reduce_cpus
from probes.snapshot import Loss, LossReason

LOSSES = "losses"
"""The map's name."""


def counts_losses(declared: CompiledMap) -> bool:
    """Whether this is probe.h's map, and not one of a user's that has its name."""
    return (
        declared.spec.name == LOSSES
        and declared.spec.type == MapType.PERCPU_ARRAY
        and declared.spec.max_entries == len(LossReason)
        and declared.value is not None
        and declared.value.names == ("packets", "bytes")
    )


def read_losses(counted: Map) -> dict[LossReason, Loss]:
    """What is in no result, by reason; counted from 0 again."""
    sums = reduce_cpus(counted.read(clear=True).values)
    return {
        reason: Loss(int(sums["packets"][reason]), int(sums["bytes"][reason]))
        for reason in LossReason
        if sums["packets"][reason]
    }
