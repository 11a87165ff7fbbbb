"""Flows over many windows: what a screen shows of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from probes.flow.records import FLOW, Array, hash_keys, key_words
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
    """Flows that were seen and are not in `rows`, because there were too many at a time."""


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
        rows, left_out = snapshot.rows, self._view.left_out
        if len(rows) > MAX_NEW_FLOWS:
            left_out += len(rows) - MAX_NEW_FLOWS
            rows = rows[np.argpartition(rows["bytes"], -MAX_NEW_FLOWS)[-MAX_NEW_FLOWS:]]
        old = self._view.rows
        merged = _merge(old, rows)
        now = snapshot.end_ns
        self._rate_start_ns = self._rate_start_ns or snapshot.start_ns
        elapsed = now - self._rate_start_ns
        if elapsed >= RATE_NS:
            merged["bit_rate"] = merged["new_bytes"] * (8e9 / elapsed)
            merged["packet_rate"] = merged["new_packets"] * (1e9 / elapsed)
            merged["new_bytes"] = 0
            merged["new_packets"] = 0
            self._rate_start_ns = now
        merged = merged[merged["last_ns"] > now - IDLE_NS]
        if len(merged) > MAX_FLOWS:
            left_out += len(merged) - MAX_FLOWS
            newest = np.argpartition(merged["last_ns"], -MAX_FLOWS)[-MAX_FLOWS:]
            merged = merged[np.sort(newest)]
        return LiveView(merged, now, left_out)


def _merge(old: Array, rows: Array) -> Array:
    """LIVE rows, by `id`, of the old ones and of a window's rows of dtype FLOW."""
    keys = key_words(rows)
    # A window has a flow once, but for its hash being another flow's: those two are shown as one.
    ids = hash_keys(keys)
    order = np.argsort(ids)
    ids, rows = ids[order], rows[order]
    at = np.searchsorted(old["id"], ids)
    known = np.zeros(len(ids), bool)
    inside = at < len(old)
    known[inside] = old["id"][at[inside]] == ids[inside]

    merged = np.empty(len(old) + int((~known).sum()), LIVE)
    fresh = np.zeros(len(merged) - len(old), LIVE)
    for name in FLOW.names or ():
        fresh[name] = rows[name][~known]
    fresh["id"] = ids[~known]
    fresh["new_packets"], fresh["new_bytes"] = fresh["packets"], fresh["bytes"]
    updated = old.copy()
    hits, news = at[known], rows[known]
    updated["packets"][hits] += news["packets"]
    updated["bytes"][hits] += news["bytes"]
    updated["new_packets"][hits] += news["packets"]
    updated["new_bytes"][hits] += news["bytes"]
    updated["tcp_flags"][hits] |= news["tcp_flags"]
    updated["last_ns"][hits] = np.maximum(updated["last_ns"][hits], news["last_ns"])
    merged[: len(old)] = updated
    merged[len(old) :] = fresh
    return merged[np.argsort(merged["id"], kind="stable")]
