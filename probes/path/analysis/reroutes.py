"""Changes of a route: the changes of its hops, flow by flow, folded into one row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bpf.arrays import Array, Row, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import Detector, Flows, HopBatch, series_of
from probes.path.analysis.loops import Flaps, Loops
from probes.path.analysis.round_trips.delays import Delays
from probes.path.analysis.round_trips.levels import QUIET_BLOCKS, threshold_ns
from probes.path.probing_plan import initial_ttl
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, PathRowKind

_WHOLE_NS = 700_000_000
"""A change is reported after so long, three polls, if hops behind it have not answered yet ..."""
_SLOW_NS = 3_000_000_000
"""... or after two probes of each hop, if they come that seldom, but no later than this."""
_AGAIN_NS = 5_000_000_000
_CALM_NS = 2_000_000_000
"""So near to an earlier change, the next one must be over for so long: routes converge in steps."""
_LENGTH_NS = 3_000_000_000
"""Without another length until then, the path is as long as before."""
_AMOUNTS_NS = 10_000_000_000
"""A change of length or round-trip time belongs to a change of route that is not older."""
_LATE_NS = 60_000_000_000
"""A flow without probes meanwhile finds the same change so much later."""
_PRECISE = 2
"""The steadiest flow tells the change of the round-trip time, together with flows of at most this
multiple of its threshold."""
_UNSETTLED = (
    PathRowKind.LONGER,
    PathRowKind.SHORTER,
    PathRowKind.SILENT,
    PathRowKind.ANSWERS,
    PathRowKind.SHIFT,
)
"""Findings that a routing loop or a flap causes: up to the highest TTL, all hops answer, or none
does."""
_MIN_TIMES = 5
_MAX_TIMES = 1 << 18


@dataclass(slots=True, eq=False)
class _Reroute:
    """One change of the route to a destination."""

    begun_ns: int
    """When its first hop was found to have changed."""
    since_ns: int
    """When the first probe on the new route was sent."""
    changed_ns: int
    """When the last hop, or the length, was found to have changed."""
    not_before_ns: int
    """It is not reported earlier."""
    wait_ns: int
    """It is reported so long after `begun_ns`, also if it may go on."""
    flows: set[int] = field(default_factory=set)
    """Places."""
    routers: dict[int, Counter[tuple[bytes, bytes]]] = field(default_factory=dict)
    """By hop: the router now and before, by flows."""
    tops: dict[int, int] = field(default_factory=dict)
    """The last router's hop of each flow before the change; 0: unknown."""
    levels: dict[int, Array] = field(default_factory=dict)
    """Levels (hops,) of dtype LEVEL of each flow before the change."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Hops that each flow's path is longer."""
    times: list[tuple[Array, Array]] = field(default_factory=list)
    """Series and round-trip times on the new route."""
    late_lengths: dict[int, int] = field(default_factory=dict)
    """The same of changes that were found after the report: they may belong to the next reroute."""
    told_ns: int = 0
    told_length: int = 0
    told_rtt: bool = False
    """Whether the change of the round-trip time is reported, or known to be small."""

    @property
    def length(self) -> int:
        return max(self.lengths.values(), key=abs, default=0)


class Reroutes(Detector):
    """Follows the changes of routes. Rows are of ROUTE, ROUTE_AMOUNTS and ALIAS.

    A change is reported in the poll after its last hop, if all hops up to the path's old end
    answered on the new route: mostly within 0.5 s. Otherwise its length is unknown and is waited
    for, up to 1 s in all.
    """

    def __init__(
        self, flows: Flows, changes: Changes, delays: Delays, loops: Loops, flaps: Flaps
    ) -> None:
        super().__init__(flows)
        self._changes = changes
        self._delays = delays
        self._loops = loops
        self._flaps = flaps
        self._reroutes: dict[int, _Reroute] = self.by_destination({})
        """The last change, by destination."""

    def drop(self, places: Array) -> None:
        gone = set(places.tolist())
        for one in self._reroutes.values():
            one.flows -= gone

    def add(self, batch: HopBatch, found: Rows[PATH]) -> Rows[PATH]:
        """Rows (n,) of dtype PATH, from the other findings of this poll; those that belong to a
        change of route are marked as folded."""
        now_ns = batch.now_ns
        if len(found):
            self._take(found, now_ns)
        made = []
        for destination, one in list(self._reroutes.items()):
            hops = [place * HOP_COUNT + hop for place in one.flows for hop in one.routers]
            flaps = not one.told_ns and self._flaps.is_flapping(np.array(hops, "i8")).all()
            if now_ns - one.begun_ns > _LATE_NS or not one.flows or flaps:
                del self._reroutes[destination]
                continue
            if now_ns - one.begun_ns <= _AMOUNTS_NS:
                self._measure(one, batch)
            row = self._amounts(one, now_ns) if one.told_ns else self._whole(one, now_ns)
            made.append(row)
        return np.concatenate([np.empty(0, PATH), *made], dtype=PATH)

    def _take(self, found: Rows[PATH], now_ns: int) -> None:
        places = self._flows.places(found)
        flapping = self._flaps.is_flapping(series_of(places)).reshape(-1, HOP_COUNT).any(axis=1)
        unsettled = flapping | self._loops.is_looping(places, now_ns)
        found["folded"] |= unsettled & np.isin(found["kind"], _UNSETTLED)
        kinds = (PathRowKind.RESPONDER, PathRowKind.LONGER, PathRowKind.SHORTER, PathRowKind.SHIFT)
        at = np.flatnonzero(np.isin(found["kind"], kinds) & (found["folded"] == 0))
        places = places[at]
        at, places = at[places >= 0], places[places >= 0]
        destinations = self._flows.destinations[places].tolist()
        for index, place, destination in zip(
            at.tolist(), places.tolist(), destinations, strict=True
        ):
            row = found[index]
            if row["kind"] == PathRowKind.RESPONDER:
                self._change(destination, place, row, now_ns)
                continue
            one = self._reroutes.get(destination)
            if one is None or now_ns - one.begun_ns > _AMOUNTS_NS or place not in one.flows:
                continue
            found["folded"][index] = 1
            if row["kind"] != PathRowKind.SHIFT:
                sign = 1 if row["kind"] == PathRowKind.LONGER else -1
                lengths = one.late_lengths if one.told_ns else one.lengths
                lengths[place] = lengths.get(place, 0) + sign * int(row["amount"])
                one.changed_ns = now_ns

    def _change(self, destination: int, place: int, row: Row[PATH], now_ns: int) -> None:
        """Take in another router of a flow at a hop."""
        hop, since_ns = int(row["hop"]), int(row["since_ns"])
        if self._flaps.is_flapping(np.array([place * HOP_COUNT + hop])).any():
            return
        pair = row["responder"].tobytes(), row["previous"].tobytes()
        one = self._reroutes.get(destination)
        if one and one.told_ns:
            # The old router answered no probe of the time after the change.
            left_ns = int(self._changes.routes["left_ns"][place * HOP_COUNT + hop])
            recent = now_ns - one.begun_ns <= _AMOUNTS_NS
            if pair in one.routers.get(hop, ()) or (recent and left_ns < one.since_ns):
                # The same change reached one more flow or hop.
                one.flows.add(place)
                one.routers.setdefault(hop, Counter())[pair] += 1
                return
        if one is None or one.told_ns:
            again = one is not None and now_ns - one.told_ns < _AGAIN_NS
            wait_ns = self._wait_ns(place * HOP_COUNT + hop)
            lengths = one.late_lengths if one else {}
            one = _Reroute(now_ns, since_ns, now_ns, now_ns + _CALM_NS * again, wait_ns)
            one.lengths = lengths
            self._reroutes[destination] = one
        if hop not in one.routers:
            one.changed_ns = now_ns
        one.since_ns = min(one.since_ns, since_ns)
        one.flows.add(place)
        one.routers.setdefault(hop, Counter())[pair] += 1
        if place not in one.tops:
            one.levels[place] = levels = self._delays.levels(place)
            answers = self._changes.facts["answers"][place * HOP_COUNT :][:DESTINATION_HOP]
            known = np.flatnonzero((answers > 0) & (levels["blocks"][:DESTINATION_HOP] > 0))
            one.tops[place] = int(known.max(initial=0))

    def _wait_ns(self, series: int) -> int:
        """How long other hops may take to answer twice, as this one does."""
        facts = self._changes.facts[series]
        interval = int(facts["last_ns"] - facts["first_ns"]) // max(int(facts["answers"]) - 1, 1)
        return min(max(2 * interval, _WHOLE_NS), _SLOW_NS)

    def _measure(self, one: _Reroute, batch: HopBatch) -> None:
        answers = batch.answers
        if sum(len(times) for _, times in one.times) > _MAX_TIMES:
            return
        mine = np.isin(answers.series // HOP_COUNT, np.fromiter(one.flows, "i8"))
        mine &= answers.rows["sent_ns"] >= one.since_ns
        if mine.any():
            one.times.append((answers.series[mine], answers.rtts_ns[mine]))

    def _is_whole(self, one: _Reroute) -> bool:
        """Whether one of the flows found out about all later hops, and about the path's length."""
        facts = self._changes.facts
        for place, top in one.tops.items():
            hops = place * HOP_COUNT + np.arange(min(one.routers), top + 1)
            hops = hops[facts["answers"][hops] > 0]
            heard = bool((facts["last_ns"][hops] >= one.since_ns).all())
            if one.lengths or (heard and top not in one.routers):
                return True
        return False

    def _whole(self, one: _Reroute, now_ns: int) -> Array:
        """Report the change, unless it may go on."""
        steady = one.changed_ns < now_ns and self._is_whole(one)
        waited = now_ns - one.begun_ns >= one.wait_ns
        if now_ns < one.not_before_ns or not (steady or waited):
            return np.empty(0, PATH)
        first, last = min(one.routers), max(one.routers)
        place = min(one.flows)
        row = self._flows.rows(PathRowKind.ROUTE, np.array([place * HOP_COUNT + first]), now_ns)
        responder, previous = one.routers[first].most_common(1)[0][0]
        row["responder"], row["previous"] = (
            np.frombuffer(responder, "u1"),
            np.frombuffer(previous, "u1"),
        )
        row["other_hop"], row["flows"], row["since_ns"] = last, len(one.flows), one.since_ns
        one.told_ns = now_ns
        if self._is_looping(one, now_ns):
            # Every hop up to the highest TTL answers: this is no length.
            return row
        row["amount"] = one.told_length = one.length
        rtt = self._rtt(one, now_ns)
        one.told_rtt = rtt is not None
        row["amount_ns"] = rtt or 0
        if first == last and not one.length and not rtt and self._later_same(one, first):
            # Systems set one of few initial TTLs, so another one is another router.
            now, before = (
                int(self._changes.facts[name][place * HOP_COUNT + first])
                for name in ("ttl", "previous_ttl")
            )
            if not now or not before or initial_ttl(now) == initial_ttl(before):
                row["kind"], row["amount"] = PathRowKind.ALIAS, before - now if before else 0
        return row

    def _later_same(self, one: _Reroute, hop: int) -> bool:
        """Whether a later router of the only hop that changed is as before, and so is the
        round-trip time to this hop."""
        facts = self._changes.facts
        later = [
            slice(place * HOP_COUNT + hop + 1, place * HOP_COUNT + DESTINATION_HOP)
            for place in one.flows
        ]
        same = any(
            bool(
                (
                    (facts["first_ns"][at] < one.since_ns) & (facts["last_ns"][at] >= one.since_ns)
                ).any()
            )
            for at in later
        )
        return same and not self._difference(one, dict.fromkeys(one.tops, hop), 0)

    def _amounts(self, one: _Reroute, now_ns: int) -> Array:
        """Report amounts that were not known when the change was reported."""
        if now_ns - one.begun_ns > _AMOUNTS_NS or self._is_looping(one, now_ns):
            one.times.clear()
            return np.empty(0, PATH)
        if one.late_lengths:
            if now_ns - one.changed_ns < one.wait_ns:
                return np.empty(0, PATH)
            for place, more in one.late_lengths.items():
                one.lengths[place] = one.lengths.get(place, 0) + more
            one.late_lengths.clear()
        grown = one.length != one.told_length
        rtt = self._rtt(one, now_ns) if grown or not one.told_rtt else None
        one.told_rtt |= rtt is not None
        if not grown and not rtt:
            return np.empty(0, PATH)
        series = np.array([min(one.flows) * HOP_COUNT + min(one.routers)])
        row = self._flows.rows(PathRowKind.ROUTE_AMOUNTS, series, now_ns)
        row["other_hop"], row["flows"], row["since_ns"] = (
            max(one.routers),
            len(one.flows),
            one.since_ns,
        )
        row["amount"], row["amount_ns"] = one.length if grown else 0, rtt or 0
        one.told_length = one.length
        return row

    def _is_looping(self, one: _Reroute, now_ns: int) -> bool:
        return bool(self._loops.is_looping(np.fromiter(one.flows, "i8"), now_ns).any())

    def _rtt(self, one: _Reroute, now_ns: int) -> int | None:
        """The change of the round-trip time to the end of the path, ns; 0: too small to be one;
        None: unknown yet."""
        found = self._difference(one, dict.fromkeys(one.tops, DESTINATION_HOP), 0)
        if found is not None:
            return found
        waited = now_ns - one.begun_ns >= _LENGTH_NS
        tops = {
            place: top
            for place, top in one.tops.items()
            if one.lengths or top not in one.routers or waited
        }
        return self._difference(one, tops, one.length)

    def _difference(self, one: _Reroute, hops: dict[int, int], more: int) -> int | None:
        """How much longer answers to flows (places) from `more` hops behind `hops` take than
        answers from these took before; 0 or None as `_rtt`."""
        series = np.concatenate([np.empty(0, "i8"), *(each for each, _ in one.times)])
        times = np.concatenate([np.empty(0, "i8"), *(each for _, each in one.times)])
        found, limits = [], []
        for place, hop in hops.items():
            level = one.levels[place][hop]
            mine = times[series == place * HOP_COUNT + hop + more]
            # A flow in a queue is far from its level anyway.
            in_queue = abs(level["run"]) >= QUIET_BLOCKS
            if level["blocks"] and len(mine) >= _MIN_TIMES and not in_queue:
                found.append(float(np.median(mine)) - float(level["level"]))
                limits.append(float(threshold_ns(level["level"], level["noise"])))
        if not found:
            return None
        # Flows whose times vary more would only blur the change.
        precise = np.array(limits) <= _PRECISE * min(limits)
        changes, least = np.array(found)[precise], np.array(limits)[precise]
        sure = np.abs(changes) >= least
        return round(float(np.median(changes[sure]))) if 2 * sure.sum() >= len(sure) else 0
