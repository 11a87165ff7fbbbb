"""Analysis of the rows of a path probe as they come, and summaries of each hop of a second."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.branches import Branches
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import MAX_FLOWS, Detector, Flows, HopBatch, address_ids
from probes.path.analysis.gaps import Gaps
from probes.path.analysis.loops import Flaps, Loops
from probes.path.analysis.losses import Losses
from probes.path.analysis.middleboxes import Middleboxes
from probes.path.analysis.reach import Reach
from probes.path.analysis.reroutes import Reroutes
from probes.path.analysis.round_trips.delays import Delays
from probes.path.analysis.statistics import Ordered, cleared, group_starts, jitter, loss_interval
from probes.path.records import HOP, HOP_COUNT, PATH, PathRowKind, ProbeOutcome, no_rows

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


_NO_HOPS = no_rows(HOP)


class Analysis:
    """Follows all flows of all destinations. One thread calls it, at each poll.

    At most 256 flows of a destination are followed at a time, 2048 in all (`flows.py`). A new flow
    takes the place of one without a probe in this period, or is left out if all are busy. A flow
    without a probe for a minute is dropped. Only quantiles and counts are kept, so memory does not
    depend on rates: some 30 MB at most.
    """

    def __init__(self, *, period_ns: int = 1_000_000_000, timeout_ns: int = 3_000_000_000) -> None:
        """`period_ns`: time between summaries; `timeout_ns`: timeout of the probes."""
        self._period_ns = period_ns
        self._since_ns = 0
        self._flows = Flows()
        self._changes = Changes(self._flows)
        self._reach = Reach(self._flows, self._changes)
        self._gaps = Gaps(self._flows, timeout_ns)
        self._delays = Delays(self._flows, self._changes)
        self._branches = Branches(self._flows, self._changes)
        self._middleboxes = Middleboxes(self._flows)
        self._loops = Loops(self._flows, self._changes)
        self._flaps = Flaps(self._flows, self._changes)
        self._reroutes = Reroutes(
            self._flows, self._changes, self._delays, self._loops, self._flaps
        )
        self._losses = Losses(self._flows, self._changes, timeout_ns)
        self._summaries = Summaries(self._flows, self._changes, self._delays)
        self._parts = (
            self._changes, self._reach, self._gaps, self._delays, self._summaries, self._branches,
            self._middleboxes, self._loops, self._flaps, self._reroutes, self._losses,
        )  # fmt: skip

    @property
    def left_out(self) -> int:
        """Rows so far of flows that were left out because too many were active."""
        return self._flows.left_out

    def add(self, rows: Rows[HOP], now_ns: int, shortened: Array = _NO_HOPS) -> Array:
        """Take in rows of dtype HOP (n,), in any order, and return the new rows of dtype PATH. Call
        it at each poll, also without rows. Times are CLOCK_MONOTONIC. `shortened` are the paths
        that became shorter, as FlowLengths.take returns them."""
        self._since_ns = self._since_ns or now_ns
        sent = self._batch(rows, now_ns)
        batch = sent.only(sent.rows["outcome"] != ProbeOutcome.BEYOND_PATH)
        transit, recent = batch.transit, (self._summaries.answered, self._summaries.lost)
        found = [
            self._changes.add(batch),
            *self._reach.add(
                transit, *recent, rows[rows["outcome"] == ProbeOutcome.BEYOND_PATH], shortened
            ),
            self._gaps.add(sent.transit),
            *self._delays.add(batch),
            self._branches.add(batch),
            self._middleboxes.add(transit),
        ]
        changes = np.concatenate(found, dtype=PATH)
        rerouted = changes[changes["kind"] == PathRowKind.RESPONDER]
        unsettled = self._loops.add(now_ns, *recent), self._flaps.add(changes, now_ns)
        found = [
            changes,
            self._reroutes.add(batch, changes),
            *unsettled,
            self._losses.add(batch, rerouted, self._loops.lasting),
        ]
        self._summaries.add(batch)
        if now_ns - self._since_ns >= self._period_ns:
            found += [self._changes.balanced(now_ns), self.summarise(now_ns)]
            self._drop(self._flows.idle(now_ns))
        # Without the dtype numpy would turn ports to the machine's byte order.
        return np.concatenate([no_rows(PATH), *found], dtype=PATH)

    def summarise(self, now_ns: int) -> Array:
        """SUMMARY rows of the probes since the last summary: when tracing ends within a period."""
        rows = self._summaries.take(self._since_ns or now_ns, now_ns)
        self._since_ns = now_ns
        return rows

    def forget(self, destination: bytes, now_ns: int) -> Array:
        """Drop all flows to an address (16 bytes, as in HOP). Return the ends of its findings that
        last, dtype PATH (n,)."""
        number = int(address_ids(np.frombuffer(destination, "u8").reshape(1, 2))[0])
        ends = self._flaps.end(number, now_ns)
        self._drop(self._flows.to(number))
        for part in self._parts:
            part.forget(number)
        return ends

    def _batch(self, rows: Rows[HOP], now_ns: int) -> HopBatch:
        known = (rows["outcome"] != ProbeOutcome.OVERRUN) & (rows["hop"] < HOP_COUNT)
        rows = rows.take(np.flatnonzero(known)).astype(HOP, copy=False)
        places, evicted = self._flows.find(rows, now_ns, self._since_ns)
        self._drop_state(evicted)
        followed = np.flatnonzero(places >= 0)
        return HopBatch.of(rows.take(followed), places[followed], now_ns)

    def _drop(self, places: Array) -> None:
        self._flows.release(places)
        self._drop_state(places)

    def _drop_state(self, places: Array) -> None:
        if len(places):
            for part in self._parts:
                part.drop(places)
