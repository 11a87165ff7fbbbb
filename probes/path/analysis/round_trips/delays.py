"""Where along a path delay is added: levels that shift, queues that build up, and on which way.

TCP timestamps (RFC 7323) tell when the destination sent a packet, by a clock of any offset. If the
packet then takes longer to arrive than before, the queue is on the way back. If it takes as long,
the queue is on the way there. The clock must count milliseconds, as Linux, Windows and macOS do.
"""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import MAX_FLOWS, MAX_SERIES, Detector, Flows, HopBatch
from probes.path.analysis.round_trips import levels as level
from probes.path.analysis.round_trips import queues as queue
from probes.path.analysis.round_trips.levels import BLOCK, LEVEL, MIN_ANSWERS
from probes.path.analysis.round_trips.queues import QUEUE
from probes.path.analysis.statistics import Ordered, group_starts
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOP_COUNT,
    PATH,
    MeasuredBy,
    PathRowKind,
    QueueSide,
)

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
        for place, reached in zip(ended.tolist(), levels, strict=True):
            mine = late[places == place]
            clock = self._clocks[place]
            clock["now"] = np.median(mine) if len(mine) else np.nan
            # If a block has too few answers, its level comes from an earlier block.
            if len(mine) >= MIN_ANSWERS and reached["run"] == 0:
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


BLOCK_NS = 450_000_000
BLOCK_ANSWERS = 5
"""A flow's block ends at the first poll (mostly every other) at which the block is that old and one
of its hops has that many answers."""

_MAX_MISSED = 2
"""A hop's last block is too old after so many blocks of its flow without enough answers."""
_NEAR_NS = 5_000_000_000
"""A level that begins to change so near to another event, or one block further, changes because of
it."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Delays(Detector):
    """Follows the round-trip times of all flows. Returns rows of SHIFT, QUEUE and QUEUE_OVER."""

    def __init__(self, flows: Flows, changes: Changes) -> None:
        super().__init__(flows)
        self._changes = changes
        self._levels = self.by_flow(LEVEL, HOP_COUNT)
        self._queues = self.by_flow(QUEUE, HOP_COUNT)
        self._missed = self.by_flow("i8", HOP_COUNT)
        self._counts = self.by_flow("i8", HOP_COUNT)
        self._begun_ns = self.by_flow("i8")
        """When the first probe of the present block was sent, 0: the block is empty."""
        self._clocks = Clocks()
        self._pending: list[tuple[Array, Array]] = []
        """Series and times of blocks that have not ended."""

    def drop(self, places: Array) -> None:
        super().drop(places)
        self._clocks.drop(places)
        if len(places):
            self._take(places)

    def amounts_ns(self, series: Array) -> Array:
        """Queue (n,) f8 at series (n,), by the last block."""
        return self._queues.reshape(MAX_SERIES)["amount"][series]

    def levels(self, place: int) -> Rows[LEVEL]:
        """The levels (HOP_COUNT,) of dtype LEVEL of a flow's hops."""
        result: Array = self._levels[place].copy()
        return result

    def add(self, batch: HopBatch) -> list[Array]:
        """Rows of dtype PATH."""
        # A DNS server may have to ask others: such a time is no delay of the path.
        answers = batch.answers
        answers = answers.only(answers.rows["measured_by"] != MeasuredBy.DNS)
        self._clocks.add(batch)
        if len(answers.series):
            self._pending.append((answers.series, answers.rtts_ns))
            self._counts.reshape(MAX_SERIES)[answers.which] += answers.counts
            first = answers.rows["sent_ns"][answers.starts]
            starts = group_starts(answers.which // HOP_COUNT)
            places = answers.which[starts] // HOP_COUNT
            begun = self._begun_ns[places]
            earliest = np.minimum.reduceat(first, starts)
            self._begun_ns[places] = np.where(begun == 0, earliest, begun)
        begun = self._begun_ns[: self._flows.end]
        old = np.flatnonzero((begun > 0) & (batch.now_ns - begun >= BLOCK_NS))
        over = old[self._counts[old].max(axis=1, initial=0) >= BLOCK_ANSWERS]
        return self._end_blocks(over, batch.now_ns) if len(over) else []

    def _take(self, places: Array) -> tuple[Array, Array]:
        """Remove and return the pending series and times (n,) of places (k,)."""
        wanted = np.zeros(MAX_FLOWS, bool)
        wanted[places] = True
        series = np.concatenate([each for each, _ in self._pending] or [np.empty(0, "i8")])
        times = np.concatenate([each for _, each in self._pending] or [np.empty(0, "i8")])
        mine = wanted[series // HOP_COUNT]
        self._pending = [(series[~mine], times[~mine])]
        return series[mine], times[mine]

    def _end_blocks(self, places: Array, now_ns: int) -> list[Array]:
        begun_ns = self._begun_ns[places]
        self._measure(Ordered.of(*self._take(places)), places)
        self._begun_ns[places] = 0
        self._counts[places] = 0
        self._clocks.end_blocks(places, self._levels[places, DESTINATION_HOP], now_ns)

        levels, queues = self._levels[places], self._queues[places]
        changed_ns = self._changes.rerouted_ns[places][:, np.newaxis]
        near_ns = (now_ns - begun_ns)[:, np.newaxis] + _NEAR_NS
        rerouted = (changed_ns > 0) & (np.abs(levels["since_ns"] - changed_ns) <= near_ns)
        ended = (queues["most"] > 0) & (np.abs(levels["since_ns"] - queues["below_ns"]) <= near_ns)

        levels, shifts, settled = self._shift(levels, rerouted, queues["on"] | ended)
        excess = np.where(
            (levels["blocks"] > 0) & (self._missed[places] <= _MAX_MISSED),
            levels["median"] - levels["base"],
            np.nan,
        )
        # The usual median is above the base, too.
        usual = np.clip(levels["level"] - levels["base"], 0, levels["noise"])
        limit = level.threshold_ns(levels["level"], levels["noise"]) + usual
        amount = queue.amounts(excess, np.where(queues["on"], limit / 2, limit))
        wait = level.shifting(levels, rerouted) & (levels["run"] > 0)
        since = np.broadcast_to(begun_ns[:, np.newaxis], amount.shape)
        blocks = queue.certain(amount, limit, queues["on"])
        after = queue.follow(queues, amount, wait, blocks, since, now_ns)
        unsure = ~np.isnan(excess) & ~queue.decidable(excess, self._missed[places] == 0)
        after[unsure] = queues[unsure]
        self._levels[places], self._queues[places] = levels, after

        made = self._rows(PathRowKind.SHIFT, places, shifts != 0, now_ns)
        made["amount_ns"], made["since_ns"] = shifts[shifts != 0], settled[shifts != 0]
        builds, ends = after["on"] & ~queues["on"], queues["on"] & ~after["on"]
        began = self._rows(PathRowKind.QUEUE, places, builds, now_ns)
        began["amount_ns"], began["since_ns"] = after["most"][builds], after["since_ns"][builds]
        began["other_hop"] = queue.before_hops(~np.isnan(excess))[builds]
        at = np.nonzero(builds)[0]
        began["previous"] = self._changes.facts["responder"][
            places[at] * HOP_COUNT + began["other_hop"]
        ]
        began["side"] = self._clocks.sides(places[at], excess[at, DESTINATION_HOP])
        over = self._rows(PathRowKind.QUEUE_OVER, places, ends, now_ns)
        over["amount_ns"], over["since_ns"] = queues["most"][ends], queues["since_ns"][ends]
        return [made, began, over]

    def _shift(
        self, levels: Rows[LEVEL], rerouted: Array, queued: Array
    ) -> tuple[Array, Array, Array]:
        """Settle the levels (flows, hops) that shifted. Returns the levels, the amounts to be
        reported (ns, 0: none), and when each began."""
        sure = level.shifted(levels, rerouted)
        maybe = level.shifting(levels, rerouted)
        # One block later than others, as a change is seldom at the edge of a block for all hops.
        young = (maybe & (np.abs(levels["run"]) == 1)).any(axis=1)[:, np.newaxis]
        sure &= ~young | (np.abs(levels["run"]) > level.QUIET_BLOCKS)
        # Behind a queue all times vary, and the end of the queue is no new level.
        behind = np.logical_or.accumulate(queued, axis=1)
        sure &= ~(behind & (levels["run"] > 0))
        reported, amounts = level.new_shifts(levels, sure, maybe)
        young = levels["blocks"] - np.abs(levels["run"]) < level.KNOWN_BLOCKS
        reported &= ~behind & ~(young & (amounts > 0))
        moved = amounts != 0
        since = levels["since_ns"]
        return (
            level.settle(levels, moved | level.sinking(levels) & ~maybe),
            np.where(reported, amounts, 0.0),
            since,
        )

    def _measure(self, ordered: Ordered, places: Array) -> None:
        """Update the hops of the flows at `places` with the block in `ordered`."""
        self._missed[places] += 1
        enough = ordered.counts >= MIN_ANSWERS
        series = ordered.series[enough]
        self._missed.reshape(MAX_SERIES)[series] = 0
        blocks = np.zeros(len(series), BLOCK)
        for name, fraction in (("low", 0.1), ("first", 0.25), ("median", 0.5), ("third", 0.75)):
            blocks[name] = ordered.quantile(fraction)[enough]
        blocks["since_ns"] = self._begun_ns[series // HOP_COUNT]
        flat = self._levels.reshape(MAX_SERIES)
        queued = self._queues.reshape(MAX_SERIES)["on"][series]
        new = flat["blocks"][series] == 0
        flat[series] = level.follow(flat[series], blocks, queued)
        if new.any():
            self._bound(series[new], blocks[new])
            self._inherit(series[new])

    def _bound(self, new: Array, blocks: Rows[BLOCK]) -> None:
        """Lower the base of each new series (n,), with its first BLOCK (n,), to later hops' bases:
        of a flow that fills a queue, one hop may be measured before the queue and one in it."""
        flat = self._levels.reshape(MAX_SERIES)
        base = flat["base"].reshape(MAX_FLOWS, HOP_COUNT)
        places = np.unique(new // HOP_COUNT)
        known = np.where(self._levels["blocks"][places] > 0, base[places], np.inf)
        least = np.minimum.accumulate(known[:, ::-1], axis=1)[:, ::-1]
        later = least[np.searchsorted(places, new // HOP_COUNT), new % HOP_COUNT]
        spread = blocks["third"] - blocks["first"]
        lower = (later < flat["base"][new]) & (flat["base"][new] - later < 2 * spread)
        for name in ("base", "level"):
            flat[name][new[lower]] = later[lower]

    def _inherit(self, new: Array) -> None:
        """Start new series (n,) with the levels of the fastest flow on the same route up to that
        hop: a flow that begins in a queue has no other reference."""
        flows = self._flows
        # Round trips of the flows themselves differ by the way in which they are measured.
        new = new[new % HOP_COUNT != DESTINATION_HOP]
        concerned = np.isin(flows.destinations, flows.destinations[new // HOP_COUNT]) & flows.used
        places = np.flatnonzero(concerned)
        routers = self._changes.routes["current"].reshape(MAX_FLOWS, HOP_COUNT)[places]
        routers[:, 0] = flows.destinations[places]
        for hop in range(1, HOP_COUNT):  # each hash includes all earlier hops
            routers[:, hop] ^= routers[:, hop - 1] * _FACTOR
        known = self._levels["blocks"][places] > 0
        routes, levels = routers[known], self._levels[places][known]
        order = np.lexsort((levels["base"], routes))
        order = order[group_starts(routes[order])]
        mine = routers[np.searchsorted(places, new // HOP_COUNT), new % HOP_COUNT]
        fastest = levels[order[np.searchsorted(routes[order], mine)]]
        flat = self._levels.reshape(MAX_SERIES)
        for name in ("base", "level", "noise"):
            flat[name][new] = fastest[name]

    def _rows(self, kind: PathRowKind, places: Array, where: Array, now_ns: int) -> Rows[PATH]:
        """Rows of dtype PATH for the hops `where` (flows, hops) of the flows at `places`."""
        at, hops = np.nonzero(where)
        series = places[at] * HOP_COUNT + hops
        rows = self._flows.rows(kind, series, now_ns)
        rows["responder"] = self._changes.facts["responder"][series]
        return rows
