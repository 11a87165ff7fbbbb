"""Flaps: a hop whose flows go by one router, by another, and by the first again."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.detector import Lasting
from probes.path.analysis.flows import Flows, address_ids
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, PathRowKind, no_rows

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
