"""Changes of the router that answers a flow at a hop, and load balancing."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import Detector, Flows, HopBatch
from probes.path.analysis.routes import ROUTE, RouteVerdict, differing, follow, is_late
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, PathRowKind

MIN_ANSWERS = 5
"""Answers that a flow needs at a hop before it is compared to others."""
RECENT_NS = 60_000_000_000
"""A router counts as an alternative for so long after its last answer."""
MAX_SEEN = 65536
"""Once so many routers are noted, new ones wait until old ones expire."""

_ACTIVE_NS = 10_000_000_000
_SETTLED_NS = 3_000_000_000
"""Flows are compared again so long after the last change of a route: it reaches them one after
another."""

FACTS = np.dtype([
    ("responder", "u1", (16,)), ("answers", "i8"), ("first_ns", "i8"), ("last_ns", "i8"),
    ("ttl", "u1"), ("previous", "u1", (16,)), ("previous_ttl", "u1"),
])  # fmt: skip
"""One hop of a flow: its router, the number of answers, when the probes of the first and the last
answer were sent, and the TTL of the router's last answer; the router before, and its last TTL.
At DESTINATION_HOP: the destination, and zero."""


class Changes(Detector):
    """Follows the routers of all flows. Rows are of RESPONDER, BALANCED and BALANCED_PACKETS."""

    def __init__(self, flows: Flows) -> None:
        super().__init__(flows)
        self.facts = self.by_hop(FACTS)
        self.routes = self.by_hop(ROUTE)
        self.rerouted_ns = self.by_flow("i8")
        """When a responder of the flow last changed, 0: never."""
        self._seen: dict[tuple[int, int, int], int] = self.by_destination({})
        """When each router last answered, by destination, hop and router."""
        self._shared: dict[tuple[int, int], frozenset[int]] = self.by_destination({})
        """By destination and hop, the routers that were reported to share its flows."""
        self._sizes: dict[tuple[int, int], int] = {}
        """Flows at hops with several routers, at the last comparison."""

    def drop_hops(self, series: Array) -> None:
        """Forget the routers of series (n,): the next answer is no change."""
        self.facts[series] = np.zeros((), FACTS)
        self.routes[series] = np.zeros((), ROUTE)

    def add(self, batch: HopBatch) -> Rows[PATH]:
        """Rows (n,) of dtype PATH."""
        ends = batch.answers.which
        ends = ends[ends % HOP_COUNT == DESTINATION_HOP]
        self.facts["responder"][ends] = self._flows.responders(ends // HOP_COUNT)
        batch = batch.transit
        answers = batch.answers
        self._note(batch)
        late = is_late(self.routes[answers.series], answers.rows["sent_ns"])
        answers = answers.only(~late)
        which = answers.which
        if not len(which):
            return self._flows.rows(PathRowKind.RESPONDER, which, batch.now_ns)
        after, verdicts = follow(
            self.routes[which], answers.responders, answers.rows["sent_ns"], answers.starts
        )
        first = self.routes["current"][which] == 0
        moved = after["current"] != self.routes["current"][which]
        self.routes[which] = after

        reported = np.flatnonzero(verdicts != RouteVerdict.SAME)
        rows = self._flows.rows(PathRowKind.RESPONDER, which[reported], batch.now_ns)
        last, begin = answers.rows.take(answers.last[reported]), answers.starts[reported]
        rows["responder"] = last["responder"]
        old = self.facts["responder"][which[reported]]
        # A flow may be answered by two routers from its first poll on.
        unknown = first[reported]
        old[unknown] = answers.rows["responder"][begin[unknown]]
        rows["previous"] = old
        rows["since_ns"] = after["run_ns"][reported]
        # Several routers answer one flow in turn.
        for at in np.flatnonzero(verdicts[reported] == RouteVerdict.MIXED):
            row = rows[at : at + 1]
            row["kind"] = PathRowKind.BALANCED_PACKETS
            if np.array_equal(row["responder"], row["previous"]):
                mine = answers.rows["responder"][begin[at] :]
                other = (mine != row["previous"]).any(axis=1)
                row["responder"] = mine[other.argmax()]
        self.rerouted_ns[which[verdicts == RouteVerdict.CHANGED] // HOP_COUNT] = batch.now_ns

        is_last = after["current"] == after["latest"]
        chosen = np.where(is_last, answers.last, answers.starts)
        moved = np.flatnonzero(moved)
        for now, before in (("responder", "previous"), ("ttl", "previous_ttl")):
            self.facts[before][which[moved]] = self.facts[now][which[moved]]
        self.facts["responder"][which[moved]] = answers.rows["responder"][chosen[moved]]
        self.facts["ttl"][which[is_last]] = answers.rows["ttl"][answers.last[is_last]]
        return rows

    def balanced(self, now_ns: int) -> Rows[PATH]:
        """Rows (n,) of dtype PATH: one for each router that serves some flows at a hop while other
        routers serve others. A hop is reported again only with another set of routers."""
        end = self._flows.end * HOP_COUNT
        facts, routes = self.facts[:end], self.routes[:end]
        compared = (facts["answers"] >= MIN_ANSWERS) & (facts["last_ns"] > now_ns - _ACTIVE_NS)
        # A flow whose last answer came from another router may be changing.
        compared &= ~routes["mixed"] & (routes["current"] == routes["latest"])
        series = np.flatnonzero(compared)
        destinations = self._flows.destinations[series // HOP_COUNT]
        moving = self.rerouted_ns > now_ns - _SETTLED_NS
        settled = ~np.isin(destinations, self._flows.destinations[moving & self._flows.used])
        # A destination that answers probes is no router.
        series = series[settled & (routes["current"][series] != destinations)]
        groups = self._groups(series)
        before, self._sizes = self._sizes, {self._place_of(group): len(group) for group in groups}
        found = [
            row
            for group in groups
            # New flows are waited for.
            if before.get(self._place_of(group)) == len(group)
            for row in self._share(group, now_ns)
        ]
        return np.concatenate([np.empty(0, PATH), *found], dtype=PATH)

    def alternatives(self, series: Array, now_ns: int) -> Array:
        """How many routers (n,) of any flow answered lately at the hop of series (n,)."""
        counts: dict[tuple[int, int], int] = {}
        for (destination, hop, router), seen_ns in list(self._seen.items()):
            if seen_ns < now_ns - RECENT_NS:
                del self._seen[destination, hop, router]
            else:
                counts[destination, hop] = counts.get((destination, hop), 0) + 1
        destinations = self._flows.destinations[series // HOP_COUNT].tolist()
        hops = (series % HOP_COUNT).tolist()
        keys = zip(destinations, hops, strict=True)
        return np.array([counts.get(key, 0) for key in keys], "u2")

    def _note(self, batch: HopBatch) -> None:
        """Count every answer, and note its router."""
        answers = batch.answers
        which, sent = answers.which, answers.rows["sent_ns"]
        facts = self.facts[which]
        known = facts["answers"] > 0
        facts["first_ns"] = np.where(known, facts["first_ns"], sent[answers.starts])
        facts["last_ns"] = np.maximum(facts["last_ns"], sent[answers.last])
        facts["answers"] += answers.counts
        self.facts[which] = facts
        turns = answers.responders[1:] != answers.responders[:-1]
        turns |= answers.series[1:] != answers.series[:-1]
        at = np.flatnonzero(np.concatenate((np.ones(min(1, len(which)), bool), turns)))
        series = answers.series[at]
        destinations = self._flows.destinations[series // HOP_COUNT].tolist()
        hops, routers = (series % HOP_COUNT).tolist(), answers.responders[at].tolist()
        keys = zip(destinations, hops, routers, strict=True)
        if len(self._seen) < MAX_SEEN:
            self._seen.update(dict.fromkeys(keys, batch.now_ns))

    def _groups(self, series: Array) -> list[Array]:
        """Group series (n,) by destination and hop. Return the groups with several routers."""
        if not len(series):
            return []
        destinations, hops = self._flows.destinations[series // HOP_COUNT], series % HOP_COUNT
        order = np.lexsort((destinations, hops))
        series, destinations, hops = series[order], destinations[order], hops[order]
        new = (destinations[1:] != destinations[:-1]) | (hops[1:] != hops[:-1])
        groups = np.split(series, np.flatnonzero(new) + 1)
        routers = self.routes["current"]
        return [group for group in groups if len(np.unique(routers[group])) > 1]

    def _place_of(self, series: Array) -> tuple[int, int]:
        """Destination and hop of series that have both in common."""
        return int(self._flows.destinations[series[0] // HOP_COUNT]), int(series[0]) % HOP_COUNT

    def _share(self, series: Array, now_ns: int) -> list[Array]:
        """Rows about the series (n,) of one hop to one destination, the commonest router first."""
        place = self._place_of(series)
        routers = self.routes["current"][series]
        held, last = self.routes["held_ns"][series], self.facts["last_ns"][series]
        numbers, counts = np.unique(routers, return_counts=True)
        usual = numbers[counts.argmax()]
        beside = differing(routers, held, last, int(usual))
        numbers = numbers[np.isin(numbers, routers[beside]) | (numbers == usual)]
        known = self._shared.get(place, frozenset())
        if len(numbers) < 2 or known.issuperset(numbers.tolist()):
            return []
        self._shared[place] = known.union(numbers.tolist())
        found = []
        for number in numbers.tolist():
            mine = series[routers == np.uint64(number)]
            row = self._flows.rows(PathRowKind.BALANCED, mine[:1], now_ns)
            row["responder"] = self.facts["responder"][mine[:1]]
            row["since_ns"] = held[routers == np.uint64(number)].min()
            row["flows"], row["alternatives"] = len(mine), len(numbers)
            found.append(row)
        return sorted(found, key=lambda row: -int(row["flows"][0]))
