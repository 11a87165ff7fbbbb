"""Changes of the router that answers a flow at a hop, and load balancing."""

from __future__ import annotations

import numpy as np

from probes.path.analysis.flows import MAX_FLOWS, MAX_SERIES, Flows, HopBatch
from probes.path.analysis.routes import ROUTE, RouteVerdict, differing, follow, is_late
from probes.path.records import HOP_COUNT, Array, PathRowKind

MIN_ANSWERS = 5
"""Answers that a flow needs at a hop before it is compared to others."""
MAX_BALANCED = 32
"""Flows of one destination and hop that are reported as balanced."""
RECENT_NS = 60_000_000_000
"""A router counts as an alternative for so long after its last answer."""
MAX_SEEN = 65536
"""Once so many routers are noted, new ones wait until old ones expire."""

_ACTIVE_NS = 10_000_000_000

FACTS = np.dtype([
    ("responder", "u1", (16,)), ("answers", "i8"), ("first_ns", "i8"), ("last_ns", "i8"),
    ("reported", "?"),
])  # fmt: skip
"""One hop of a flow: its router, the number of answers, and when the probes of the first and the
last answer were sent. `reported`: the flow was reported as balanced."""


class Changes:
    """Follows the routers of all flows. Rows are of RESPONDER, BALANCED and BALANCED_PACKETS."""

    def __init__(self, flows: Flows) -> None:
        self.facts = np.zeros(MAX_SERIES, FACTS)
        self.routes = np.zeros(MAX_SERIES, ROUTE)
        self.rerouted_ns = np.zeros(MAX_FLOWS, "i8")
        """When a responder of the flow last changed, 0: never."""
        self._flows = flows
        self._seen: dict[tuple[int, int, int], int] = {}
        """When each router last answered, by destination, hop and router."""
        self._usual: dict[tuple[int, int], int] = {}
        """By destination and hop, the router that other flows are compared to."""

    def drop(self, places: Array) -> None:
        self.rerouted_ns[places] = 0
        self.drop_hops((places[:, np.newaxis] * HOP_COUNT + np.arange(HOP_COUNT)).ravel())

    def forget(self, destination: int) -> None:
        """Forget the routers seen on the way to an address (its address id)."""
        for key in [key for key in self._seen if key[0] == destination]:
            del self._seen[key]

    def drop_hops(self, series: Array) -> None:
        """Forget the routers of series (n,): the next answer is no change."""
        self.facts[series] = np.zeros((), FACTS)
        self.routes[series] = np.zeros((), ROUTE)

    def add(self, batch: HopBatch) -> Array:
        """Rows (n,) of dtype PATH."""
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
        self._name_mixed(rows, verdicts[reported] == RouteVerdict.MIXED, answers.rows, begin)
        self.rerouted_ns[which[verdicts == RouteVerdict.CHANGED] // HOP_COUNT] = batch.now_ns

        is_last = after["current"] == after["latest"]
        chosen = np.where(is_last, answers.last, answers.starts)
        moved = np.flatnonzero(moved)
        self.facts["responder"][which[moved]] = answers.rows["responder"][chosen[moved]]
        return rows

    def balanced(self, now_ns: int) -> Array:
        """Rows (n,) of dtype PATH: flows with another router than other flows have."""
        end = self._flows.end * HOP_COUNT
        facts, routes = self.facts[:end], self.routes[:end]
        compared = (facts["answers"] >= MIN_ANSWERS) & (facts["last_ns"] > now_ns - _ACTIVE_NS)
        series = np.flatnonzero(compared & ~routes["mixed"])
        pairs = self._balanced_of(series) if len(series) else []
        reported = np.array([flow for flow, _ in pairs], "i8")
        rows = self._flows.rows(PathRowKind.BALANCED, reported, now_ns)
        rows["responder"] = self.facts["responder"][reported]
        rows["previous"] = self.facts["responder"][np.array([other for _, other in pairs], "i8")]
        rows["since_ns"] = self.routes["held_ns"][reported]
        rows["alternatives"] = self.alternatives(reported, now_ns)
        return rows

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

    def _name_mixed(self, rows: Array, mixed: Array, answers: Array, starts: Array) -> None:
        """Turn the `rows` of `mixed` (n,) into rows of per-packet balancing."""
        for at in np.flatnonzero(mixed):
            row = rows[at : at + 1]
            row["kind"] = PathRowKind.BALANCED_PACKETS
            if np.array_equal(row["responder"], row["previous"]):
                mine = answers["responder"][starts[at] :]
                other = (mine != row["previous"]).any(axis=1)
                row["responder"] = mine[other.argmax()]

    def _balanced_of(self, series: Array) -> list[tuple[int, int]]:
        """The series among these (n,) to be reported, each with a series of the usual router."""
        destinations, hops = self._flows.destinations[series // HOP_COUNT], series % HOP_COUNT
        order = np.lexsort((destinations, hops))
        series, destinations, hops = series[order], destinations[order], hops[order]
        new = (destinations[1:] != destinations[:-1]) | (hops[1:] != hops[:-1])
        starts = np.flatnonzero(np.concatenate(([True], new)))
        ends = np.append(starts[1:], len(series))
        routers = self.routes["current"][series]
        several = np.minimum.reduceat(routers, starts) != np.maximum.reduceat(routers, starts)
        before, self._usual = self._usual, {}
        pairs = []
        for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
            group = int(destinations[start]), int(hops[start])
            members, there = series[start:end], routers[start:end]
            routes, facts = self.routes[members], self.facts[members]
            usual = before.get(group, 0)
            if usual not in there.tolist():
                usual = int(there[routes["held_ns"].argmin()])
            self._usual[group] = usual
            other = differing(there, routes["held_ns"], facts["last_ns"], usual)
            room = max(0, MAX_BALANCED - int(facts["reported"].sum()))
            reported = members[other & ~facts["reported"]][:room]
            self.facts["reported"][reported] = True
            reference = int(members[(there == usual).argmax()])
            pairs += [(flow, reference) for flow in reported.tolist()]
        return pairs
