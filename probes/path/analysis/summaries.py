"""Summaries of each hop of each flow over the last second."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.detector import Detector
from probes.path.analysis.flows import MAX_FLOWS, Flows, HopBatch
from probes.path.analysis.round_trips.delays import Delays
from probes.path.analysis.statistics import Ordered, cleared, group_starts, jitter, loss_interval
from probes.path.records import HOP, HOP_COUNT, PATH, PathRowKind, ProbeOutcome

_MEMORY = 0.95
"""Weight that an outcome keeps after each further period: a memory of some twenty periods."""

COUNTS = np.dtype([("sent", "u4"), ("answered", "u4"), ("lost", "u4"), ("dropped", "u4")])
LAST = np.dtype([("rtt_ns", "i8"), ("label_count", "u1"), ("labels", *HOP["labels"].subdtype)])  # type: ignore[misc]
"""One hop of a flow: its last answer. `rtt_ns` 0: no answer yet."""


class Summaries(Detector):
    """Counts outcomes and keeps times until `take`. Rows are of SUMMARY."""

    def __init__(self, flows: Flows, changes: Changes, delays: Delays) -> None:
        super().__init__(flows)
        self._changes = changes
        self._delays = delays
        self.answered = self.by_hop("f8")
        """Recent outcomes, older ones with less weight."""
        self.lost = self.by_hop("f8")
        self._counts = self.by_hop(COUNTS)
        self._last = self.by_hop(LAST)
        self._pending: list[tuple[Array, Array]] = []

    def drop(self, places: Array) -> None:
        super().drop(places)
        gone = np.zeros(MAX_FLOWS, bool)
        gone[places] = True
        self._pending = [
            (series[kept], times[kept])
            for series, times in self._pending
            for kept in (~gone[series // HOP_COUNT],)
        ]

    def add(self, batch: HopBatch) -> None:
        if not len(batch.series):
            return
        outcome = batch.rows["outcome"]
        starts = group_starts(batch.series)
        which = batch.series[starts]
        for name, chosen in (
            ("sent", outcome != ProbeOutcome.DROPPED),
            ("answered", outcome <= ProbeOutcome.UNREACHABLE),
            ("lost", outcome == ProbeOutcome.UNANSWERED),
            ("dropped", outcome == ProbeOutcome.DROPPED),
        ):
            self._counts[name][which] += np.add.reduceat(chosen.astype("u4"), starts)
        if len(batch.answers.series):
            self._pending.append((batch.answers.series, batch.answers.rtts_ns))
            last = batch.answers.rows.take(batch.answers.last)
            self._last["label_count"][batch.answers.which] = last["label_count"]
            self._last["labels"][batch.answers.which] = last["labels"]

    def take(self, since_ns: int, now_ns: int) -> Rows[PATH]:
        """Rows (n,) of dtype PATH of the probes added since the last call."""
        counts = self._counts[: self._flows.end * HOP_COUNT]
        series = np.flatnonzero((counts["sent"] > 0) | (counts["dropped"] > 0))
        counts = counts[series]
        self._counts[series] = np.zeros((), COUNTS)
        rows = self._flows.rows(PathRowKind.SUMMARY, series, now_ns)
        rows["since_ns"] = since_ns
        for name in COUNTS.names or ():
            rows[name] = counts[name]
        ended = counts["answered"] + counts["lost"]
        rows["loss_low"], rows["loss_high"] = loss_interval(counts["lost"], ended)
        for memory, name in ((self.answered, "answered"), (self.lost, "lost")):
            memory[series] = memory[series] * _MEMORY + counts[name]
        places, at = np.unique(series // HOP_COUNT, return_inverse=True)
        lost = self.lost.reshape(MAX_FLOWS, HOP_COUNT)[places]
        answered = self.answered.reshape(MAX_FLOWS, HOP_COUNT)[places]
        later = cleared(lost, lost + answered)[at, series % HOP_COUNT]
        rows["cleared"] = later & (counts["lost"] > 0)

        rows["responder"] = self._changes.facts["responder"][series]
        rows["alternatives"] = self._changes.alternatives(series, now_ns)
        rows["amount_ns"] = self._delays.amounts_ns(series)
        for name in ("last_ns", "min_ns", "median_ns", "p95_ns", "max_ns", "jitter_ns"):
            rows[name] = -1
        self._times(rows, series)
        for name in ("label_count", "labels"):
            rows[name] = np.where(
                (counts["answered"] > 0).reshape(-1, *[1] * (rows[name].ndim - 1)),
                self._last[name][series],
                0,
            )
        return rows

    def _times(self, rows: Rows[PATH], series: Array) -> None:
        """Fill in the times of the rows of series (n,), ascending."""
        if not self._pending:
            return
        numbers = np.concatenate([each for each, _ in self._pending])
        times = np.concatenate([each for _, each in self._pending])
        self._pending = []
        ordered = Ordered.of(numbers, times)
        at = np.searchsorted(series, ordered.series)
        ordered.fill(rows, at)
        # Polls are in order, and each series within a poll is in order of sending.
        order = np.argsort(numbers, kind="stable")
        numbers, times = numbers[order], times[order]
        starts = group_starts(numbers)
        before = self._last["rtt_ns"][ordered.series]
        rows["jitter_ns"][at] = jitter(times, starts, np.where(before > 0, before, -1))
        last = times[np.append(starts[1:], len(times)) - 1]
        rows["last_ns"][at] = last
        self._last["rtt_ns"][ordered.series] = last
