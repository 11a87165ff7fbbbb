"""Routing loops, and flaps: one router at several hops, and a hop that turns back and forth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import MAX_FLOWS, Flows, Lasting, address_ids
from probes.path.analysis.reach import REROUTED_NS
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, PathRowKind, no_rows

_OVER_NS = 1_000_000_000
"""A loop is over if its routers no longer answer in this order for so long."""
_CERTAIN = 9.2
"""Routers that never answer are in a loop if chance leaves them out once in 10,000 cases."""


def loop_of(routers: Sequence[int]) -> tuple[int, int]:
    """Return the first hop of a routing loop and its number of routers; (0, 0) without a loop.

    `routers`: a number of the router at each hop, 0 for a hop without an answer; index 0 is no hop.
    Packets go round: from the first hop on, each router answers again `number` hops later, at two
    hops at least. A router that forwards packets whose TTL ended answers at neighbouring hops: this
    is no loop.
    """
    known = {hop: router for hop, router in enumerate(routers) if router}
    for number in range(2, len(routers)):
        pairs = [(router, known.get(hop + number, 0)) for hop, router in known.items()]
        again = [hop for hop, (one, other) in zip(known, pairs, strict=True) if one == other]
        beside = (known.get(again[0] + one) for one in (-1, 1)) if again else ()
        if len(again) < 2 or known[again[0]] in beside:
            continue
        if all(one == other for hop, (one, other) in zip(known, pairs, strict=True)
               if hop >= again[0] and other):  # fmt: skip
            return again[0], number
    return 0, 0


class Loops(Lasting):
    """Follows the routing loops of all flows. Rows are of LOOP and LOOP_OVER, one of each for the
    flows of a destination."""

    def __init__(self, flows: Flows, changes: Changes) -> None:
        super().__init__(flows)
        self._changes = changes
        self._found: dict[int, tuple[int, int]] = {}
        """The loop of each flow (place) by the last poll, as `loop_of` returns it."""
        self._half_silent = set[int]()
        """Places of flows in loops in which one router alone answers."""
        self._seen_ns = self.by_flow("i8")
        """When each flow was last seen in a loop."""

    def is_looping(self, places: Array, now_ns: int) -> Array:
        """Which flows (n,) are in a loop, or were so lately that their length is unknown."""
        seen_ns = self._seen_ns[places]
        return (seen_ns > 0) & (now_ns - seen_ns < REROUTED_NS)

    def add(self, now_ns: int, answered: Array, lost: Array) -> Rows[PATH]:
        """Rows (n,) of dtype PATH. `answered` and `lost` (MAX_SERIES,) are recent outcomes, older
        ones with less weight."""
        outcomes = (each.reshape(MAX_FLOWS, HOP_COUNT) for each in (answered, lost))
        before, self._found = self._found, self._look(now_ns, *outcomes)
        by_destination: dict[int, list[int]] = {}
        for place, loop in self._found.items():
            self._seen_ns[place] = now_ns
            if before.get(place) == loop:
                destination = int(self._flows.destinations[place])
                by_destination.setdefault(destination, []).append(place)
        made = []
        for destination, places in by_destination.items():
            row = self.lasting.get(destination)
            row = self._row(places, now_ns) if row is None else row
            made.append(self.last(destination, row, now_ns))
        for destination in [*self.lasting]:
            seen_ns = int(self._seen_ns[self._flows.to(destination)].max(initial=0))
            if now_ns - seen_ns >= _OVER_NS:
                row = self.end(destination, now_ns)
                row["amount_ns"] = np.maximum(seen_ns - row["since_ns"], 0)
                made.append(row)
        return np.concatenate([np.empty(0, PATH), *made], dtype=PATH)

    def _look(self, now_ns: int, answered: Array, lost: Array) -> dict[int, tuple[int, int]]:
        """Return the loop of each flow that has one."""
        end = self._flows.end
        routes = self._changes.routes.reshape(MAX_FLOWS, HOP_COUNT)[:end]
        facts = self._changes.facts.reshape(MAX_FLOWS, HOP_COUNT)[:end]
        # Routers that take turns are not at several hops of one path.
        known = ~routes["mixed"] & (routes["current"] == routes["latest"])
        known &= routes["switches"] <= 1
        # Answers from behind a router that changed later are of another path.
        moved_ns = np.where(routes["held_ns"] > facts["first_ns"], routes["held_ns"], 0)
        moved_ns = np.maximum.accumulate(moved_ns, axis=1)
        known[:, 1:] &= facts["last_ns"][:, 1:] >= moved_ns[:, :-1]
        known &= routes["current"] != self._flows.destinations[:end, np.newaxis]
        known[:, DESTINATION_HOP] = False
        routers = np.where(known, routes["current"], 0)
        ordered = np.sort(routers, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)
        found = {}
        self._half_silent = set()
        for place in np.flatnonzero((again.sum(axis=1) > 1) & self._flows.used[:end]).tolist():
            first, number = loop_of(routers[place].tolist())
            if not first:
                continue
            # One router may be the last one, which answers for later hops, but not each time. In a
            # loop with silent routers it leaves out the hops between: that is hardly chance.
            behind = np.arange(first + number, DESTINATION_HOP)
            is_own = (behind - first) % number == 0
            heard, missed = answered[place, behind[is_own]].sum(), lost[place, behind[is_own]].sum()
            skipped = behind[~is_own]
            sure = -lost[place, skipped].sum() * np.log1p(-heard / (heard + missed + 1)) > _CERTAIN
            skips = sure and not routers[place, skipped].any()
            if skips:
                self._half_silent.add(place)
            if skips or np.count_nonzero(np.unique(routers[place, first:])) > 1:
                found[place] = first, number
            # Until it is sure, the path counts as no longer one.
            self._seen_ns[place] = now_ns
        return found

    def _row(self, places: list[int], now_ns: int) -> Rows[PATH]:
        place = places[0]
        first, number = self._found[place]
        row = self._flows.rows(PathRowKind.LOOP, np.array([place * HOP_COUNT + first]), now_ns)
        facts = self._changes.facts[place * HOP_COUNT :]
        for name, at in (("responder", first), ("previous", first + number - 1)):
            # The router may not have answered at its first hop.
            hops = range(at, DESTINATION_HOP, number)
            if name == "responder" or place not in self._half_silent:
                row[name] = facts["responder"][max(hops, key=facts["last_ns"].__getitem__)]
        row["other_hop"], row["amount"], row["flows"] = first + number - 1, number, len(places)
        row["since_ns"] = now_ns
        return row


_CHANGES = 3
"""There, back, and there again."""
_PAUSE_NS = 60_000_000_000
"""Longest time between two changes of one flap."""
_STILL_NS = 5_000_000_000
_STILL = 3
"""A flap is over after so long, and so many times its mean pause, without a change."""

_TURNS = np.dtype([("routers", "u8"), ("first_ns", "i8"), ("last_ns", "i8"), ("count", "i8")])
"""Changes of one flow at one hop between two routers (XOR of their address ids)."""


class Flaps(Lasting):
    """Follows the changes at each hop of all flows. Rows are of FLAP and FLAP_OVER, for the first
    hop of a destination that flaps: later hops change with it."""

    def __init__(self, flows: Flows, changes: Changes) -> None:
        super().__init__(flows)
        self._changes = changes
        self._turns = self.by_hop(_TURNS)

    def is_flapping(self, series: Array) -> Array:
        """Whether the hops of flows, series (n,), go on changing between two routers."""
        return self._turns["count"][series] >= _CHANGES

    def add(self, found: Rows[PATH], now_ns: int) -> Rows[PATH]:
        """Rows (n,) of dtype PATH, from the other findings of this poll, `found` (n,)."""
        self._take(found[found["kind"] == PathRowKind.RESPONDER])
        every = np.arange(self._flows.end * HOP_COUNT)
        series = every[self.is_flapping(every)]
        turns = self._turns[series]
        pause_ns = (turns["last_ns"] - turns["first_ns"]) // (turns["count"] - 1).clip(1)
        still_ns = self._changes.facts["last_ns"][series] - turns["last_ns"]
        over = still_ns > np.maximum(_STILL_NS, _STILL * pause_ns)
        self._turns[series[over]] = np.zeros((), _TURNS)
        series, pause_ns = series[~over], pause_ns[~over]
        destinations = self._flows.destinations[series // HOP_COUNT]
        flapping = np.unique(destinations).tolist()
        made = [self.end(each, now_ns) for each in self.lasting.keys() - set(flapping)]
        for destination in flapping:
            mine = np.flatnonzero(destinations == destination)
            hops = series[mine] % HOP_COUNT
            mine = mine[hops == hops.min()]
            at = mine[self._turns["count"][series[mine]].argmax()]
            row = self._row(int(series[at]), now_ns)
            row["amount_ns"], row["flows"] = pause_ns[at], len(mine)
            made.append(self.last(destination, row, now_ns))
        return np.concatenate([no_rows(PATH), *made], dtype=PATH)

    def _take(self, changed: Rows[PATH]) -> None:
        """Take in changes of hops, dtype PATH (n,)."""
        series = self._flows.places(changed) * HOP_COUNT + changed["hop"]
        ends = (changed[name].copy().view("u8") for name in ("responder", "previous"))
        now, before = (address_ids(words.reshape(-1, 2)) for words in ends)
        turns, since_ns = self._turns[series], changed["since_ns"]
        again = (turns["routers"] == now ^ before) & (since_ns - turns["last_ns"] <= _PAUSE_NS)
        turns["first_ns"] = np.where(again, turns["first_ns"], since_ns)
        turns["count"] = np.where(again, turns["count"] + 1, 1)
        turns["routers"], turns["last_ns"] = now ^ before, since_ns
        self._turns[series] = turns

    def _row(self, series: int, now_ns: int) -> Rows[PATH]:
        row, turns = self._flows.rows(PathRowKind.FLAP, np.array([series]), now_ns), self._turns
        row["responder"] = self._changes.facts["responder"][series]
        row["previous"] = self._changes.facts["previous"][series]
        row["since_ns"], row["amount"] = turns["first_ns"][series], turns["count"][series]
        hops = self._changes.facts["answers"].reshape(-1, HOP_COUNT)[series // HOP_COUNT]
        row["other_hop"] = np.flatnonzero(hops[:DESTINATION_HOP])[-1]
        return row
