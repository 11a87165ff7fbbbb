"""Series of path tracing, by destination and hop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, summed
from app.outputs.view import is_table
from probes.filter.network import address_text
from probes.flow.records import Array
from probes.path.analysis.statistics import quantiles
from probes.path.options import MAX_DESTINATIONS
from probes.path.records import (
    DESTINATION_HOP,
    HOPS_TABLE,
    PATHS_TABLE,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
)
from probes.snapshot import Snapshot

_KEPT_S = 300.0
"""A destination without rows for so long has no series."""
_QUANTILES = (0.0, 0.5, 0.95, 1.0)
_STATES = (PathRowKind.SUMMARY, PathRowKind.BRANCH, PathRowKind.ROUTE_AMOUNTS)
"""Kinds of rows that are no findings."""


@dataclass(slots=True)
class _Destination:
    seen_s: float = 0.0
    """Time of its last row, of `PathSeries.clock`."""
    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    """By hop and outcome."""
    rtts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number and sum of the round trips of a hop, nanoseconds."""
    last: dict[str, list[float]] = field(default_factory=dict)
    """Quantiles of the last window by hop, seconds."""
    loss: dict[str, float] = field(default_factory=dict)
    routers: dict[str, str] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)


class PathSeries:
    """Outcomes, round-trip times, loss and routers of each hop of the traced destinations."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._destinations: dict[str, _Destination] = {}

    def take(self, item: Snapshot) -> None:
        hops = is_table(item, "path", HOPS_TABLE)
        if not hops and not is_table(item, "path", PATHS_TABLE):
            return
        rows = item.rows
        if hops:
            # The flow of an overrun probe is unknown.
            rows = rows[rows["outcome"] != ProbeOutcome.OVERRUN]
        packed = np.ascontiguousarray(rows["destination"]).view("V16").ravel().tolist()
        names = list(map(address_text, packed, rows["version"].tolist()))
        for name in dict.fromkeys(names):
            self._of(name)
        if hops:
            self._take_hops(names, rows)
        else:
            self._take_paths(names, rows)

    def removed(self, probe: str) -> None:
        pass

    def _of(self, name: str) -> _Destination:
        found = self._destinations.setdefault(name, _Destination())
        found.seen_s = self._clock()
        if len(self._destinations) > MAX_DESTINATIONS:
            oldest = min(self._destinations.items(), key=lambda each: each[1].seen_s)
            del self._destinations[oldest[0]]
        return found

    def _take_hops(self, names: list[str], rows: Array) -> None:
        rtts: dict[tuple[str, str], list[int]] = {}
        took = (rows["received_ns"] - rows["sent_ns"]).tolist()
        answered = (rows["received_ns"] > 0).tolist()
        sent = (rows["measured_by"] == MeasuredBy.PROBE).tolist()
        fields = (rows["hop"].tolist(), rows["outcome"].tolist(), sent, took, answered)
        for name, hop, outcome, is_probe, rtt, has_answer in zip(names, *fields, strict=True):
            if (destination := self._destinations.get(name)) is None:
                continue
            label = _hop(hop)
            if is_probe:
                summed(destination.outcomes, (label, ProbeOutcome(outcome).label), 1)
            if has_answer:
                rtts.setdefault((name, label), []).append(rtt)
        for name in set(names) & self._destinations.keys():
            self._destinations[name].last.clear()
        for (name, label), times in rtts.items():
            destination = self._destinations[name]
            count, total = destination.rtts.get(label, (0, 0))
            destination.rtts[label] = count + len(times), total + sum(times)
            destination.last[label] = (quantiles(np.array(times), _QUANTILES) / 1e9).tolist()

    def _take_paths(self, names: list[str], rows: Array) -> None:
        ended: dict[tuple[str, str], tuple[int, int]] = {}
        for name, row in zip(names, rows, strict=True):
            if (destination := self._destinations.get(name)) is None:
                continue
            label = _hop(int(row["hop"]))
            kind = PathRowKind(int(row["kind"]))
            if kind not in _STATES and not row["folded"]:
                summed(destination.findings, kind.label, 1)
            if kind is PathRowKind.SUMMARY:
                # Flows of one destination share its series.
                lost, sent = ended.get((name, label), (0, 0))
                lost += 0 if row["cleared"] else int(row["lost"])
                ended[name, label] = lost, sent + int(row["answered"]) + int(row["lost"])
                if row["responder"].any():
                    raw = row["responder"].tobytes(), int(row["version"])
                    destination.routers[label] = address_text(*raw)
        for (name, label), (lost, sent) in ended.items():
            if sent:
                self._destinations[name].loss[label] = lost / sent

    def samples(self) -> Iterator[Sample]:
        now = self._clock()
        for name in [n for n, d in self._destinations.items() if now - d.seen_s > _KEPT_S]:
            del self._destinations[name]
        for name, found in self._destinations.items():
            for (hop, outcome), count in found.outcomes.items():
                yield of.PATH_PROBES(name, hop, outcome, value=count)
            for hop, (count, total) in found.rtts.items():
                for quantile, value in zip(_QUANTILES, found.last.get(hop, ()), strict=False):
                    yield of.PATH_RTT(name, hop, value=value, quantile=f"{quantile:g}")
                yield of.PATH_RTT(name, hop, value=count, suffix="_count")
                yield of.PATH_RTT(name, hop, value=total / 1e9, suffix="_sum")
            for hop, loss in found.loss.items():
                yield of.PATH_LOSS(name, hop, value=loss)
            for hop, router in found.routers.items():
                yield of.PATH_ROUTER(name, hop, router)
            for kind, count in found.findings.items():
                yield of.PATH_FINDINGS(name, kind, value=count)


def _hop(number: int) -> str:
    return "flow" if number == DESTINATION_HOP else str(number)
