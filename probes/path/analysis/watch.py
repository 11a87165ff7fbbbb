"""Analysis of the rows of a path probe as they come."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.branches import Branches
from probes.path.analysis.changes import Changes
from probes.path.analysis.flaps import Flaps
from probes.path.analysis.flows import Flows, HopBatch, address_ids
from probes.path.analysis.gaps import Gaps
from probes.path.analysis.loops import Loops
from probes.path.analysis.losses import Losses
from probes.path.analysis.middleboxes import Middleboxes
from probes.path.analysis.reach import Reach
from probes.path.analysis.reroutes import Reroutes
from probes.path.analysis.round_trips.delays import Delays
from probes.path.analysis.summaries import Summaries
from probes.path.records import HOP, HOP_COUNT, PATH, PathRowKind, ProbeOutcome, no_rows

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
