"""Flaps: a hop whose flows go by one router, by another, and by the first again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import Flows, series_of
from probes.path.analysis.reach import Reach
from probes.path.records import HOP_COUNT, PATH, Array, PathRowKind, no_rows

_CHANGES = 3
"""There, back, and there again."""
_PAUSE_NS = 60_000_000_000
"""Longest time between two changes of one flap."""
_STILL_NS = 5_000_000_000
_STILL = 3
"""A flap is over after so long, and so many times its usual pause, without a change."""
_AGAIN_NS = 50_000_000_000
"""A flap that goes on is reported again after so long."""
_PARTS = (PathRowKind.LONGER, PathRowKind.SHORTER, PathRowKind.SHIFT)


@dataclass(slots=True)
class _Turns:
    """Changes of one flow at one hop between two routers."""

    routers: frozenset[bytes]
    first_ns: int
    last_ns: int
    count: int = 1

    @property
    def pause_ns(self) -> int:
        """The mean time between two changes."""
        return (self.last_ns - self.first_ns) // max(1, self.count - 1)


@dataclass(slots=True)
class _Flap:
    """A reported flap on the way to one destination."""

    row: Array
    """Its last FLAP, dtype PATH (1,)."""
    has_lengths: bool = False
    """Whether the path became longer or shorter meanwhile."""


class Flaps:
    """Follows the changes at each hop of all flows. Rows are of FLAP and FLAP_OVER, for the first
    hop of a destination that flaps: later hops change with it."""

    def __init__(self, flows: Flows, changes: Changes, reach: Reach) -> None:
        self._flows = flows
        self._changes = changes
        self._reach = reach
        self._turns: dict[int, _Turns] = {}
        """By series."""
        self._flapping: set[int] = set()
        """Series with at least _CHANGES turns, the last one lately."""
        self._flaps: dict[int, _Flap] = {}
        """By address id of the destination."""

    def drop(self, places: Array) -> None:
        gone = set(series_of(places).tolist())
        self._flapping -= gone
        for series in self._turns.keys() & gone:
            del self._turns[series]

    def forget(self, destination: int, now_ns: int) -> Array:
        """Forget the flap on the way to an address (its address id). Return its end, dtype PATH
        (1,), or no row."""
        flap = self._flaps.pop(destination, None)
        return self._over(flap, now_ns) if flap else no_rows(PATH)

    def explain(self, places: Iterable[int], hops: Iterable[int]) -> bool:
        """Whether all these hops of flows go on changing between two routers."""
        series = {place * HOP_COUNT + hop for place, hop in product(places, hops)}
        return self._flapping.issuperset(series)

    def add(self, found: Array, now_ns: int) -> Array:
        """Rows (n,) of dtype PATH, from the other findings of this poll, `found` (n,): those that a
        flap causes are marked as folded."""
        changed = found[found["kind"] == PathRowKind.RESPONDER]
        for place, row in zip(self._flows.places(changed).tolist(), changed, strict=True):
            self._take(place * HOP_COUNT + int(row["hop"]), row)
        by_destination: dict[int, list[int]] = {}
        for series in sorted(self._flapping, key=lambda each: each % HOP_COUNT):
            turns = self._turns[series]
            still_ns = int(self._changes.facts["last_ns"][series]) - turns.last_ns
            if still_ns > max(_STILL_NS, _STILL * turns.pause_ns):
                self._flapping.discard(series)
                del self._turns[series]
            else:
                destination = int(self._flows.destinations[series // HOP_COUNT])
                by_destination.setdefault(destination, []).append(series)
        made = []
        for destination, flapping in by_destination.items():
            row, known = self._row(flapping, now_ns), self._flaps.get(destination)
            flap = self._flaps[destination] = known or _Flap(row)
            if known is None or now_ns - int(flap.row["at_ns"][0]) >= _AGAIN_NS:
                made.append(row)
            else:
                row["at_ns"] = flap.row["at_ns"]
            flap.row = row
        over = self._flaps.keys() - by_destination.keys()
        made += [self._over(self._flaps.pop(destination), now_ns) for destination in over]
        if self._flaps:
            self._fold(found)
        return np.concatenate([no_rows(PATH), *made], dtype=PATH)

    def _take(self, series: int, row: Any) -> None:
        """Take in a change of a hop."""
        routers = frozenset((row["responder"].tobytes(), row["previous"].tobytes()))
        since_ns, turns = int(row["since_ns"]), self._turns.get(series)
        if turns is None or turns.routers != routers or since_ns - turns.last_ns > _PAUSE_NS:
            self._turns[series] = _Turns(routers, since_ns, since_ns)
            self._flapping.discard(series)
            return
        turns.last_ns, turns.count = since_ns, turns.count + 1
        if turns.count >= _CHANGES:
            self._flapping.add(series)

    def _fold(self, found: Array) -> None:
        """Mark the changes of length and round-trip time of flows that flap."""
        at = np.flatnonzero(np.isin(found["kind"], _PARTS))
        places = self._flows.places(found[at])
        flapping = np.isin(places, [series // HOP_COUNT for series in self._flapping])
        found["folded"][at[flapping]] = 1
        lengths = flapping & (found["kind"][at] != PathRowKind.SHIFT)
        for destination in np.unique(self._flows.destinations[places[lengths]]).tolist():
            self._flaps[destination].has_lengths = True

    def _row(self, flapping: list[int], now_ns: int) -> Array:
        """The FLAP of the series of a destination that flap, ordered by hop."""
        first = [each for each in flapping if each % HOP_COUNT == flapping[0] % HOP_COUNT]
        series = max(first, key=lambda each: self._turns[each].count)
        row, turns = self._flows.rows(PathRowKind.FLAP, np.array([series]), now_ns), self._turns
        row["responder"] = now = self._changes.facts["responder"][series]
        (before,) = turns[series].routers - {now.tobytes()} or (now.tobytes(),)
        row["previous"] = np.frombuffer(before, "u1")
        row["since_ns"], row["amount"] = turns[series].first_ns, turns[series].count
        row["amount_ns"], row["flows"] = turns[series].pause_ns, len(first)
        return row

    def _over(self, flap: _Flap, now_ns: int) -> Array:
        row = flap.row.copy()
        row["kind"], row["at_ns"] = PathRowKind.FLAP_OVER, now_ns
        place = int(self._flows.places(row)[0])
        if flap.has_lengths and place >= 0:
            row["other_hop"] = self._reach.last_hop(place)
        return row
