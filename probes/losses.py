"""The losses that programs count by `lose()` of bpf/include/probe.h."""

from __future__ import annotations

import numpy as np

from bpf.abi import MapType
from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.maps.map import Map, reduce_cpus
from probes.snapshot import Loss, LossReason

LOSSES = "losses"
"""The map's name."""


def counts_losses(declared: CompiledMap) -> bool:
    """Return whether this is the map of probe.h, and no other map of its name."""
    return (
        declared.spec.name == LOSSES
        and declared.spec.type == MapType.PERCPU_ARRAY
        and declared.spec.max_entries == len(LossReason)
        and declared.value is not None
        and declared.value.names == ("packets", "bytes")
    )


def read_losses(counted: Map) -> dict[LossReason, Loss]:
    """Return and clear the losses of an inactive program."""
    return _by_reason(reduce_cpus(counted.read(clear=True).values))


class LossTotals:
    """The losses of programs that packets may still reach.

    Clearing the map would lose what is counted between the read and the clear. So the map only
    grows, and each report is the difference from the one before.
    """

    def __init__(self, counted: Map, reported: Array | None = None) -> None:
        """Own `counted`. Generations that share the map share `reported`."""
        self._counted = counted
        self.reported = np.zeros(len(LossReason), counted.value) if reported is None else reported
        """Totals at the last report, shape (reasons,); updated in place."""

    def take(self) -> dict[LossReason, Loss]:
        """Return the losses since the last call."""
        totals = reduce_cpus(self._counted.read().values)
        new = np.empty_like(totals)
        for unit in ("packets", "bytes"):
            now, before = totals[unit], self.reported[unit]
            # A generation whose metric shows this map may have emptied it.
            new[unit] = np.where(now >= before, now - before, now)
        self.reported[:] = totals
        return _by_reason(new)

    def close(self) -> None:
        self._counted.close()


def _by_reason(sums: Array) -> dict[LossReason, Loss]:
    return {
        reason: Loss(int(sums["packets"][reason]), int(sums["bytes"][reason]))
        for reason in LossReason
        if sums["packets"][reason]
    }
