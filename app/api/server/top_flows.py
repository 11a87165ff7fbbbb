"""Windows of flows cut to their largest flows, for readers of many hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.outputs.view import is_table
from bpf.arrays import Rows
from probes.flow.records import FLOW, FlowDirection
from probes.snapshot import Item, Rest, Snapshot
from probes.sockets.records import PROBE as SOCKETS
from probes.sockets.records import SOCKETS_TABLE, sockets_of


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
        if is_table(item, SOCKETS, SOCKETS_TABLE) and (flows := self._last_of(item)) is not None:
            places = np.unique(sockets_of(flows.rows, item.rows))
            return replace(item, rows=item.rows[places[places >= 0]], rest=flows.rest)
        return item

    def _last_of(self, sockets: Snapshot) -> Snapshot | None:
        last, window = self._last, (sockets.window, sockets.end_ns)
        return last if last is not None and (last.window, last.end_ns) == window else None

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
