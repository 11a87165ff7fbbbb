"""Pauses: times without probes because the application sent nothing."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import Detector, Flows, HopBatch
from probes.path.analysis.statistics import group_starts
from probes.path.records import HOP_COUNT, PATH, PathRowKind

MIN_GAP_NS = 1_000_000_000
USUAL_GAPS = 5
"""A pause is reported if it is so much longer than any in the last minute or so."""

_MIN_PROBES = 20
_HALF_LIFE_NS = 30e9
_MARGIN_NS = 500_000_000
"""Time between a timeout and the poll that reports it."""

GAP = np.dtype([
    ("newest_ns", "i8"), ("sequence", "u4"), ("probes", "i8"), ("usual_ns", "f8"),
    ("from_ns", "i8"), ("to_ns", "i8"), ("after", "u4"), ("before", "u4"),
])  # fmt: skip
"""One flow: when its newest probe was sent, and its number; probes so far; the longest pause, which
shrinks with time; limits of an uncertain pause (0: none), and the numbers of the probes at both."""


class Gaps(Detector):
    """Follows when probes were sent; rows are of GAP.

    A pause is certain if the destination's sequence numbers continue without a break. Otherwise its
    own probes are in flight, which is known after the timeout, or other flows had probes. Then
    no pause is certain: of flows that send in time with each other, one may get all the probes.
    """

    def __init__(self, flows: Flows, timeout_ns: int) -> None:
        super().__init__(flows)
        self._timeout_ns = timeout_ns
        self._gaps = self.by_flow(GAP)

    def add(self, batch: HopBatch) -> Rows[PATH]:
        """Rows (n,) of dtype PATH."""
        gaps = self._gaps
        if gaps["to_ns"][: self._flows.end].any():
            self._fill(batch)
        sure = self._resumed(batch)
        waiting = gaps["to_ns"][: self._flows.end]
        due = np.flatnonzero(
            (waiting > 0) & (waiting <= batch.now_ns - self._timeout_ns - _MARGIN_NS)
        )
        alone = _between(gaps["after"][due], gaps["before"][due]) == 0
        gaps["to_ns"][due[~alone]] = 0
        places = np.append(sure, due[alone])
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

        newest_number, next_number = _numbers(sent, sequence, starts)
        after = before.copy()
        after["usual_ns"] = np.maximum(pause, before["usual_ns"] * 0.5 ** (elapsed / _HALF_LIFE_NS))
        after["probes"] += np.diff(starts, append=len(sent))
        after["newest_ns"], after["sequence"] = last, newest_number
        for name, value in (
            ("from_ns", before["newest_ns"]),
            ("to_ns", first),
            ("after", before["sequence"]),
            ("before", next_number),
        ):
            after[name] = np.where(gap, value, before[name])
        self._gaps[places] = after
        return places[gap & (_between(before["sequence"], next_number) == 0)]

    def _fill(self, batch: HopBatch) -> None:
        gaps, sent = self._gaps, batch.rows["sent_ns"]
        mine = gaps[batch.places]
        inside = (sent > mine["from_ns"]) & (sent < mine["to_ns"])
        for at in np.flatnonzero(inside).tolist():
            gap = gaps[batch.places[at] : batch.places[at] + 1]
            # The longer part remains.
            from_ns, to_ns = int(gap["from_ns"][0]), int(gap["to_ns"][0])
            number = batch.rows["sequence"][at]
            if sent[at] - from_ns > to_ns - sent[at]:
                gap["to_ns"], gap["before"] = sent[at], number
            else:
                gap["from_ns"], gap["after"] = sent[at], number
            if int(gap["to_ns"][0]) - int(gap["from_ns"][0]) < MIN_GAP_NS:
                gap["to_ns"] = 0


def _numbers(sent_ns: Array, sequence: Array, starts: Array) -> tuple[Array, Array]:
    """The numbers (m,) u4 of the last and of the first probe of each flow, by time of sending:
    numbers wrap around. Flows begin at `starts` (m,) of probes (n,)."""
    flows = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(sent_ns)))
    order = np.lexsort((sequence, sent_ns, flows))
    ends = np.append(starts[1:], len(sent_ns)) - 1
    return sequence[order[ends]], sequence[order[starts]]


def _between(after: Array, before: Array) -> Array:
    """How many probes have numbers between these u4 (n,). Multiples of 65536 are no numbers: TCP's
    urgent pointer holds the lower half, and is never 0."""
    result: Array = before - after - 1 - (before >> 16) + (after >> 16)
    return result & 0xFFFF_FFFF
