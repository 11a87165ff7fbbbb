"""Sockets of the last minute and their owners, and the owners of flows."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from app.commands.flow_view import OWNER_KINDS, QUIET_NS
from app.console.live.flows import IDLE_NS, LiveView, places_of, salt_of
from bpf.arrays import Array, Rows, bytes_of
from bpf.quantities import counted, percent
from bpf.sockets.diag import TCP
from probes.flow.records import hash_keys
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

LIVE_SOCKET = np.dtype([
    *SOCKET.descr, ("id", "u8"), ("seen_ns", "i8"), ("recent_segments", "f4"),
    ("recent_retransmitted", "f4"),
])  # fmt: skip
"""SOCKET of the last window with packets of its ends, which ended at `seen_ns` (CLOCK_MONOTONIC).
`recent_*` are sums in which a segment weighs less with age: by 1/e after RECENT_S seconds."""
RECENT_S = 10.0


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
    """End of the last window that lacks sockets; 0: none."""

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
        old, sockets, cut_ns = self._view, self._view.sockets, self._view.cut_ns
        if (new := self._tables.get(SOCKETS_TABLE)) is not None and new.window == last.window:
            cut_ns = last.end_ns if new.lacks else cut_ns
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
    bytes_of(fresh)[:, : SOCKET.itemsize] = bytes_of(rows)
    fresh["id"], fresh["seen_ns"] = hash_keys(ends_of(rows)), end_ns
    at, known = places_of(fresh["id"], old["id"])
    decay = np.float32(math.exp(-seconds / RECENT_S))
    for name in ("segments", "retransmitted"):
        fresh[f"recent_{name}"] = rows[name]
        fresh[f"recent_{name}"][known] += old[f"recent_{name}"][at[known]] * decay
    stays = old["seen_ns"] > end_ns - IDLE_NS
    stays[at[known]] = False
    kept = old.take(np.flatnonzero(stays))
    # An idle connection rests, whatever limited it before.
    quiet = np.maximum(kept["seen_ns"], cut_ns) < end_ns - QUIET_NS
    # Sockets of UDP tell little.
    quiet &= (kept["limit"] > 0) | (kept["protocol"] == TCP)
    verdicts = resting(kept, kept["received"] > 0, kept["recent_segments"])
    kept["limit"] = np.where(quiet & (verdicts > 0), verdicts, kept["limit"])
    merged = np.concatenate((kept, fresh))
    return merged.take(np.argsort(merged["id"]))


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
