"""Totals of flows over many windows, and their owners and sockets in the last minute."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.commands.flow_view import OWNER_KINDS
from bpf.arrays import Array, Rows
from bpf.quantities import counted, percent
from bpf.sockets.diag import TCP
from probes.flow.records import FLOW, hash_keys, key_words, words_of
from probes.snapshot import Snapshot
from probes.sockets.limits import resting
from probes.sockets.records import (
    OWNER,
    OWNER_TEXTS,
    OWNERS_TABLE,
    OWNERSHIP,
    OWNERSHIP_TABLE,
    SOCKET,
    SOCKETS_TABLE,
    Owned,
    Reason,
    ends_of,
    owned_share,
    sockets_of,
)

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
    """End of the last window that the CPU budget cut: a flow without a packet since then may have
    had one until then. 0: none was cut."""
    cut_cells: tuple[bool, ...] = (False,) * CELLS
    """Cells of `history` with such a window."""
    cut_rates: bool = False
    """Whether the rates are of such a window: a rate of 0 is unknown."""
    nodes: tuple[str, ...] = ()
    """Names of the hosts of a fleet's view, of several hosts; else empty."""
    node_of: Array | None = None
    """Places in `nodes` of the hosts that saw the flows, (n,); None without `nodes`."""

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
        last. A cell without a window, or of nothing in a window that was cut, is NaN."""
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
        self._lock = threading.Lock()

    def view(self) -> LiveView:
        return self._view

    def begin_late(self) -> None:
        """Take all flows of the first minute for older ones: their totals are lower bounds."""
        self._left_out_ns = None

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._view = self._added(snapshot)

    def _added(self, snapshot: Snapshot) -> LiveView:
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
        cut_cells = (*cut_cells[:-1], cut_cells[-1] or snapshot.cut)
        cut_ns = now if snapshot.cut else old.cut_ns
        merged, left_out = _merged(
            old.rows, snapshot, self.focus, at_least=at_least, begins_cell=begins
        )
        if snapshot.rest or snapshot.cut:
            # Any flow may have had further packets in this window.
            merged["at_least"] = 1
            left_out += sum(one.flows for one in snapshot.rest)
        if left_out:
            self._left_out_ns = now
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
        return LiveView(
            merged, now, left_out, snapshot.end_utc_ns - now, seconds, cut_ns, cut_cells,
            self._cut_rates,
        )  # fmt: skip


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
    for part in ("packets", "bytes"):
        merged[part][hits] += news[part]
        merged[f"new_{part}"][hits] += news[part]
    history[hits, -1] += news["bytes"]
    merged["tcp_flags"][hits] |= news["tcp_flags"]
    merged["last_ns"][hits] = np.maximum(merged["last_ns"][hits], news["last_ns"])
    fresh = _live(rows.take(new), ids[new])
    fresh["at_least"] = at_least
    _words(merged)[places] = _words(fresh)
    return merged, left_out + evicted


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


LIVE_SOCKET = np.dtype([
    *SOCKET.descr, ("id", "u8"), ("seen_ns", "i8"), ("recent_segments", "f4"),
    ("recent_retransmitted", "f4"),
])  # fmt: skip
"""SOCKET of the last window with packets of its ends, which ended at `seen_ns` (CLOCK_MONOTONIC).
`recent_*` are sums in which a segment weighs less with age: by 1/e after RECENT_S seconds."""
RECENT_S = 10.0
_IDLE_AFTER_NS = 3_000_000_000
"""Without packets for longer a connection rests, whatever limited it before."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnerView:
    """Sockets and owners at a moment. A view never changes."""

    sockets: Rows[LIVE_SOCKET] = field(default_factory=lambda: np.empty(0, LIVE_SOCKET))
    """dtype LIVE_SOCKET, (n,), ascending by `id`."""
    owners: Rows[OWNER] = field(default_factory=lambda: np.empty(0, OWNER))
    """dtype OWNER, (m,), ascending by `number`."""
    ownership: Rows[OWNERSHIP] = field(default_factory=lambda: np.empty(0, OWNERSHIP))
    """dtype OWNERSHIP, (k,): the flows of the last window by reason."""
    now_ns: int = 0
    """End of that window, CLOCK_MONOTONIC; 0: the probe has answered for no window."""
    sizes: tuple[int, ...] = ()
    """Sockets of each host, in the order of the flows' `nodes`: each host's flows have its own.
    Empty in a view of one host; of several, `sockets` are in the order of their hosts."""
    cut_ns: int = 0
    """End of the last window in which the CPU budget left sockets out; 0: none."""

    def __bool__(self) -> bool:
        """Whether the probe has answered for a window."""
        return self.now_ns > 0

    @property
    def kinds(self) -> list[str]:
        """Kinds of groups by owner that at least one owner has."""
        return [kind for kind, noun in OWNER_KINDS.items()
                if (self.owners[OWNER_TEXTS[noun]] != b"").any()]  # fmt: skip

    @property
    def share(self) -> float | None:
        """Share of the last window's local bytes that have an owner, see `owned_share`."""
        return owned_share(self.ownership)

    def help(self) -> tuple[str, list[tuple[str, str]]]:
        """Return a title and a line for each reason of the last window, the most bytes first."""
        rows = self.ownership[np.argsort(self.ownership["bytes"], kind="stable")[::-1]]
        total = max(1, int(rows["bytes"].sum()))
        share = "nothing" if self.share is None else percent(self.share)
        title = f"Owned {share} of the last window's bytes, without forwarded ones"
        reasons = tuple(Reason)
        return title, [
            (f"{reasons[row['reason']].label} {percent(int(row['bytes']) / total)}",
             f"{counted(int(row['flows']), 'flow')}: {reasons[row['reason']].about}")
            for row in rows
        ]  # fmt: skip


NO_OWNERS = OwnerView()


class LiveOwners:
    """Keeps the sockets of the last minute. A probe's thread calls `add`, any thread `view`."""

    def __init__(self) -> None:
        self._view = OwnerView()
        self._tables: dict[str, Snapshot] = {}
        """The newest of each table."""
        self._lock = threading.Lock()

    def view(self) -> OwnerView:
        return self._view

    def clear(self) -> None:
        """Forget all: nobody looks for owners any more."""
        with self._lock:
            self._view, self._tables = OwnerView(), {}

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._tables[snapshot.metric] = snapshot
            # The last table of a window.
            if snapshot.metric == OWNERSHIP_TABLE:
                self._view = self._added(snapshot)

    def _added(self, last: Snapshot) -> OwnerView:
        old, sockets = self._view, self._view.sockets
        cut_ns = last.end_ns if last.cut else old.cut_ns
        if (new := self._tables.get(SOCKETS_TABLE)) is not None and new.window == last.window:
            sockets = _with_window(sockets, new.rows, last.end_ns, last.seconds, cut_ns)
        owners = old.owners
        if (table := self._tables.get(OWNERS_TABLE)) is not None:
            kept = owners[~np.isin(owners["number"], table.rows["number"])]
            owners = np.concatenate((kept, table.rows), dtype=OWNER)
            owners = owners[np.isin(owners["number"], sockets["owner"])]
            owners = owners[np.argsort(owners["number"])]
        return OwnerView(sockets, owners, last.rows, last.end_ns, cut_ns=cut_ns)


def _with_window(
    old: Rows[LIVE_SOCKET], rows: Rows[SOCKET], end_ns: int, seconds: float, cut_ns: int
) -> Array:
    """Return LIVE_SOCKET rows of `old` and of a window's `rows` of dtype SOCKET, by `id`. Until
    `cut_ns` sockets may have been left out, and so are not known to rest."""
    fresh = np.zeros(len(rows), LIVE_SOCKET)
    _bytes(fresh)[:, : SOCKET.itemsize] = _bytes(rows)
    fresh["id"], fresh["seen_ns"] = hash_keys(ends_of(rows)), end_ns
    at, known = places_of(fresh["id"], old["id"])
    decay = np.float32(math.exp(-seconds / RECENT_S))
    for name in ("segments", "retransmitted"):
        fresh[f"recent_{name}"] = rows[name]
        fresh[f"recent_{name}"][known] += old[f"recent_{name}"][at[known]] * decay
    stays = old["seen_ns"] > end_ns - IDLE_NS
    stays[at[known]] = False
    kept = old.take(np.flatnonzero(stays))
    quiet = np.maximum(kept["seen_ns"], cut_ns) < end_ns - _IDLE_AFTER_NS
    # Sockets of UDP tell little.
    quiet &= (kept["limit"] > 0) | (kept["protocol"] == TCP)
    verdicts = resting(kept, kept["received"] > 0, kept["recent_segments"])
    kept["limit"] = np.where(quiet & (verdicts > 0), verdicts, kept["limit"])
    merged = np.concatenate((kept, fresh))
    return merged.take(np.argsort(merged["id"]))


def _bytes(rows: Array) -> NDArray[np.uint8]:
    """Return the memory of rows (n,), (n, size of a row)."""
    return np.ascontiguousarray(rows).view("u1").reshape(len(rows), rows.dtype.itemsize)


@lru_cache(maxsize=2)
def owned(flows: LiveView, owners: OwnerView) -> Owned:
    """Return the owners of the rows of a view: all screens that show a frame share them."""
    if flows.node_of is None:
        return Owned(flows.rows, owners.sockets, owners.owners)
    # Two hosts may use the same addresses.
    at, begin = np.full(len(flows.rows), -1, "i8"), 0
    for node, size in enumerate(owners.sizes):
        places = np.flatnonzero(flows.node_of == node)
        sockets = owners.sockets[begin : begin + size]
        own = sockets_of(flows.rows.take(places), sockets)
        at[places] = np.where(own < 0, -1, own + begin)
        begin += size
    found = Owned(flows.rows, owners.sockets, owners.owners, at)
    found.salts, found.nodes = flows.salts, {salt_of(node): node for node in flows.nodes}
    return found
