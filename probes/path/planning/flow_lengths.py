"""How far the path of each flow to one destination reaches, by the routers that answer.

An unanswered probe is a loss only if its flow's path reaches the probe's hop. Flows may take ways
of different lengths, and a way may become shorter at any moment.
"""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import address_ids, hashes_of, words_of
from probes.path.analysis.statistics import group_starts
from probes.path.records import DESTINATION_HOP, HOP, HOP_COUNT, ProbeOutcome
from probes.path.slots import overdue_after

MAX_FLOWS = 512
"""Flows whose paths are followed; others count for the destination as a whole."""
_IDLE_NS = 10_000_000_000
"""A flow without a probe for so long may lose its place."""
_SILENCE_NS = 2_500_000_000
"""A hop is gone after so long without an answer if no router before it has changed: a router may
answer once a second."""
_DARK = 5
"""A path becomes shorter after so many unanswered probes to hops that are gone."""
_ENDED = 3
"""A path ends after its last answering hop if so many probes to the next hops are unanswered."""
_ROUTE_NS = 10_000_000_000
"""A change of length belongs to a change of routers that is not older than this."""
_BALANCED_NS = 2_000_000_000
"""Two routers that both answered within this time serve the flow in turn."""
_FINDING_NS = 1_500_000_000
"""Hops that answer so soon after the first one were on the path before."""
_REGULAR_NS = 1_000_000_000
"""A destination that was heard so shortly before a change is usually heard."""
_SAME_CHANGE_NS = 1_000_000_000
_FADING = 0.9
_RESPONDER = HOP.fields["responder"][1] // 8  # type: ignore[index]

_HOPS = slice(0, DESTINATION_HOP)
_FLOW = np.dtype([
    ("first_ns", "i8", (HOP_COUNT,)), ("answered_ns", "i8", (HOP_COUNT,)),
    ("gap_ns", "i8", (HOP_COUNT,)), ("router", "u8", (HOP_COUNT,)), ("other", "u8", (HOP_COUNT,)),
    ("other_ns", "i8", (HOP_COUNT,)), ("changed_ns", "i8"), ("changed_hop", "i8"),
    ("rtt_ns", "i8"), ("dark_ns", "i8"), ("ended", "i8"), ("begin_ns", "i8"), ("seen_ns", "i8"),
    ("protocol", "i8"),
])  # fmt: skip
"""One flow. By hop: when the first answered probe was sent (1: when the path was found) and the
newest one (at DESTINATION_HOP: its newest round trip), the longest time between two of them lately,
the router (its address id), the router before, and when that one last answered. Then the
last change of routers and its first hop, the longest recent round trip, when the first unanswered
probe was sent to a hop that may be gone, the number of unanswered probes to the next hops after the
last one that answers (_ENDED: the path ends there), when the first answered probe of the flow and
its last probe were sent, and its protocol."""


class FlowLengths:
    """Follows the flows of one destination. Place 0 stands for all of them together."""

    def __init__(self, destination: bytes, timeout_ns: int) -> None:
        """`destination`: its address, 16 bytes. `timeout_ns`: of its probes."""
        self._patience_ns = overdue_after(timeout_ns)
        self._destination = np.frombuffer(destination, "u1")
        self._places: dict[int, int] = {}
        """By hash of the flow's key."""
        self._free: list[int] = []
        self._flows = np.zeros(1, _FLOW)

    @property
    def longest(self) -> int:
        """The farthest hop at which a router answered any flow."""
        return int(self._tops()[0])

    @property
    def slowest_ns(self) -> int:
        """The longest round trip lately."""
        return int(self._flows["rtt_ns"][0])

    def longest_of(self, protocol: int, now_ns: int) -> int:
        """The farthest hop at which a router answered the flows of a protocol that were probed
        lately; -1 without such a flow."""
        flows = self._flows[1:]
        chosen = (flows["protocol"] == protocol) & (flows["seen_ns"] > now_ns - _IDLE_NS)
        return int(self._tops()[1:][chosen].max(initial=-1))

    def take(self, rows: Rows[HOP], overdue: Array, heard_ns: int, now_ns: int) -> Array:
        """Take in new rows, and return a row for each flow whose path has become shorter.

        Each returned row has the new last hop and the time of the first unanswered probe beyond it
        as `sent_ns`; its outcome is BEYOND_PATH. All rows are of dtype HOP. `overdue` has the rows
        of InFlight.overdue. `heard_ns` is the time of the last packet from the destination, 0 if
        none came.
        """
        rows = rows[rows["outcome"] != ProbeOutcome.OVERRUN]
        places = self._find(rows, now_ns)
        answered = rows["outcome"] <= ProbeOutcome.UNREACHABLE
        at_end = (rows["responder"] == self._destination).all(axis=1)
        at_end |= rows["outcome"] == ProbeOutcome.UNREACHABLE
        timed = answered & (rows["hop"] == DESTINATION_HOP)
        at_end &= answered & ~timed
        answered_ns = self._flows["answered_ns"][:, DESTINATION_HOP]
        np.maximum.at(answered_ns, places[timed], rows["sent_ns"][timed])
        before = self._tops()
        self._flows["rtt_ns"] = self._flows["rtt_ns"] * _FADING
        of_router = answered & ~at_end & ~timed
        self._answers(rows[of_router], places[of_router])
        self._flows["ended"][self._tops() > before] = 0
        self._ends(rows[at_end], places[at_end])

        lost = (rows["outcome"] == ProbeOutcome.UNANSWERED) & (rows["hop"] != DESTINATION_HOP)
        waiting = np.concatenate([overdue, rows[lost]], dtype=HOP)
        found = self._shorter(
            waiting, np.append(self._find(overdue, now_ns), places[lost]), heard_ns, now_ns
        )
        tops = self._tops()
        hops = rows["hop"][lost].astype("i8")
        next_hops = (hops > tops[places[lost]]) & (hops <= tops[0])
        np.add.at(self._flows["ended"], places[lost][next_hops], 1)
        return found

    def beyond(self, rows: Rows[HOP]) -> Array:
        """Which unanswered rows (n,) of dtype HOP went beyond the end of their flow's path."""
        places, hops, tops = self._look_up(hashes_of(rows)), rows["hop"].astype("i8"), self._tops()
        # Before its first answer from there, a path may have been shorter.
        first = self._flows["first_ns"].astype("u8") - np.uint64(1)  # 0: never
        first[:, _HOPS] = np.minimum.accumulate(first[:, _HOPS][:, ::-1], axis=1)[:, ::-1]
        sent = rows["sent_ns"].astype("u8")
        beyond: Array = (sent <= first[places, hops]) & (hops != DESTINATION_HOP)
        doubtful = np.flatnonzero(beyond & (sent > first[0, hops]))
        keys = places[doubtful] * HOP_COUNT + hops[doubtful]
        for key in np.unique(keys).tolist():
            place, hop = divmod(key, HOP_COUNT)
            beyond[doubtful[keys == key]] = not self._reaches(place, hop, tops)
        return beyond

    def _reaches(self, place: int, hop: int, tops: Array) -> bool:
        """Whether a flow's path surely reaches a hop beyond its last answer: paths of other flows
        do that go by the same router, and none of them ends before."""
        last = int(tops[place])
        router = self._flows["router"][:, last]
        same = router == router[place]
        same[0] = False
        ends = same & (tops < hop) & (self._flows["ended"] >= _ENDED)
        return bool((same & (tops >= hop)).any() and not ends.any())

    def _find(self, rows: Rows[HOP], now_ns: int) -> Array:
        """Places (n,) of the flows of rows (n,); 0: left out, because too many are active."""
        hashes = hashes_of(rows)
        for key in np.unique(hashes).tolist():
            if key not in self._places and (place := self._new_place(now_ns)):
                self._places[key] = place
        places = self._look_up(hashes)
        self._flows["seen_ns"][places] = now_ns
        self._flows["protocol"][places] = rows["protocol"]
        return places

    def _look_up(self, hashes: Array) -> Array:
        each, which = np.unique(hashes, return_inverse=True)
        found = np.array([self._places.get(key, 0) for key in each.tolist()], "i8")
        return found[which] if len(found) else found

    def _new_place(self, now_ns: int) -> int:
        if not self._free and len(self._places) >= MAX_FLOWS:
            idle = self._flows["seen_ns"] < now_ns - _IDLE_NS
            for key, place in [pair for pair in self._places.items() if idle[pair[1]]]:
                del self._places[key]
                self._flows[place] = np.zeros((), _FLOW)
                self._free.append(place)
        if self._free:
            return self._free.pop()
        place = len(self._places) + 1
        if place > MAX_FLOWS:
            return 0
        if place >= len(self._flows):
            more = np.zeros(min(len(self._flows), MAX_FLOWS), _FLOW)
            self._flows = np.concatenate([self._flows, more])
        return place

    def _tops(self) -> Array:
        """The last hop (n,) i8 of each flow that a router answered; 0: none."""
        known = self._flows["answered_ns"][:, _HOPS] > 0
        last: Array = DESTINATION_HOP - 1 - np.argmax(known[:, ::-1], axis=1)
        return np.where(known.any(axis=1), last, 0)

    def _answers(self, rows: Rows[HOP], places: Array) -> None:
        """Take in answers of routers."""
        if not len(rows):
            return
        flows, both = self._flows, np.append(places[places > 0], np.zeros_like(places))
        rows = np.concatenate([rows[places > 0], rows], dtype=HOP)
        order = np.lexsort((rows["sent_ns"], rows["hop"], both))
        rows, both = rows.take(order), both[order]
        starts = group_starts(both * HOP_COUNT + rows["hop"])
        sizes = np.diff(starts, append=len(rows))
        at, last = (both[starts], rows["hop"][starts]), starts + sizes - 1
        sent, routers = rows["sent_ns"], address_ids(words_of(rows)[:, _RESPONDER : _RESPONDER + 2])
        before, newest = flows["answered_ns"][at], sent[last]
        gap = np.where(before > 0, sent[starts] - before, 0)
        flows["gap_ns"][at] = np.maximum(flows["gap_ns"][at] * _FADING, gap)
        flows["answered_ns"][at] = np.maximum(before, newest)
        begin = flows["begin_ns"]
        begin[at[0]] = np.where(begin[at[0]] > 0, begin[at[0]], sent[starts])
        first = np.where(sent[starts] - begin[at[0]] < _FINDING_NS, 1, sent[starts])
        flows["first_ns"][at] = np.where(before > 0, flows["first_ns"][at], first)
        np.maximum.at(flows["rtt_ns"], both, rows["received_ns"] - sent)

        # Another router, unless two of them take turns.
        now = np.repeat(routers[last], sizes)
        another = np.maximum.reduceat(np.where(routers != now, np.arange(len(rows)), -1), starts)
        old, new = flows["router"][at], routers[last]
        moved = (old != 0) & (old != new) & (newest > before)
        turn = (flows["other"][at] == new) & (newest - flows["other_ns"][at] < _BALANCED_NS)
        first = np.minimum.reduceat(np.where(routers == now, sent, np.iinfo("i8").max), starts)
        for place, hop, since in zip(
            *(each[moved & ~turn].tolist() for each in (*at, first)), strict=True
        ):
            if place:
                self._changed(place, hop, since)
        mixed = another >= 0
        flows["other"][at] = np.where(
            mixed, routers[another], np.where(moved, old, flows["other"][at])
        )
        flows["other_ns"][at] = np.where(
            mixed, sent[another], np.where(moved, before, flows["other_ns"][at])
        )
        flows["router"][at] = np.where(newest > before, new, old)

    def _changed(self, place: int, hop: int, since_ns: int) -> None:
        """Note a change of routers, of a flow and of the destination as a whole."""
        for flow in (self._flows[place], self._flows[0]):
            # Routers behind the first one change with it.
            if hop < flow["changed_hop"] or since_ns > flow["changed_ns"] + _SAME_CHANGE_NS:
                flow["changed_ns"], flow["changed_hop"] = since_ns, hop

    def _ends(self, rows: Rows[HOP], places: Array) -> None:
        """Take in answers of the destination, or of a router that does not deliver."""
        hops = rows["hop"].astype("i8")
        sent = np.zeros((len(self._flows), HOP_COUNT), "i8")
        np.maximum.at(sent, (places, hops), rows["sent_ns"])
        newest = _from_here_on(self._flows["answered_ns"])
        ended = (sent > 0) & (sent > newest)
        for place in np.unique(np.nonzero(ended)[0]).tolist():
            if place:
                self._cut(place, int(np.flatnonzero(ended[place])[0]) - 1)

    def _cut(self, place: int, last: int) -> None:
        """The path of one flow, or of all of them, has no router after hop `last`."""
        chosen = slice(place, place + 1) if place else slice(None)
        gone = slice(last + 1, DESTINATION_HOP)
        shorter = (self._flows["answered_ns"][chosen, gone] > 0).any(axis=1)
        for name in ("first_ns", "answered_ns", "gap_ns", "router", "other", "other_ns"):
            self._flows[name][chosen, gone] = 0
        self._flows["ended"][chosen] = np.where(shorter, _ENDED, self._flows["ended"][chosen])
        self._flows["ended"][place] = _ENDED
        if len(self._flows) > 1:
            answered = self._flows["answered_ns"]
            answered[0, _HOPS] = answered[1:, _HOPS].max(axis=0)
            self._flows["first_ns"][0, answered[0] == 0] = 0

    def _shorter(self, waiting: Rows[HOP], places: Array, heard_ns: int, now_ns: int) -> Array:
        """Find paths that have become shorter, from unanswered probes of flows at `places` (n,)."""
        before = self._tops()
        hops = waiting["hop"].astype("i8")
        both, at = np.append(places, np.zeros_like(places)), np.tile(hops, 2)
        sent = np.tile(waiting["sent_ns"], 2)
        patience = np.maximum(self._patience_ns, 4 * self._flows["rtt_ns"])
        patience = np.maximum(patience, 3 * self._flows["gap_ns"][np.arange(len(before)), before])
        ended = np.tile(waiting["outcome"] == ProbeOutcome.UNANSWERED, 2)
        dark = (at <= before[both]) & (ended | (now_ns - sent >= patience[both]))
        dark &= sent > _from_here_on(self._flows["answered_ns"])[both, at]
        for place in np.unique(both[dark]).tolist()[::-1]:
            mine = dark & (both == place)
            self._shorten(place, at[mine], sent[mine], heard_ns, now_ns)
        after = self._tops()
        mine = (places > 0) & (after[places] < before[places]) & (hops > after[places])
        mine = np.flatnonzero(mine)
        mine = mine[np.argsort(waiting["sent_ns"][mine], kind="stable")]
        mine = mine[np.unique(places[mine], return_index=True)[1]]
        found = waiting[mine]
        found["hop"] = after[places[mine]]
        found["outcome"] = ProbeOutcome.BEYOND_PATH
        return found

    def _shorten(self, place: int, hops: Array, sent: Array, heard_ns: int, now_ns: int) -> None:
        """Cut a path if the unanswered probes to `hops` (n,), sent at `sent`, prove its new end."""
        flow, last = self._flows[place], int(self._tops()[place])
        counts = np.bincount(hops, minlength=HOP_COUNT)
        # One loss at a hop before the end proves nothing.
        gone = (counts >= 2) | (flow["answered_ns"] == 0)
        gone[last] = counts[last] > 0
        while last and gone[last]:
            last -= 1
        beyond = hops > last
        if not last or beyond.sum() < _DARK:
            return
        until = int(flow["answered_ns"][last + 1 : DESTINATION_HOP].max())
        if flow["dark_ns"] <= until:
            flow["dark_ns"] = sent[beyond].min()
        since = int(flow["dark_ns"])
        rerouted = flow["changed_hop"] <= last and flow["changed_ns"] >= until - flow["rtt_ns"]
        rerouted &= flow["changed_ns"] > now_ns - _ROUTE_NS
        # Round trips may have ended, or be of one flow only: they tell nothing of all flows.
        own = int(flow["answered_ns"][DESTINATION_HOP]) if place else 0
        heard = own or heard_ns
        if heard and heard <= since and since - heard < _REGULAR_NS:
            return  # Behind hop `last` packets are lost, too.
        alone = place == 0 or len(self._places) == 1 or own > 0
        passes = alone and heard > since and now_ns - since >= _SILENCE_NS
        if rerouted or passes:
            self._cut(place, last)


def _from_here_on(times: Array) -> Array:
    """The latest of the times (n, HOP_COUNT) of each hop and all later ones."""
    latest = np.zeros_like(times)
    latest[:, _HOPS] = np.maximum.accumulate(times[:, _HOPS][:, ::-1], axis=1)[:, ::-1]
    return latest
