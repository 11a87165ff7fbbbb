"""Totals of flows over many windows."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from probes.flow.records import FLOW, FOLDS, hash_keys, key_words, words_of
from probes.snapshot import Snapshot

RATE_NS = 500_000_000
IDLE_NS = 60_000_000_000
CELLS = 12
CELL_NS = IDLE_NS // CELLS
LIVE = np.dtype(
    [*FLOW.descr, ("id", "u8"), ("bit_rate", "f8"), ("packet_rate", "f8")]
    + [(name, "u8") for name in ("new_packets", "new_bytes", "at_least")]
    + [("history", "f4", (CELLS,))]
)
"""FLOW with totals since the flow was first seen. A flow keeps its `id` until its row is removed.
Rates are per second over the last `RATE_NS` or more; `new_*` count towards the next rate.
`at_least` is 1 if the totals are lower bounds: the flow may have been left out before.
`history` has the bytes of the last minute in cells of CELL_NS, the newest last: 48 of the 192 bytes
of a row. An idle flow leaves after a minute, so no row has an older past."""
MAX_FLOWS = 65536
MAX_NEW_FLOWS = 16384
_MOST_GATHERED = 500_000
"""Rows of windows that are added at once."""
_NEVER_NS = np.iinfo("i8").min


def salt_of(node: str) -> int:
    """Return a host's number. Ids of its flows are combined with it by XOR, and so stay unique."""
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True, eq=False)
class Focus:
    """The flows that come first, and stay, if the table cannot hold every flow."""

    passes: Callable[[Array, int], Array] = lambda rows, now_ns: np.zeros(len(rows), bool)
    """Given rows of dtype LIVE (n,) and their moment (CLOCK_MONOTONIC), a mask (n,) of those that
    the reader asked for. The probe's thread calls it, and only if flows must be left out."""
    ids: Array = field(default_factory=lambda: np.empty(0, "u8"))
    """Flows that the reader sees now, by `id`, (m,)."""

    def mask(self, rows: Rows[LIVE], now_ns: int) -> Array:
        """True (n,) for rows of dtype LIVE (n,) that the focus is on."""
        return self.passes(rows, now_ns) | np.isin(rows["id"], self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class LiveView:
    """Flows at a moment. A view never changes: the next view has other arrays."""

    rows: Rows[LIVE]
    """dtype LIVE, (n,), ascending by `id`."""
    now_ns: int
    """End of the last window, CLOCK_MONOTONIC."""
    left_out: int
    """Flows that the last window had no room for in `rows`, because there were too many."""
    to_utc_ns: int = 0
    """Nanoseconds from CLOCK_MONOTONIC to UTC."""
    seconds: tuple[float, ...] = (0.0,) * CELLS
    """Seconds of windows in each cell of `history`; the last cell may still grow."""
    cut_ns: int = 0
    """End of the last window that lacks flows: a flow without a packet since then may have had one
    until then. 0: no window lacked any."""
    cut_cells: tuple[bool, ...] = (False,) * CELLS
    """Cells of `history` with such a window."""
    cut_rates: bool = False
    """Whether the rates are of such a window: they are lower bounds, and a rate of 0 is unknown."""
    lacks: str = ""
    """Why the last of these windows lacks flows: `Snapshot.lacks`."""
    nodes: tuple[str, ...] = ()
    """Names of the hosts of a fleet's view, of several hosts; else empty."""
    node_of: Array | None = None
    """Places in `nodes` of the hosts that saw the flows, (n,); None without `nodes`."""
    packed: bytes = b""
    """The rows under zstd, while a timeline keeps the view; `rows` is then empty."""

    @property
    def salts(self) -> Array | None:
        """The `salt_of` each flow's host, (n,) u8; None without `nodes`."""
        if self.node_of is None:
            return None
        return np.array([salt_of(node) for node in self.nodes], "u8")[self.node_of]

    def node(self, *flows: int) -> str:
        """Return the host that saw flows of these `id`s; empty for several, or without `nodes`."""
        if self.node_of is None:
            return ""
        found = set(self.node_of[np.isin(self.rows["id"], np.array(flows, "u8"))].tolist())
        return self.nodes[found.pop()] if len(found) == 1 else ""

    def idle_ns(self, last_ns: Array) -> Array:
        """Return for how long flows (n,) certainly had no packet; `last_ns`: their last packets."""
        return self.now_ns - np.maximum(last_ns, self.cut_ns)

    def line(self, places: Array) -> NDArray[np.float64]:
        """Return the bits per second of some rows together in the last minute, (CELLS,), newest
        last. A cell without a window, or of nothing in a window that lacks flows, is NaN."""
        sizes = self.rows["history"][places].sum(axis=0, dtype="f8")
        seconds = np.array(self.seconds)
        # Windows may be longer than cells: older cells are then no part of the minute.
        begun = np.cumsum(seconds[::-1])[::-1] - seconds
        seconds[(seconds == 0) | (begun >= IDLE_NS / 1e9)] = np.nan
        seconds[(sizes == 0) & self.cut_cells] = np.nan
        found: NDArray[np.float64] = sizes * 8 / seconds
        return found


class LiveFlows:
    """Adds up windows by flow. `add` is called by a probe's thread, `view` by any.

    Flows without a packet for a minute leave. Every packet of a flow that is here is added. Of more
    than MAX_NEW_FLOWS new flows in a window, those in focus are taken, then the largest: a flood
    must not slow down the thread that drains the tables. Of more than MAX_FLOWS in all, the longest
    idle ones leave, those in focus last. Files get every flow, whatever is shown here.
    """

    def __init__(self) -> None:
        self.focus = Focus()
        """Set by the reader's thread."""
        self._view = LiveView(np.empty(0, LIVE), 0, 0)
        self._rate_start_ns = 0
        self._has_rates = self._cut_rates = False
        self._left_out_ns: int | None = -IDLE_NS
        """End of the last window in which flows were left out; None: one before the first."""
        self._gathered: list[Snapshot] | None = None
        """Windows that are added at once; None: each is added when it comes."""
        self._lock = threading.Lock()

    def view(self) -> LiveView:
        if self._gathered is not None:
            with self._lock:
                self._add_gathered()
        return self._view

    def begin(self, *, late: bool) -> None:
        """Add the windows until the next view at once.

        `late`: flows of the first minute may be older, so their totals are lower bounds.
        """
        self._gathered = []
        if late:
            self._left_out_ns = None

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._gathered is None:
                self._view = self._added(snapshot)
                return
            self._gathered.append(snapshot)
            if sum(len(window.rows) for window in self._gathered) > _MOST_GATHERED:
                self._add_gathered()

    def _add_gathered(self) -> None:
        windows, self._gathered = self._gathered or [], None
        last_ns = windows[-1].end_ns if windows else 0
        # The last windows give rates.
        count = sum(last_ns - window.end_ns >= 2 * RATE_NS for window in windows)
        if count:
            sums = _Sums(windows[:count])
            for window in windows[:count]:
                self._view = self._added(window, sums)
            self._view = replace(self._view, rows=sums.rows())
            self._rate_start_ns, self._has_rates = self._view.now_ns, True
        for window in windows[count:]:
            self._view = self._added(window)

    def _added(self, snapshot: Snapshot, sums: _Sums | None = None) -> LiveView:
        """Return the view after a window; of `sums` it has neither rates nor all rows."""
        now = snapshot.end_ns
        if self._left_out_ns is None:
            self._left_out_ns = now
        # A flow that was left out longer ago would have left as idle, and begins anew.
        at_least = now - self._left_out_ns < IDLE_NS
        old, seconds, cut_cells = self._view, self._view.seconds, self._view.cut_cells
        # A window at the end of a cell belongs to it.
        if begins := (now - 1) // CELL_NS != (old.now_ns - 1) // CELL_NS:
            seconds, cut_cells = (*seconds[1:], 0.0), (*cut_cells[1:], False)
        seconds = (*seconds[:-1], seconds[-1] + snapshot.seconds)
        cut_cells = (*cut_cells[:-1], cut_cells[-1] or bool(snapshot.lacks))
        cut_ns = now if snapshot.lacks else old.cut_ns
        if sums is not None:
            merged, left_out = sums.add(snapshot, at_least=at_least, begins_cell=begins), 0
        else:
            merged, left_out = _merged(
                old.rows, snapshot, self.focus, at_least=at_least, begins_cell=begins
            )
        if snapshot.lacks:
            # Any flow may have had further packets in this window.
            merged["at_least"] = 1
            left_out += sum(one.flows for one in snapshot.rest)
        if left_out:
            self._left_out_ns = now
        if sums is None:
            self._rate(merged, snapshot, cut_ns)
        return LiveView(
            merged, now, left_out, snapshot.end_utc_ns - now, seconds, cut_ns, cut_cells,
            self._cut_rates, snapshot.lacks or old.lacks,
        )  # fmt: skip

    def _rate(self, merged: Rows[LIVE], snapshot: Snapshot, cut_ns: int) -> None:
        """Set the rates of the view's rows after a window, if they are due."""
        now = snapshot.end_ns
        self._rate_start_ns = self._rate_start_ns or snapshot.start_ns
        elapsed = max(1, now - self._rate_start_ns)
        # The first window may be short, and has a rate all the same.
        if elapsed >= RATE_NS or not self._has_rates:
            merged["bit_rate"] = merged["new_bytes"] * (8e9 / elapsed)
            merged["packet_rate"] = merged["new_packets"] * (1e9 / elapsed)
            self._cut_rates = cut_ns > self._rate_start_ns
        if elapsed >= RATE_NS:
            merged["new_bytes"] = merged["new_packets"] = 0
            self._rate_start_ns, self._has_rates = now, True


class _Sums:
    """Adds up many windows. Each flow has its row from the start, so a window costs its own flows
    only; a view of each would cost all."""

    def __init__(self, windows: Sequence[Snapshot]) -> None:
        ids = [hash_keys(key_words(window.rows)) for window in windows]
        self._ids, of = np.unique(np.concatenate(ids), return_inverse=True)
        self._places = iter(np.split(of, np.cumsum([len(each) for each in ids])))
        """The rows of each window's flows."""
        self._rows = np.zeros(len(self._ids), LIVE)
        self._rows["last_ns"] = _NEVER_NS
        self._before_ns, self._cell = 0, 0

    def add(self, window: Snapshot, *, at_least: bool, begins_cell: bool) -> Rows[LIVE]:
        """Add the next window, see `_merged`; return the rows of all windows' flows."""
        live, places, rows = self._rows, next(self._places), window.rows
        self._cell = (self._cell + begins_cell) % CELLS
        if begins_cell:
            live["history"][:, self._cell] = 0
        # Flows that had left as idle begin anew.
        begin = live["last_ns"][places] <= self._before_ns - IDLE_NS
        new, known = np.flatnonzero(begin), np.flatnonzero(~begin)
        at = places[new]
        fresh = _live(rows.take(new), self._ids[at])
        fresh["at_least"] = at_least
        fresh["history"] = 0
        fresh["history"][:, self._cell] = fresh["bytes"]
        _words(live)[at] = _words(fresh)
        _add_to(live, places[known], rows.take(known), self._cell)
        self._before_ns = window.end_ns
        return live

    def rows(self) -> Rows[LIVE]:
        """Return the rows of the flows that stay after the last window, without rates."""
        seen_ns = self._rows["last_ns"]
        stays = np.flatnonzero(seen_ns > self._before_ns - IDLE_NS)
        if len(stays) > MAX_FLOWS:
            stays = np.sort(stays[np.argsort(seen_ns[stays], kind="stable")[-MAX_FLOWS:]])
        rows = _words(self._rows).take(stays, axis=0).view(LIVE).ravel()
        rows["history"] = np.roll(rows["history"], -1 - self._cell, axis=1)
        rows["new_packets"] = rows["new_bytes"] = 0
        return rows


def _merged(
    old: Rows[LIVE], window: Snapshot, focus: Focus, *, at_least: bool, begins_cell: bool
) -> tuple[Array, int]:
    """LIVE rows, by `id`, of those in `old` and of a window; and how many flows have no row.

    `at_least` says whether flows that are new may have been left out before. `begins_cell` says
    whether the window is the first of a cell of `history`.
    """
    rows = window.rows
    if not len(old) and not len(rows):
        return old, 0
    # A window has a flow once, but for its hash being another flow's: those two are shown as one.
    ids, left_out = hash_keys(key_words(rows)), 0
    if len(rows) > MAX_NEW_FLOWS:
        _, known = places_of(ids, old["id"])
        left_out = max(0, len(rows) - int(known.sum()) - MAX_NEW_FLOWS)
    if left_out:
        new = np.flatnonzero(~known)
        taken = _foremost(_live(rows.take(new), ids[new]), window, focus)
        chosen = np.concatenate((np.flatnonzero(known), new[taken]))
        ids, rows = ids[chosen], rows.take(chosen)
    order = np.argsort(ids)
    # By take: indexing copies a structured array field by field.
    ids, rows = ids[order], rows.take(order)
    at, known = places_of(ids, old["id"])
    new = np.flatnonzero(~known)

    seen_ns = old["last_ns"].copy()
    seen_ns[at[known]] = rows["last_ns"][known]
    kept = seen_ns > window.end_ns - IDLE_NS
    evicted = max(0, int(kept.sum()) + len(new) - MAX_FLOWS)
    if evicted:
        leaving = len(old) + len(new) - MAX_FLOWS
        stays_ns = seen_ns + IDLE_NS * (kept & focus.mask(old, window.end_ns))
        kept[np.argpartition(stays_ns, leaving)[:leaving]] = False

    # Where each old row comes to stand among the old ones kept, and each new one among all.
    rank = np.concatenate(([0], np.cumsum(kept)))
    places = rank[at[new]] + np.arange(len(new))
    is_old = np.ones(int(rank[-1]) + len(new), bool)
    is_old[places] = False
    merged = np.empty(len(is_old), LIVE)
    _words(merged)[np.flatnonzero(is_old)] = _words(old).take(np.flatnonzero(kept), axis=0)

    history = merged["history"]
    if begins_cell:
        history[:, :-1] = history[:, 1:]
        history[:, -1] = 0
    staying = known.copy()
    staying[known] = kept[at[known]]
    hits = np.flatnonzero(is_old)[rank[at[staying]]]
    news = rows.take(np.flatnonzero(staying))
    _add_to(merged, hits, news, -1)
    for part in ("packets", "bytes"):
        merged[f"new_{part}"][hits] += news[part]
    fresh = _live(rows.take(new), ids[new])
    fresh["at_least"] = at_least
    _words(merged)[places] = _words(fresh)
    return merged, left_out + evicted


def _add_to(live: Rows[LIVE], places: Array, rows: Rows[FLOW], cell: int) -> None:
    """Add rows of a window to the rows of their flows, and their bytes to a cell of `history`."""
    for name, fold in FOLDS.items():
        live[name][places] = fold(live[name][places], rows[name])
    live["history"][places, cell] += rows["bytes"]


def places_of(ids: Array, sorted_ids: Array) -> tuple[Array, Array]:
    """Return the place of each of `ids` (n,) in `sorted_ids`, and whether it is there (n,)."""
    at = np.searchsorted(sorted_ids, ids)
    known = at < len(sorted_ids)
    known[known] = sorted_ids[at[known]] == ids[known]
    return at, known


def _foremost(live: Rows[LIVE], window: Snapshot, focus: Focus) -> Array:
    """Places of the MAX_NEW_FLOWS of the window's new flows that are taken: in focus, or large."""
    length_ns = max(1, window.end_ns - window.start_ns)
    live["bit_rate"] = live["bytes"] * (8e9 / length_ns)
    live["packet_rate"] = live["packets"] * (1e9 / length_ns)
    size = np.minimum(live["bytes"], np.uint64(1) << np.uint64(62))
    size += focus.mask(live, window.end_ns).astype("u8") << np.uint64(63)
    return np.argpartition(size, len(size) - MAX_NEW_FLOWS)[-MAX_NEW_FLOWS:]


def _live(rows: Rows[FLOW], ids: Array) -> Rows[LIVE]:
    """A window's rows of dtype FLOW (n,) as flows that are seen for the first time."""
    live = np.zeros(len(rows), LIVE)
    _words(live)[:, : FLOW.itemsize // 8] = words_of(rows)
    live["id"] = ids
    live["new_packets"], live["new_bytes"] = live["packets"], live["bytes"]
    live["history"][:, -1] = live["bytes"]
    return live


def _words(rows: Rows[LIVE]) -> Array:
    """Return the memory of rows of dtype LIVE (n,) as 64-bit words (n, 24), FLOW's first."""
    return rows.view("u8").reshape(len(rows), LIVE.itemsize // 8)
