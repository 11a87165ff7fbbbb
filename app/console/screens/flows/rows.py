"""Live flows as the rows of a table: filtered, sorted, and put into words when they are seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from app.console.live.flows import LiveView
from app.console.screens.flows.table import ECHO_TYPES, live_table
from app.console.screens.paths.model import Choice
from bpf.errors import UsageError
from probes.filter.table import RowTable
from probes.flow.filter import FlowFilter, address_text, protocol_name
from probes.flow.records import Array, FlowDirection
from probes.path.options import TracedFlow
from widgets.format import age, bit_rate, byte_size, clock, milliseconds, si
from widgets.table.columns import Column
from widgets.table.rows import Tones, Value
from widgets.tones import Tone

COLUMNS = (
    Column("direction", "Dir", 3, priority=1),
    Column("protocol", "Proto", 5, priority=1),
    Column("source", "Source", 21, grows=True),
    Column("destination", "Destination", 21, grows=True),
    Column("rate", "Rate", 11, "right", unit="bps"),
    Column("packet_rate", "Pkt/s", 6, "right", priority=2, unit="pps"),
    Column("packets", "Packets", 7, "right", priority=4),
    Column("bytes", "Bytes", 8, "right", priority=3),
    Column("age", "Age", 6, "right", priority=2, unit="s"),
    Column("rtt", "RTT ms", 6, "right", priority=5, hidden=True, unit="ms"),
    Column("idle", "Idle", 5, "right", priority=6, unit="s"),
    Column("flags", "TCP flags", 9, priority=7),
    Column("version", "IP", 2, "right", hidden=True),
    Column("source_port", "Src port", 8, "right", hidden=True),
    Column("destination_port", "Dst port", 8, "right", hidden=True),
    Column("size", "Size", 6, "right", hidden=True, unit="bytes"),
    Column("first", "First (UTC)", 11, hidden=True),
    Column("last", "Last (UTC)", 10, hidden=True),
    Column("totals", "Totals", 8, priority=1, hidden=True),
)
"""In the order of the cells of FlowRows."""

_FLAG_LETTERS = "FSRPAUEW"
_ARROWS = {FlowDirection.INGRESS: "in", FlowDirection.EGRESS: "out"}
_FIELDS = {
    "rate": "bit_rate", "flags": "tcp_flags", "first": "first_ns", "last": "last_ns",
    "age": "first_ns", "idle": "last_ns", "totals": "at_least",
}  # fmt: skip
"""Fields of LIVE that columns are of, where these have another name."""
_QUIET_NS = 3_000_000_000
"""Without a packet for longer a flow counts as idle, and is muted."""
_WITH_PORTS = frozenset({6, 17, 33, 132, 136})
_ICMP_TYPES = {
    1: {0: "reply", 3: "unreach", 5: "redirect", 8: "echo", 11: "exceeded"},
    58: {
        1: "unreach", 2: "too-big", 3: "exceeded", 128: "echo", 129: "reply", 133: "rs", 134: "ra",
        135: "ns", 136: "na", 143: "mld",
    },
}  # fmt: skip
"""Short names of message types (IANA), the rest by number."""
_TOTALS = ("exact", "at least")


@cache
def flow_columns(*, traced: bool, at_least: bool) -> tuple[Column, ...]:
    """COLUMNS, with RTTs shown if paths are traced, and `totals` if some are lower bounds."""
    changes: dict[str, dict[str, Any]] = {}
    if traced:
        changes["rtt"] = {"hidden": False}
    if at_least:
        changes |= {"totals": {"hidden": False}, "bytes": {"width": 9}}
    return tuple(replace(column, **changes.get(column.id, {})) for column in COLUMNS)


class FlowRows:
    """A ValueSource over a LiveView."""

    def __init__(
        self, view: LiveView, shown: FlowFilter, order: Array | None = None,
        table: RowTable | None = None,
    ) -> None:  # fmt: skip
        """`order` are the places of the rows that pass the filter, (n,); None: as they come.

        `table` is the view's with what else is known of its flows (`live_table`).
        """
        self._view, self._filter = view, shown
        self._table = live_table(view) if table is None else table
        if order is None:
            rows = view.rows
            order = np.flatnonzero(shown.mask(self._table)) if shown else np.arange(len(rows))
        self._order = order

    def ordered(self, position: int, *, descending: bool) -> FlowRows:
        """The same flows by a column."""
        values = _sort_values(self._table, COLUMNS[position].id)[self._order]
        if descending and values.dtype.kind == "f":
            values = np.where(np.isnan(values), -np.inf, values)
        order = self._order[np.argsort(values, kind="stable")]
        return self.at(order[::-1] if descending else order)

    def at(self, order: Array) -> FlowRows:
        """The flows at these places of the view, (n,), in their order."""
        return FlowRows(self._view, self._filter, order, self._table)

    @property
    def places(self) -> Array:
        """Where the rows are in the view, (n,)."""
        return self._order

    @property
    def rows(self) -> int:
        return len(self._order)

    @property
    def total(self) -> int:
        """Number of flows before the filter."""
        return len(self._view.rows)

    def key(self, index: int) -> Hashable:
        return int(self._view.rows["id"][self._order[index]])

    def index(self, key: Hashable) -> int | None:
        ids = self._view.rows["id"]
        at = int(np.searchsorted(ids, np.uint64(int(key))))  # type: ignore[call-overload]
        if at == len(ids) or int(ids[at]) != key:
            return None
        places = np.flatnonzero(self._order == at)
        return int(places[0]) if len(places) else None

    def cells(self, index: int) -> Sequence[str]:
        row = self._view.rows[self._order[index]]
        protocol = int(row["protocol"])
        now = self._view.now_ns
        idle_ns = now - int(row["last_ns"])
        bound = "≥" if row["at_least"] else ""
        return (
            _ARROWS[row["direction"]],
            protocol_name(protocol),
            endpoint(row, "source"),
            endpoint(row, "destination"),
            bit_rate(row["bit_rate"]),
            whole(row["packet_rate"]),
            bound + whole(row["packets"]),
            bound + byte_size(row["bytes"]),
            bound + age((now - int(row["first_ns"])) / 1e9),
            milliseconds(self._table["rtt"][self._order[index]]),
            age(idle_ns / 1e9) if idle_ns > _QUIET_NS else "",
            flag_letters(int(row["tcp_flags"])) if protocol == 6 else "",
            str(row["version"]),
            str(row["source_port"]) if protocol in _WITH_PORTS else "",
            str(row["destination_port"]) if protocol in _WITH_PORTS else "",
            whole(row["bytes"] / max(1, int(row["packets"]))),
            clock(int(row["first_ns"]) + self._view.to_utc_ns),
            clock(int(row["last_ns"]) + self._view.to_utc_ns),
            _TOTALS[row["at_least"]],
        )

    def values(self, position: int) -> Sequence[Value]:
        rows, name = self._view.rows.take(self._order), COLUMNS[position].id
        if name in ("source", "destination"):
            return _endpoints(rows, name)
        if name == "direction":
            return [_ARROWS[FlowDirection(value)] for value in rows[name].tolist()]
        if name == "protocol":
            return list(map(protocol_name, rows[name].tolist()))
        if name in ("age", "idle"):
            of = rows["first_ns" if name == "age" else "last_ns"]
            return ((self._view.now_ns - of) / 1e9).round(3).tolist()  # type: ignore[no-any-return]
        if name in ("first", "last"):
            from app.outputs.view import iso_all

            return iso_all(rows[f"{name}_ns"] + self._view.to_utc_ns)
        if name == "totals":
            return [_TOTALS[bound] for bound in rows["at_least"].tolist()]
        if name == "rtt":
            milli: Array = self._table[name][self._order] * 1e3
            return milli.round(3).tolist()  # type: ignore[no-any-return]
        values = _sort_values(RowTable(rows), name)
        if values.dtype.kind == "f":
            values = values.round(1)
        return values.tolist()  # type: ignore[no-any-return]

    def tones(self, index: int) -> Tones:
        row = self._view.rows[self._order[index]]
        quiet = self._view.now_ns - int(row["last_ns"]) > _QUIET_NS
        return Tone.MUTED if quiet else Tone.NORMAL


def endpoint(row: Any, end: str) -> str:
    """`192.0.2.1:443`, `[2001:db8::1]:443`, `192.0.2.1 echo`, or an address by itself.

    `row` is of dtype FLOW or LIVE, `end` is `source` or `destination`.
    """
    version, protocol, port = int(row["version"]), int(row["protocol"]), int(row[f"{end}_port"])
    return _endpoint(address_text(row[end].tobytes(), version), version, protocol, port, end)


def _endpoint(text: str, version: int, protocol: int, port: int, end: str) -> str:
    if protocol in _ICMP_TYPES and end == "destination":
        kind = port >> 8
        return f"{text} {_ICMP_TYPES[protocol].get(kind, kind)}"
    if protocol not in _WITH_PORTS:
        return text
    return f"{text}:{port}" if version == 4 else f"[{text}]:{port}"


def _endpoints(rows: Array, end: str) -> list[str]:
    """`endpoint` of each."""
    from app.outputs.view import addresses

    versions = rows["version"].tolist()
    texts = addresses(rows[end], versions)
    others = versions, rows["protocol"].tolist(), rows[f"{end}_port"].tolist(), repeat(end)
    return list(map(_endpoint, texts, *others))


def path_of(row: Any) -> Choice:
    """The path of a flow's packets out of this host; UsageError where it can't be traced.

    `row` is of dtype FLOW or LIVE. Of a flow into this host it is the path of its answers.
    """
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
    return Choice(address, flow)


def whole(value: float) -> str:
    """A count: no decimals below a thousand."""
    return f"{value:.0f}" if value < 999.5 else si(value)


def flag_letters(flags: int) -> str:
    """TCP flags as tcpdump orders them, a dot for each that was not seen: `.S.PA...`."""
    return "".join(letter if flags >> bit & 1 else "." for bit, letter in enumerate(_FLAG_LETTERS))


def _sort_values(rows: RowTable, name: str) -> Array:
    """What orders live flows (n,) by a column; the column's values, if it has numbers."""
    if name in ("source", "destination"):
        address = np.ascontiguousarray(rows[name]).view(">u8").reshape(-1, 2)
        ranks = np.empty(len(rows), "i8")
        ranks[np.lexsort((rows[f"{name}_port"], address[:, 1], address[:, 0], rows["version"]))] = (
            np.arange(len(rows))
        )
        return ranks
    if name == "size":
        sizes: Array = rows["bytes"] / np.maximum(rows["packets"], 1)
        return sizes
    if name in ("age", "idle"):
        return -rows[_FIELDS[name]]
    return rows[_FIELDS.get(name, name)]
