"""The followed flows, with a series for each of their hops, and the bases of detectors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bpf.arrays import Array, Rows
from probes.flow.records import hash_keys
from probes.path.analysis.statistics import group_starts, packed, timed
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOP_COUNT,
    PATH,
    PathRowKind,
    no_rows,
)

MAX_FLOWS = 2048
MAX_FLOWS_OF_DESTINATION = 256
MAX_SERIES = MAX_FLOWS * HOP_COUNT
IDLE_NS = 60_000_000_000
"""A flow without a probe for so long is dropped."""

_KEY_WORDS = 5
_FLOW_MASK = np.uint64((1 << 48) - 1)
"""The flow's part of a row's fifth word; hop and outcome (or kind) follow."""
SERIES_MASK = np.array([~0, ~0, ~0, ~0, (1 << 56) - 1], "i8").view("u8")
"""Flow and hop in a row's first five words."""
_RESPONDER = HOP.fields["responder"][1] // 8  # type: ignore[index]
_FACTOR = np.uint64(int.from_bytes(os.urandom(8), "little") | 1)
"""Secret, so that nobody outside can make two routers look like one."""


def series_of(places: Array) -> Array:
    """The series (n * HOP_COUNT,) of flows by their places (n,)."""
    series: Array = (places[:, np.newaxis] * HOP_COUNT + np.arange(HOP_COUNT)).ravel()
    return series


def words_of(rows: Array) -> Array:
    """Rows (n,) of dtype HOP or PATH as 64-bit words (n, words of a row): the same memory."""
    return rows.view("u8").reshape(len(rows), rows.dtype.itemsize // 8)


def address_ids(words: Array) -> Array:
    """A number (n,) u8 for each address, from its two words (n, 2). 0: no address."""
    return words[:, 0] ^ (words[:, 1] * _FACTOR)


def hashes_of(rows: Rows[HOP] | Rows[PATH]) -> Array:
    """A number (n,) u8 for the flow of each row (n,) of dtype HOP."""
    return hash_keys(_keys_of(rows))


def _keys_of(rows: Rows[HOP] | Rows[PATH]) -> Array:
    """Keys (n, 5) u8 of the flows of rows (n,) of dtype HOP or PATH."""
    keys: Array = words_of(rows)[:, :_KEY_WORDS].copy()
    keys[:, -1] &= _FLOW_MASK
    return keys


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Answers of one poll, ordered by series and by time of sending."""

    rows: Rows[HOP]
    """dtype HOP, (n,)."""
    series: Array
    """(n,) i8."""
    rtts_ns: Array
    responders: Array
    """address_ids, (n,) u8."""
    which: Array
    """The series (m,) i8 with answers, ascending."""
    starts: Array
    """Where the answers of each series begin, (m,) i8."""
    counts: Array

    @classmethod
    def of(cls, rows: Rows[HOP], series: Array) -> Answers:
        rtts = np.maximum(rows["received_ns"] - rows["sent_ns"], 0)
        responders = address_ids(words_of(rows)[:, _RESPONDER : _RESPONDER + 2])
        starts = group_starts(series)
        counts = np.append(starts[1:], len(series)) - starts if len(starts) else starts
        return cls(rows, series, rtts, responders, series[starts], starts, counts)

    @property
    def last(self) -> Array:
        """The index (m,) of the last answer of each series."""
        return self.starts + self.counts - 1

    def only(self, where: Array) -> Answers:
        """The answers selected by `where` (n,) bool."""
        if where.all():
            return self
        at = np.flatnonzero(where)
        return Answers.of(self.rows.take(at), self.series[at])


@dataclass(frozen=True, slots=True, eq=False)
class HopBatch:
    """Probes of one poll that belong to followed flows."""

    rows: Rows[HOP]
    """dtype HOP, (n,), ordered by series and by time of sending; without overruns."""
    series: Array
    """(n,) i8: place * HOP_COUNT + hop."""
    answers: Answers
    now_ns: int

    @classmethod
    def of(cls, rows: Rows[HOP], places: Array, now_ns: int) -> HopBatch:
        """Order rows (n,) of dtype HOP of flows at `places` (n,)."""
        series = places * HOP_COUNT + rows["hop"]
        sent = rows["sent_ns"]
        order = np.argsort(packed(series, sent - sent.min(initial=now_ns)))
        rows, series = rows.take(order), series[order]
        answered = np.flatnonzero(timed(rows))
        answers = Answers.of(rows.take(answered), series[answered])
        return cls(rows, series, answers, now_ns)

    @property
    def places(self) -> Array:
        """(n,) i8."""
        return self.series // HOP_COUNT

    @property
    def transit(self) -> HopBatch:
        """The probes, without round trips of the flows themselves."""
        return self.only(self.series % HOP_COUNT != DESTINATION_HOP)

    def only(self, where: Array) -> HopBatch:
        """The rows selected by `where` (n,) bool."""
        if where.all():
            return self
        answers = self.answers.only(where[timed(self.rows)])
        at = np.flatnonzero(where)
        return HopBatch(self.rows.take(at), self.series[at], answers, self.now_ns)


class Flows:
    """Assigns places to flows: at most MAX_FLOWS, and MAX_FLOWS_OF_DESTINATION of one destination.
    A new flow takes the place of the longest idle one that had no probe since `keep_since_ns`. If
    no flow is idle, the new one is left out."""

    def __init__(self) -> None:
        self.keys = np.zeros((MAX_FLOWS, _KEY_WORDS), "u8")
        self.used = np.zeros(MAX_FLOWS, bool)
        self.seen_ns = np.zeros(MAX_FLOWS, "i8")
        self.destinations = np.zeros(MAX_FLOWS, "u8")
        """address_ids."""
        self.left_out = 0
        """Rows of flows without a place."""
        self.end = 0
        """All places from here on are free."""
        self._hashes = np.empty(0, "u8")
        self._places = np.empty(0, "i8")

    def find(self, rows: Rows[HOP], now_ns: int, keep_since_ns: int) -> tuple[Array, Array]:
        """Return the places (n,) i8 of the flows of rows (n,) of dtype HOP, -1: left out; and the
        places (k,) that were taken from other flows."""
        keys = _keys_of(rows)
        hashes = hash_keys(keys)
        places = self._look_up(hashes)
        evicted: Array = np.empty(0, "i8")
        # Before any flow is evicted: these are not idle.
        self.seen_ns[places[places >= 0]] = now_ns
        new = np.flatnonzero(places < 0)
        if len(new):
            _, first = np.unique(hashes[new], return_index=True)
            evicted = self._add(keys[new[first]], now_ns, keep_since_ns)
            places[new] = self._look_up(hashes[new])
            self.left_out += int((places < 0).sum())
        return places, evicted

    def places(self, rows: Rows[HOP] | Rows[PATH]) -> Array:
        """Places (n,) i8 of the flows of rows (n,) of dtype HOP or PATH, -1: not followed."""
        return self._look_up(hashes_of(rows))

    def responders(self, places: Array) -> Array:
        """The destinations (n, 16) u1 of places (n,)."""
        result: Array = np.ascontiguousarray(self.keys[places, :2]).view("u1").reshape(-1, 16)
        return result

    def release(self, places: Array) -> None:
        self.used[places] = False
        self._index()

    def idle(self, now_ns: int) -> Array:
        """Places (n,) of flows that have ended."""
        return np.flatnonzero(self.used & (self.seen_ns < now_ns - IDLE_NS))

    def to(self, destination: int) -> Array:
        """Places (n,) of the flows to an address (its address id)."""
        return np.flatnonzero(self.used & (self.destinations == np.uint64(destination)))

    def rows(self, kind: PathRowKind, series: Array, now_ns: int) -> Rows[PATH]:
        """Rows (n,) of dtype PATH for series (n,), with key, hop, kind and time set."""
        made = np.zeros(len(series), PATH)
        words_of(made)[:, :_KEY_WORDS] = self.keys[series // HOP_COUNT]
        made["hop"] = series % HOP_COUNT
        made["kind"] = kind
        made["at_ns"] = now_ns
        return made

    def _look_up(self, hashes: Array) -> Array:
        if not len(self._hashes):
            return np.full(len(hashes), -1)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        result: Array = np.where(self._hashes[at] == hashes, self._places[at], -1)
        return result

    def _add(self, keys: Array, now_ns: int, keep_since_ns: int) -> Array:
        """Give the flows of keys (n, 5) places; returns the places taken from others."""
        destinations = address_ids(keys[:, :2])
        evicted = []
        for destination in np.unique(destinations):
            mine = np.flatnonzero(destinations == destination)
            there = self.used & (self.destinations == destination)
            too_many = int(there.sum()) + len(mine) - MAX_FLOWS_OF_DESTINATION
            evicted.append(self._evict(there, too_many, keep_since_ns))
            mine = mine[: MAX_FLOWS_OF_DESTINATION - int((self.used & there).sum())]
            too_many = int(self.used.sum()) + len(mine) - MAX_FLOWS
            evicted.append(self._evict(self.used, too_many, keep_since_ns))
            places = np.flatnonzero(~self.used)[: len(mine)]
            self.keys[places] = keys[mine[: len(places)]]
            self.destinations[places] = destination
            self.seen_ns[places] = now_ns
            self.used[places] = True
        self._index()
        return np.concatenate(evicted)

    def _evict(self, candidates: Array, count: int, keep_since_ns: int) -> Array:
        idle = np.flatnonzero(candidates & (self.seen_ns < keep_since_ns))
        going = idle[np.argsort(self.seen_ns[idle])[: max(0, count)]]
        self.used[going] = False
        return going

    def _index(self) -> None:
        places = np.flatnonzero(self.used)
        hashes = hash_keys(self.keys[places])
        order = np.argsort(hashes)
        self._hashes, self._places = hashes[order], places[order]
        self.end = int(places[-1]) + 1 if len(places) else 0


AGAIN_NS = 50_000_000_000
"""A finding that lasts is reported again after so long: explanations know the last minute."""

Table = TypeVar("Table", bound=dict[Any, Any])


class Detector:
    """A part of the analysis, with state of flows and of destinations that it can forget."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self._arrays: list[Array] = []
        self._tables: list[dict[Any, Any]] = []

    def by_flow(self, dtype: Any, *shape: int, rows: int = MAX_FLOWS) -> Array:
        """Return state of flows, zeros (MAX_FLOWS, *shape)."""
        self._arrays.append(np.zeros((rows, *shape), dtype))
        return self._arrays[-1]

    def by_hop(self, dtype: Any) -> Array:
        """Return state of hops, zeros (MAX_SERIES,)."""
        return self.by_flow(dtype, rows=MAX_SERIES)

    def by_destination(self, table: Table) -> Table:
        """Return the table: its keys are address ids, or tuples that begin with one."""
        self._tables.append(table)
        return table

    def drop(self, places: Array) -> None:
        """Forget flows: their places (n,) get other ones."""
        for array in self._arrays:
            array.reshape(MAX_FLOWS, -1)[places] = np.zeros((), array.dtype)

    def forget(self, destination: int) -> None:
        """Forget an address (its address id)."""
        for table in self._tables:
            for key in [*table]:
                if destination == (key[0] if isinstance(key, tuple) else key):
                    del table[key]


class Lasting(Detector):
    """Reports one lasting finding of each destination: at its begin, again after AGAIN_NS, and at
    its end. The kind of the end is the next number."""

    def __init__(self, flows: Flows) -> None:
        super().__init__(flows)
        self.lasting: dict[int, Rows[PATH]] = self.by_destination({})
        """The newest row of each destination (address id), dtype PATH (1,)."""
        self._told_ns: dict[int, int] = self.by_destination({})

    def last(self, destination: int, row: Rows[PATH], now_ns: int) -> Array:
        """Keep the row of a finding that lasts. Return it if it is to be reported, else no row."""
        self.lasting[destination] = row
        if now_ns - self._told_ns.get(destination, -AGAIN_NS) < AGAIN_NS:
            return no_rows(PATH)
        self._told_ns[destination] = row["at_ns"] = now_ns
        return row.copy()

    def end(self, destination: int, now_ns: int) -> Array:
        """Return the row of the end of a finding, or no row if none lasts."""
        row = self.lasting.get(destination, no_rows(PATH)).copy()
        row["kind"], row["at_ns"] = row["kind"] + 1, now_ns
        for table in (self.lasting, self._told_ns):
            table.pop(destination, None)
        return row
