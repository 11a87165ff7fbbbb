"""Rows of flows: filtered and sorted arrays, formatted only in view."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from app.console.live.flows import LiveView
from app.console.screens.flows.columns import FLOWS
from app.console.screens.flows.flow import Flow, endpoint_text
from app.console.screens.flows.owners.ranks import code_texts, text_ranks
from app.console.screens.flows.table import ECHO_TYPES, LiveTable, live_table
from app.console.screens.paths.hop import PathKey
from app.console.tables.columns import Cells, columns, tone
from bpf.errors import UsageError
from probes.filter.network import address_text, protocol_name
from probes.flow.filter import FlowFilter
from probes.flow.records import Array, FlowDirection
from probes.path.options import TracedFlow
from widgets.table.rows import Column, Tones, Value
from widgets.tones import Tone


def flow_columns(view: LiveView, *, traced: bool, owned: bool = False) -> tuple[Column[Any], ...]:
    """Return the columns of flows, with RTTs of traced paths, and the main ones of owners.

    VLAN, tunnel, its id, and `totals` of lower bounds are there if one of the rows needs them, and
    the host in a view of several.
    """
    rows = view.rows
    needed = [name for name in ("vlan", "tunnel", "tunnel_id") if rows[name].any()]
    needed += ("process", "limit") * owned
    needed += ["node"] * (view.node_of is not None)
    changes: dict[str, dict[str, Any]] = {name: {"hidden": False} for name in needed}
    if traced:
        changes["rtt"] = {"hidden": False}
    if rows["at_least"].any():
        changes |= {"totals": {"hidden": False}, "bytes": {"width": 9}}
    return columns(FLOWS, **changes)


class FlowRows:
    """A ValueSource over a LiveView."""

    spec = FLOWS

    def __init__(
        self, view: LiveView, shown: FlowFilter, order: Array | None = None,
        table: LiveTable | None = None,
    ) -> None:  # fmt: skip
        """`order` has the places (n,) of the rows; None for those that pass, in the view's order.

        `table` is the view's `live_table`.
        """
        self.view, self._filter = view, shown
        self.table = live_table(view) if table is None else table
        if order is None:
            every = np.arange(len(view.rows))
            order = every[shown.mask(self.table)] if shown else every
        self.places = order

    def ordered(self, position: int, *, descending: bool) -> FlowRows:
        values = self._numbers(FLOWS.columns[position])[self.places]
        if descending and values.dtype.kind == "f":
            values = np.where(np.isnan(values), -np.inf, values)
        order = self.places[np.argsort(values, kind="stable")]
        return self.at(order[::-1] if descending else order)

    def _numbers(self, column: Column[Flow]) -> Array:
        found: Array = column.numbers(self) if column.numbers else self.table[column.id]
        return found

    def at(self, order: Array) -> FlowRows:
        """Return the flows at places (n,) of the view, in their order."""
        return FlowRows(self.view, self._filter, order, self.table)

    @property
    def rows(self) -> int:
        return len(self.places)

    @property
    def total(self) -> int:
        return len(self.view.rows)

    def key(self, index: int) -> Hashable:
        return int(self.view.rows["id"][self.places[index]])

    def index(self, key: Hashable) -> int | None:
        ids = self.view.rows["id"]
        at = int(np.searchsorted(ids, np.uint64(int(key))))  # type: ignore[call-overload]
        if at == len(ids) or int(ids[at]) != key:
            return None
        places = np.flatnonzero(self.places == at)
        return int(places[0]) if len(places) else None

    def cells(self, index: int) -> Cells[Flow]:
        return Cells(FLOWS, Flow(self.view, self.table, int(self.places[index])))

    def values(self, position: int) -> Sequence[Value]:
        column = FLOWS.columns[position]
        if column.values is not None:
            return column.values(self)
        values = self._numbers(column)[self.places]
        if values.dtype.kind == "f":
            values = values.round(1)
        return values.tolist()  # type: ignore[no-any-return]

    # Arrays (n,) of every flow of the view, for the order by a column

    def field(self, name: str) -> Array:
        """A field of LIVE."""
        return self.table[name]

    def address_ranks(self, end: str) -> Array:
        """Places by version, address and port of `source` or `destination`."""
        rows = self.view.rows
        address = np.ascontiguousarray(rows[end]).view(">u8").reshape(-1, 2)
        ranks = np.empty(len(rows), "i8")
        ranks[np.lexsort((rows[f"{end}_port"], address[:, 1], address[:, 0], rows["version"]))] = (
            np.arange(len(rows))
        )
        return ranks

    def owner_ranks(self, name: str) -> Array:
        """Ranks of a column of owners; without an owner the last ones."""
        return text_ranks(self.table, name)

    def owner_numbers(self, name: str) -> Array:
        """A column of the sockets' numbers."""
        return self.table[name]

    # Values of the rows, in their order, for files

    def owner_texts(self, name: str) -> list[str]:
        return code_texts(self.table, name, self.places)

    def words(self, name: str, words: Sequence[str]) -> list[str]:
        """The values of a field, in words."""
        return [words[value] for value in self._shown(name).tolist()]

    @property
    def protocol_names(self) -> list[str]:
        return list(map(protocol_name, self._shown("protocol").tolist()))

    def endpoints(self, end: str) -> list[str]:
        """Address and port of `source` or `destination`."""
        from app.outputs.view import addresses

        rows = self.view.rows.take(self.places)
        versions = rows["version"].tolist()
        texts = addresses(rows[end], versions)
        others = versions, rows["protocol"].tolist(), rows[f"{end}_port"].tolist(), repeat(end)
        return list(map(endpoint_text, texts, *others))

    def seconds(self, name: str, unit: float) -> list[float]:
        """A column of times in `unit`, with three decimals."""
        return (self._shown(name) / unit).round(3).tolist()  # type: ignore[no-any-return]

    def times(self, field: str) -> list[str]:
        """`first_ns` or `last_ns` as UTC, in ISO 8601."""
        from probes.tables.utc import iso_all

        return iso_all(self._shown(field) + self.view.to_utc_ns)

    def _shown(self, name: str) -> Array:
        found: Array = self.table[name][self.places]
        return found

    def tones(self, index: int) -> Tones:
        flow = Flow(self.view, self.table, int(self.places[index]))
        if flow.is_quiet:
            return Tone.MUTED
        if not len(self.table.owned.sockets):
            return Tone.NORMAL
        return [tone(column, flow) for column in FLOWS.columns]


def path_of(row: Any) -> PathKey:
    """Return the path of a flow's outgoing packets. Raises UsageError if it cannot be traced.

    `row` is of dtype FLOW or LIVE. The path of an incoming flow is that of its answers.
    """
    if row["tunnel"]:
        raise UsageError("this flow is inside a tunnel", hint="trace the tunnel's own flow")
    protocol = int(row["protocol"])
    leaves = row["direction"] == FlowDirection.EGRESS
    near, far = ("source", "destination") if leaves else ("destination", "source")
    address = address_text(row[far].tobytes(), int(row["version"]))
    if protocol in (6, 17):
        flow = TracedFlow(protocol, int(row[f"{near}_port"]), int(row[f"{far}_port"]))
    elif int(row["destination_port"]) >> 8 in ECHO_TYPES.get(protocol, ()):
        flow = TracedFlow(protocol, 0, 0)
    else:
        name = protocol_name(protocol)
        raise UsageError(
            f"this {name} flow has no path to trace", hint="TCP, UDP and ICMP echo have one"
        )
    return PathKey(address, flow)
