"""Distinct flows of several hosts: a flow that several hosts see counts once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.fleet.planes import HostReport
from probes.monitor.sketch import Sketch


@dataclass(frozen=True, slots=True)
class HostFlows:
    """Distinct flows of one host in its last window."""

    host: str
    estimate: float
    """NaN without an answer."""
    low: float
    high: float
    """Ends of the band that has the true number in 95 of 100 cases."""
    why_not: str = ""
    """Why the sum over the fleet lacks it; empty if it is part of the sum."""


@dataclass(frozen=True, slots=True)
class FleetFlows:
    """Distinct flows of the hosts whose registers can be merged, and of each host."""

    estimate: float
    low: float
    high: float
    hosts: tuple[HostFlows, ...]

    @property
    def merged(self) -> int:
        """Number of hosts in the sum."""
        return sum(not one.why_not for one in self.hosts)


def distinct(reports: Sequence[HostReport]) -> FleetFlows:
    """Merge the sketches of hosts, the answers of `reports`.

    Registers merge only if they have the same seed and number: the others are left out, and say
    so. Of several seeds the one of most hosts counts.
    """
    nan = float("nan")
    kinds: dict[tuple[str, int], list[Sketch]] = {}
    for one in reports:
        if isinstance(one.answer, Sketch):
            kinds.setdefault((one.answer.seed, one.answer.bits), []).append(one.answer)
    usual = max(kinds, key=lambda kind: len(kinds[kind]), default=("", 0))
    found = []
    for one in reports:
        if not isinstance(sketch := one.answer, Sketch):
            found.append(HostFlows(one.host, nan, nan, nan, str(one.error or "no sketch")))
            continue
        why = ""
        if (sketch.seed, sketch.bits) != usual:
            same = sketch.seed == usual[0]
            why = f"it has 2^{sketch.bits} registers" if same else "its sketch has another seed"
        found.append(HostFlows(one.host, sketch.flows(), *sketch.band(), why))
    if not kinds:
        return FleetFlows(nan, nan, nan, tuple(found))
    first, *others = kinds[usual]
    every = first.merged(*others)
    return FleetFlows(every.flows(), *every.band(), tuple(found))
