"""A probe's finished windows in the history, and the largest flows of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.api.models import UnknownError
from app.outputs.owners.owner_join import with_owners
from app.outputs.view import is_table
from bpf.arrays import Rows
from probes.flow.records import FLOW, FlowDirection
from probes.reports import ProbeInfo
from probes.snapshot import Item, Rest, Snapshot
from probes.sockets.records import PROBE as SOCKETS
from probes.sockets.records import SOCKETS_TABLE, sockets_of


def find(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> tuple[Snapshot, ...]:
    """Return window `number`, or the last whole one; `kept`: oldest first. Raises UnknownError."""
    windows: dict[int, list[Snapshot]] = {}
    for snapshot in kept:
        if snapshot.probe == info.name:
            # If several probes had the name in turn, the newest counts.
            if windows and snapshot.window < max(windows):
                windows.clear()
            windows.setdefault(snapshot.window, []).append(snapshot)
    if not windows:
        raise UnknownError(f"no window of {info.name} has ended yet")
    if number is None:
        newest = max(windows)
        if not _is_whole(windows[newest], info):
            newest = max((n for n in windows if n < newest), default=newest)
        return tuple(windows[newest])
    if number not in windows:
        raise UnknownError(
            f"window {number} of {info.name} is not kept",
            hint=f"windows {min(windows)} to {max(windows)} are",
        )
    return tuple(windows[number])


def find_flows(kept: Sequence[Snapshot], info: ProbeInfo, number: int | None) -> Snapshot:
    """Return a window of flows as `find` does, with its owners if it has some.

    Owners come a moment after their flows: the last window is the one before while they do.
    """
    flows = next(table for table in find(kept, info, number) if not table.metric)
    found = with_owners(flows, kept)
    if number is None and found is flows:
        for item in kept:
            if is_table(item, info.name, "") and item.window == flows.window - 1:
                before = with_owners(item, kept)
                return before if before is not item else flows
    return found


def _is_whole(tables: Sequence[Snapshot], info: ProbeInfo) -> bool:
    # Metrics are published one by one, and another generation may have other metrics.
    if not tables[0].is_metric or tables[0].generation != info.generation:
        return True
    return {f"{table.side}.{table.metric}" for table in tables}.issuperset(info.metrics)


class TopFlows:
    """Cuts windows of flows, and the sockets of the flows that are left out."""

    def __init__(self, most: int) -> None:
        """`most`: flows of a window that stay."""
        self._most = most
        self._last: Snapshot | None = None
        """The last window that was cut."""

    def of(self, item: Item) -> Item:
        """Return the item, or a table cut to the largest flows, with totals of the rest."""
        if is_table(item, "flow", ""):
            self._last = self._cut(item) if len(item.rows) > self._most else None
            return self._last or item
        if is_table(item, SOCKETS, SOCKETS_TABLE) and self._last is not None:
            flows = self._last
            if (flows.window, flows.end_ns) != (item.window, item.end_ns):
                return item
            places = np.unique(sockets_of(flows.rows, item.rows))
            return replace(item, rows=item.rows[places[places >= 0]], rest=flows.rest)
        return item

    def _cut(self, flows: Snapshot) -> Snapshot:
        """Keep the flows of the most bytes."""
        rows = flows.rows
        first = len(rows) - self._most
        order = np.argpartition(rows["bytes"], first)
        # The order of the rows stays.
        return replace(
            flows,
            rows=rows.take(np.sort(order[first:])),
            rest=tuple(_sums(rows.take(order[:first]))),
        )


def _sums(rows: Rows[FLOW]) -> list[Rest]:
    found = []
    for direction in FlowDirection:
        of = rows[rows["direction"] == direction]
        if len(of):
            packets, octets = (int(of[unit].sum()) for unit in ("packets", "bytes"))
            found.append(Rest(direction.name.lower(), len(of), packets, octets))
    return found
