"""Changes of probes on their way: DSCP and ECN, addresses, checksums, sequence numbers.

Each router quotes a probe as it arrived there (RFC 1812, section 4.3.2.3), so a change that all
hops from one on quote, and none before, happens right before that hop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import Detector, Flows, HopBatch
from probes.path.records import HOP, HOP_COUNT, PATH, Altered, PathRowKind, ProbeOutcome, no_rows

JUDGE_NS = 5_000_000_000
"""Time between two judgements. A change must show in two successive ones."""
MIN_QUOTES = 3
"""Quotes of a hop in that time that say something."""

_ECN = 0b11
_CONGESTED = 0b11
"""CE of RFC 3168: a mark of a queue, not a change by a middlebox."""

_WITHOUT_QUOTE = (0, 129)
"""No ICMP at all, and echo replies."""

Change = tuple[PathRowKind, int]
"""MARKING with `sent << 8 | quoted`, each a TOS or traffic class; ALTERED with one bit of
Altered."""


@dataclass(slots=True)
class _Period:
    """Counts, by hop (32,) i8, of the quotes about one destination since the last judgement."""

    series: int
    """Of a flow to it."""
    quotes: dict[int, Array] = field(default_factory=dict)
    """By sent TOS."""
    changed: dict[Change, Array] = field(default_factory=dict)

    def quotes_of(self, change: Change) -> Array:
        """The quotes that could have the change."""
        kind, value = change
        if kind is PathRowKind.MARKING:
            return self.quotes[value >> 8]
        result: Array = sum(self.quotes.values(), np.zeros(HOP_COUNT, "i8"))
        return result


class Middleboxes(Detector):
    """Rows are of MARKING and ALTERED: one for each change of a destination's probes and the hop
    that quotes it first."""

    def __init__(self, flows: Flows) -> None:
        super().__init__(flows)
        self._judged_ns = 0
        self._periods: dict[int, _Period] = self.by_destination({})
        """By address id of the destination."""
        self._last: dict[tuple[int, Change], int] = self.by_destination({})
        """The first hop of each change by the last judgement."""
        self._told: dict[tuple[int, Change], int] = self.by_destination({})

    def add(self, batch: HopBatch) -> Rows[PATH]:
        """Rows (n,) of dtype PATH."""
        rows = batch.answers.rows
        # The destination's answers quote nothing.
        quoting = rows["outcome"] == ProbeOutcome.ANSWERED
        quoting = np.flatnonzero(quoting & ~np.isin(rows["icmp_type"], _WITHOUT_QUOTE))
        if len(quoting):
            self._count(rows.take(quoting), batch.answers.series[quoting])
        self._judged_ns = self._judged_ns or batch.now_ns
        if batch.now_ns - self._judged_ns < JUDGE_NS:
            return no_rows(PATH)
        self._judged_ns = batch.now_ns
        return self._judge(batch.now_ns)

    def _count(self, rows: Rows[HOP], series: Array) -> None:
        sent, quoted = rows["tos"].astype("i8"), rows["quoted_tos"].astype("i8")
        quoted = np.where(quoted & _ECN == _CONGESTED, quoted & ~_ECN | sent & _ECN, quoted)
        marking = np.where(sent == quoted, 0, sent << 8 | quoted)
        hops = rows["hop"]
        destinations = self._flows.destinations[series // HOP_COUNT]
        for destination in np.unique(destinations).tolist():
            mine = destinations == destination
            period = self._periods.setdefault(destination, _Period(int(series[mine][0])))
            for tos in np.unique(sent[mine]).tolist():
                _add(period.quotes, tos, hops[mine & (sent == tos)])
            for value in np.unique(marking[mine & (marking > 0)]).tolist():
                _add(period.changed, (PathRowKind.MARKING, value), hops[mine & (marking == value)])
            for bit in Altered:
                if (found := mine & (rows["altered"] & bit > 0)).any():
                    _add(period.changed, (PathRowKind.ALTERED, int(bit)), hops[found])

    def _judge(self, now_ns: int) -> Array:
        found = []
        last = self._last
        self._last = {}
        for destination, period in self._periods.items():
            for change, counts in period.changed.items():
                hop = first_hop(counts, period.quotes_of(change))
                key = destination, change
                if not hop:
                    continue
                self._last[key] = hop
                if last.get(key) == hop and self._told.get(key) != hop:
                    self._told[key] = hop
                    found.append(self._row(period, change, hop, now_ns))
        self._periods.clear()
        return np.concatenate([no_rows(PATH), *found], dtype=PATH)

    def _row(self, period: _Period, change: Change, hop: int, now_ns: int) -> Array:
        kind, value = change
        place = period.series // HOP_COUNT
        row = self._flows.rows(kind, np.array([place * HOP_COUNT + hop]), now_ns)
        row["amount"] = value
        return row


def first_hop(changed: Array, quotes: Array) -> int:
    """Return the first hop from which on most quotes of every hop have a change; 0 without one.
    `changed` of `quotes` have it, both by hop (32,)."""
    known = np.flatnonzero(quotes >= MIN_QUOTES)
    has = changed[known] * 2 > quotes[known]
    if not has.any() or not has[-1]:
        return 0
    without = np.flatnonzero(~has)
    return int(known[without[-1] + 1 if len(without) else 0])


def _add(counts: dict[Any, Array], key: Any, hops: Array) -> None:
    known = counts.setdefault(key, np.zeros(HOP_COUNT, "i8"))
    known += np.bincount(hops, minlength=HOP_COUNT)
