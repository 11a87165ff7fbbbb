"""The way on which a queue builds up, by the destination's clock.

TCP timestamps (RFC 7323) tell when the destination sent a packet, by a clock of any offset. If the
packet then takes longer to arrive than before, the queue is on the way back. If it takes as long,
the queue is on the way there. The clock must count milliseconds, as Linux, Windows and macOS do.
"""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import MAX_FLOWS, HopBatch
from probes.path.analysis.round_trips.levels import LEVEL, MIN_ANSWERS
from probes.path.analysis.statistics import group_starts
from probes.path.records import DESTINATION_HOP, HOP, HOP_COUNT, QueueSide

_TICK_NS = 1_000_000
_LEAST_NS = 3_000_000
"""A smaller queue is lost in the ticks."""
_THERE, _BACK = 0.3, 0.7
"""Share of the delay on the way back: up to the first the queue is on the way there, from the
second on it is on the way back."""
_WRONG = 0.2
"""A clock that runs so much faster or slower counts no milliseconds."""

_MANY = 10
"""Round trips, before their changes tell a side."""

CLOCK = np.dtype([("first", "u4"), ("first_ns", "i8"), ("usual", "f8"), ("now", "f8")])
"""A flow: the destination's first timestamp, and when it arrived (0: none). Later ones arrive later
than it says, in ns: in blocks without a queue, and in the last block (NaN: none)."""


class Clocks:
    """Follows the destination's clock as each flow sees it."""

    def __init__(self) -> None:
        self._clocks = np.zeros(MAX_FLOWS, CLOCK)
        self._pending: list[tuple[Array, Array]] = []
        """Places, and how much later than the clock says packets arrived, ns."""

    def drop(self, places: Array) -> None:
        self._clocks[places] = np.zeros((), CLOCK)

    def add(self, batch: HopBatch) -> None:
        answers = batch.answers
        told = answers.series % HOP_COUNT == DESTINATION_HOP
        told &= answers.rows["remote_clock"] > 0
        if not told.any():
            return
        rows, places = answers.rows[told], answers.series[told] // HOP_COUNT
        starts = group_starts(places)
        new = starts[self._clocks["first_ns"][places[starts]] == 0]
        clocks = self._clocks[places[new]]
        clocks["first"], clocks["first_ns"] = rows["remote_clock"][new], rows["received_ns"][new]
        clocks["usual"] = clocks["now"] = np.nan
        self._clocks[places[new]] = clocks
        since = self._clocks[places]
        # Timestamps wrap around.
        ticks = (rows["remote_clock"] - since["first"]).view("i4").astype("i8")
        late = rows["received_ns"] - since["first_ns"] - ticks * _TICK_NS
        self._pending.append((places, late))

    def end_blocks(self, ended: Array, levels: Rows[LEVEL], now_ns: int) -> None:
        """End the blocks of the flows at `ended` (n,), with their levels (n,) of dtype LEVEL at the
        destination."""
        assert levels.dtype == LEVEL
        places = np.concatenate([np.empty(0, "i8"), *(each for each, _ in self._pending)])
        late = np.concatenate([np.empty(0, "i8"), *(each for _, each in self._pending)])
        kept = ~np.isin(places, ended)
        self._pending = [(places[kept], late[kept])]
        for place, level in zip(ended.tolist(), levels, strict=True):
            mine = late[places == place]
            clock = self._clocks[place]
            clock["now"] = np.median(mine) if len(mine) else np.nan
            # With fewer times the level is that of an earlier block.
            if len(mine) >= MIN_ANSWERS and level["run"] == 0:
                clock["usual"] = clock["now"]
            runs = abs(clock["now"]) <= _WRONG * (now_ns - clock["first_ns"]) + 50 * _TICK_NS
            if not runs:
                clock["usual"] = np.nan

    def sides(self, places: Array, excess_ns: Array) -> Array:
        """QueueSide (n,) of queues that delay the flows at places (n,) by `excess_ns` (n,)."""
        clocks = self._clocks[places]
        known = (clocks["first_ns"] > 0) & (excess_ns >= _LEAST_NS)
        share = (clocks["now"] - clocks["usual"]) / np.where(known, excess_ns, np.nan)
        result: Array = np.select(
            [share <= _THERE, share >= _BACK], [QueueSide.THERE, QueueSide.BACK], QueueSide.EITHER
        )
        return result


def side_of(rows: Rows[HOP]) -> QueueSide:
    """Return the way on which a queue is that was there before tracing began: its length changes,
    and so do the round-trip times of a flow, rows (n,) of dtype HOP."""
    rows = rows[(rows["hop"] == DESTINATION_HOP) & (rows["remote_clock"] > 0)]
    rows = rows[rows["received_ns"] > 0]
    if len(rows) < _MANY:
        return QueueSide.EITHER
    since = rows["received_ns"] - rows["received_ns"][0]
    ticks = (rows["remote_clock"] - rows["remote_clock"][0]).view("i4").astype("i8")
    late, took = since - ticks * _TICK_NS, rows["received_ns"] - rows["sent_ns"]
    spread = float(took.std())
    if spread < _LEAST_NS or np.abs(late).max() > _WRONG * np.ptp(since) + 50 * _TICK_NS:
        return QueueSide.EITHER
    share = float(np.mean((late - late.mean()) * (took - took.mean()))) / spread**2
    if share <= _THERE:
        return QueueSide.THERE
    return QueueSide.BACK if share >= _BACK else QueueSide.EITHER
