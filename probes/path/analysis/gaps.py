"""Pauses: times without probes because the application sent nothing."""

from __future__ import annotations

import numpy as np

from probes.path.analysis.flows import MAX_FLOWS, Flows, HopBatch
from probes.path.analysis.statistics import group_starts
from probes.path.records import HOP_COUNT, Array, PathRowKind

MIN_GAP_NS = 1_000_000_000
USUAL_GAPS = 5
"""A pause is reported if it is so much longer than any in the last minute or so."""

_MIN_PROBES = 20
_HALF_LIFE_NS = 30e9
_MARGIN_NS = 500_000_000
"""Time between a timeout and the poll that reports it."""

GAP = np.dtype([
    ("newest_ns", "i8"), ("sequence", "u4"), ("probes", "i8"), ("usual_ns", "f8"),
    ("from_ns", "i8"), ("to_ns", "i8"),
])  # fmt: skip
"""One flow: when its newest probe was sent, and its number; probes so far; the longest pause, which
shrinks with time; limits of an uncertain pause (0: none)."""


class Gaps:
    """Follows when probes were sent; rows are of GAP. A pause is certain when no probe within it
    can still be in flight: at once if the destination's sequence numbers continue without a break,
    else after the timeout."""

    def __init__(self, flows: Flows, timeout_ns: int) -> None:
        self._flows = flows
        self._timeout_ns = timeout_ns
        self._gaps = np.zeros(MAX_FLOWS, GAP)

    def drop(self, places: Array) -> None:
        self._gaps[places] = np.zeros((), GAP)

    def add(self, batch: HopBatch) -> Array:
        """Rows (n,) of dtype PATH."""
        gaps = self._gaps
        if gaps["to_ns"][: self._flows.end].any():
            self._fill(batch)
        sure = self._resumed(batch)
        waiting = gaps["to_ns"][: self._flows.end]
        due = batch.now_ns - self._timeout_ns - _MARGIN_NS
        places = np.append(sure, np.flatnonzero((waiting > 0) & (waiting <= due)))
        rows = self._flows.rows(PathRowKind.GAP, places * HOP_COUNT, batch.now_ns)
        rows["since_ns"] = gaps["from_ns"][places]
        rows["amount_ns"] = gaps["to_ns"][places] - gaps["from_ns"][places]
        gaps["to_ns"][places] = 0
        return rows

    def _resumed(self, batch: HopBatch) -> Array:
        """Take in the newest probes. Returns the places (n,) of flows with a certain pause before
        them."""
        sent, places = batch.rows["sent_ns"], batch.places
        newest = self._gaps["newest_ns"]
        fresh = np.flatnonzero(sent > newest[places])
        sent, sequence = sent[fresh], batch.rows["sequence"][fresh]
        starts = group_starts(places[fresh])
        places = places[fresh][starts]
        if not len(places):
            return places
        first, last = np.minimum.reduceat(sent, starts), np.maximum.reduceat(sent, starts)

        before = self._gaps[places]
        known = before["probes"] > 0
        pause = np.where(known, first - before["newest_ns"], 0)
        gap = pause >= np.maximum(MIN_GAP_NS, USUAL_GAPS * before["usual_ns"])
        gap &= before["probes"] >= _MIN_PROBES
        elapsed = np.where(known, last - before["newest_ns"], 0)

        after = before.copy()
        after["usual_ns"] = np.maximum(pause, before["usual_ns"] * 0.5 ** (elapsed / _HALF_LIFE_NS))
        after["probes"] += np.diff(starts, append=len(sent))
        after["newest_ns"] = last
        after["sequence"] = np.maximum.reduceat(sequence, starts)
        after["from_ns"] = np.where(gap, before["newest_ns"], before["from_ns"])
        after["to_ns"] = np.where(gap, first, before["to_ns"])
        self._gaps[places] = after
        counted_on = np.minimum.reduceat(sequence, starts) - before["sequence"] == 1
        sure: Array = places[gap & counted_on]
        return sure

    def _fill(self, batch: HopBatch) -> None:
        gaps, sent = self._gaps, batch.rows["sent_ns"]
        mine = gaps[batch.places]
        inside = (sent > mine["from_ns"]) & (sent < mine["to_ns"])
        for at in np.flatnonzero(inside).tolist():
            gap = gaps[batch.places[at] : batch.places[at] + 1]
            # The longer part remains.
            from_ns, to_ns = int(gap["from_ns"][0]), int(gap["to_ns"][0])
            if sent[at] - from_ns > to_ns - sent[at]:
                gap["to_ns"] = sent[at]
            else:
                gap["from_ns"] = sent[at]
            if int(gap["to_ns"][0]) - int(gap["from_ns"][0]) < MIN_GAP_NS:
                gap["to_ns"] = 0
