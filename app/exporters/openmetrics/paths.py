"""Series of path tracing, by destination and hop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, Series
from app.outputs.view import is_table
from bpf.arrays import Rows
from probes.filter.hosts import address_text
from probes.path.analysis.statistics import quantiles
from probes.path.options import MAX_DESTINATIONS
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOPS_TABLE,
    PATH,
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


class PathSeries(Series):
    """Outcomes, round-trip times, loss and routers of each hop of the traced destinations."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen_s: dict[str, float] = {}
        """Time of the last row of each destination, of `clock`."""
        self._rtts: dict[tuple[str, str], tuple[int, int, list[float]]] = {}
        """Number and sum (nanoseconds) of the round trips, and quantiles (seconds) of the last
        window, by destination and hop."""

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
        self._seen_s |= dict.fromkeys(names, self._clock())
        for name in sorted(self._seen_s, key=self._seen_s.__getitem__)[:-MAX_DESTINATIONS]:
            del self._seen_s[name]
        self._forget()
        if hops:
            self._take_hops(names, rows)
        else:
            self._take_paths(names, rows)

    def _forget(self) -> None:
        """Forget the values of unknown destinations."""
        self.keep(lambda _, labels: labels[0] in self._seen_s)
        self._rtts = {key: value for key, value in self._rtts.items() if key[0] in self._seen_s}

    def _take_hops(self, names: list[str], rows: Rows[HOP]) -> None:
        rtts: dict[tuple[str, str], list[int]] = {}
        took = (rows["received_ns"] - rows["sent_ns"]).tolist()
        answered = (rows["received_ns"] > 0).tolist()
        sent = (rows["measured_by"] == MeasuredBy.PROBE).tolist()
        fields = (rows["hop"].tolist(), rows["outcome"].tolist(), sent, took, answered)
        for name, hop, outcome, is_probe, rtt, has_answer in zip(names, *fields, strict=True):
            if name not in self._seen_s:
                continue
            label = _hop(hop)
            if is_probe:
                self.add(of.PATH_PROBES, name, label, ProbeOutcome(outcome).label, by=1)
            if has_answer:
                rtts.setdefault((name, label), []).append(rtt)
        here = set(names)
        for (name, label), (count, total, _) in self._rtts.items():
            if name in here:
                self._rtts[name, label] = count, total, []
        for key, times in rtts.items():
            count, total, _ = self._rtts.get(key, (0, 0, []))
            last = (quantiles(np.array(times), _QUANTILES) / 1e9).tolist()
            self._rtts[key] = count + len(times), total + sum(times), last

    def _take_paths(self, names: list[str], rows: Rows[PATH]) -> None:
        ended: dict[tuple[str, str], tuple[int, int]] = {}
        for name, row in zip(names, rows, strict=True):
            if name not in self._seen_s:
                continue
            label = _hop(int(row["hop"]))
            kind = PathRowKind(int(row["kind"]))
            if kind not in _STATES and not row["folded"]:
                self.add(of.PATH_FINDINGS, name, kind.label, by=1)
            if kind is PathRowKind.SUMMARY:
                # Flows of one destination share its series.
                lost, sent = ended.get((name, label), (0, 0))
                lost += 0 if row["cleared"] else int(row["lost"])
                ended[name, label] = lost, sent + int(row["answered"]) + int(row["lost"])
                if row["responder"].any():
                    raw = row["responder"].tobytes(), int(row["version"])
                    self.drop(of.PATH_ROUTER, labels=(name, label))
                    self.put(of.PATH_ROUTER, name, label, address_text(*raw))
        for key, (lost, sent) in ended.items():
            if sent:
                self.put(of.PATH_LOSS, *key, value=lost / sent)

    def samples(self) -> Iterator[Sample]:
        now = self._clock()
        self._seen_s = {name: s for name, s in self._seen_s.items() if now - s <= _KEPT_S}
        self._forget()
        yield from super().samples()
        for key, (count, total, last) in self._rtts.items():
            for quantile, value in zip(_QUANTILES, last, strict=False):
                yield of.PATH_RTT(*key, value=value, quantile=f"{quantile:g}")
            yield of.PATH_RTT(*key, value=count, suffix="_count")
            yield of.PATH_RTT(*key, value=total / 1e9, suffix="_sum")


def _hop(number: int) -> str:
    return "flow" if number == DESTINATION_HOP else str(number)
