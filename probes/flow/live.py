"""Flows over many windows: what a screen shows of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from probes.flow.records import FLOW, Array, hash_keys, key_words, words_of
from probes.snapshot import Snapshot

LIVE = np.dtype(
    [
        *[(name, FLOW[name]) for name in FLOW.names or ()],
        ("id", "u8"),
        ("bit_rate", "f8"),
        ("packet_rate", "f8"),
        ("new_packets", "u8"),
        ("new_bytes", "u8"),
    ]
)
"""FLOW with totals since the flow was first seen; `id` is the same for a flow as long as it is
here; rates are per second over the last `RATE_NS` or more; `new_*` is what the next rate is made
of."""

_SUMS = (
    ("packets", "packets"),
    ("bytes", "bytes"),
    ("new_packets", "packets"),
    ("new_bytes", "bytes"),
)
"""Columns of LIVE, and those of FLOW that are added to them."""
RATE_NS = 500_000_000
IDLE_NS = 60_000_000_000
MAX_FLOWS = 65536
MAX_NEW_FLOWS = 16384


@dataclass(frozen=True, slots=True, eq=False)
class LiveView:
    """Flows at a moment. Never changed: the next view has arrays of its own."""

    rows: Array
    """dtype LIVE, (n,), ascending by `id`."""
    now_ns: int
    """End of the last window, CLOCK_MONOTONIC."""
    left_out: int
    """Flows that the last window had no room for in `rows`, because there were too many."""
    to_utc_ns: int = 0
    """What makes UTC of the rows' times."""


class LiveFlows:
    """Adds up windows by flow. `add` is called by a probe's thread, `view` by any.

    Flows without a packet for a minute leave; of more flows than MAX_FLOWS the longest idle ones.
    Of a window with more than MAX_NEW_FLOWS flows only the largest are taken: a flood must not
    slow down the thread that drains the tables. Files get every flow, whatever is shown here.
    """

    def __init__(self) -> None:
        self._view = LiveView(np.empty(0, LIVE), 0, 0)
        self._rate_start_ns = 0
        self._lock = threading.Lock()

    def view(self) -> LiveView:
        return self._view

    def add(self, snapshot: Snapshot) -> None:
        """Take in a window."""
        with self._lock:
            self._view = self._added(snapshot)

    def _added(self, snapshot: Snapshot) -> LiveView:
        rows, left_out = snapshot.rows, 0
        if len(rows) > MAX_NEW_FLOWS:
            left_out = len(rows) - MAX_NEW_FLOWS
            rows = rows.take(np.argpartition(rows["bytes"], left_out)[left_out:])
        now = snapshot.end_ns
        merged, evicted = _merged(self._view.rows, rows, now - IDLE_NS)
        self._rate_start_ns = self._rate_start_ns or snapshot.start_ns
        elapsed = now - self._rate_start_ns
        if elapsed >= RATE_NS:
            merged["bit_rate"] = merged["new_bytes"] * (8e9 / elapsed)
            merged["packet_rate"] = merged["new_packets"] * (1e9 / elapsed)
            merged["new_bytes"] = 0
            merged["new_packets"] = 0
            self._rate_start_ns = now
        return LiveView(merged, now, left_out + evicted, snapshot.end_utc_ns - now)


def _merged(old: Array, rows: Array, idle_since_ns: int) -> tuple[Array, int]:
    """LIVE rows, by `id`, of those in `old` and of a window's of dtype FLOW; how many had to go."""
    if not len(old) and not len(rows):
        return old, 0
    # A window has a flow once, but for its hash being another flow's: those two are shown as one.
    ids = hash_keys(key_words(rows))
    order = np.argsort(ids)
    # By take: indexing copies a structured array field by field.
    ids, rows = ids[order], rows.take(order)
    at = np.searchsorted(old["id"], ids)
    known = at < len(old)
    known[known] = old["id"][at[known]] == ids[known]
    new = np.flatnonzero(~known)

    seen_ns = old["last_ns"].copy()
    seen_ns[at[known]] = rows["last_ns"][known]
    kept = seen_ns > idle_since_ns
    evicted = max(0, int(kept.sum()) + len(new) - MAX_FLOWS)
    if evicted:
        leaving = len(old) + len(new) - MAX_FLOWS
        kept[np.argpartition(seen_ns, leaving)[:leaving]] = False

    # Where each old row comes to stand among the old ones kept, and each new one among all.
    rank = np.concatenate(([0], np.cumsum(kept)))
    places = rank[at[new]] + np.arange(len(new))
    is_old = np.ones(int(rank[-1]) + len(new), bool)
    is_old[places] = False
    merged = np.empty(len(is_old), LIVE)
    _words(merged)[np.flatnonzero(is_old)] = _words(old).take(np.flatnonzero(kept), axis=0)

    staying = known.copy()
    staying[known] = kept[at[known]]
    hits = np.flatnonzero(is_old)[rank[at[staying]]]
    news = rows.take(np.flatnonzero(staying))
    for total, part in _SUMS:
        merged[total][hits] += news[part]
    merged["tcp_flags"][hits] |= news["tcp_flags"]
    merged["last_ns"][hits] = np.maximum(merged["last_ns"][hits], news["last_ns"])

    fresh = np.zeros(len(new), LIVE)
    _words(fresh)[:, : FLOW.itemsize // 8] = words_of(rows.take(new))
    fresh["id"] = ids[new]
    fresh["new_packets"], fresh["new_bytes"] = fresh["packets"], fresh["bytes"]
    _words(merged)[places] = _words(fresh)
    return merged, evicted


def _words(rows: Array) -> Array:
    """Rows of dtype LIVE (n,) as 64-bit words (n, 14), FLOW's first: the same memory."""
    return rows.view("u8").reshape(len(rows), LIVE.itemsize // 8)
