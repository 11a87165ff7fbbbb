"""Live flows as the rows of a table: filtered, sorted, and put into words when they are seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from app.console.path_model import Choice
from bpf.errors import UsageError
from probes.flow.filter import FlowFilter, address_text, protocol_name
from probes.flow.live import LiveView
from probes.flow.records import Array, Direction
from probes.path import TracedFlow
from widgets.columns import Column
from widgets.format import age, bit_rate, byte_size, si
from widgets.rows import Tones
from widgets.tones import Tone

COLUMNS = (
    Column("direction", "Dir", 3, priority=1),
    Column("protocol", "Proto", 5, priority=1),
    Column("source", "Source", 21, grows=True),
    Column("destination", "Destination", 21, grows=True),
    Column("rate", "Rate", 11, "right"),
    Column("packet_rate", "Pkt/s", 6, "right", priority=2),
    Column("packets", "Packets", 7, "right", priority=4),
    Column("bytes", "Bytes", 8, "right", priority=3),
    Column("age", "Age", 6, "right", priority=2),
    Column("idle", "Idle", 5, "right", priority=5),
    Column("flags", "TCP flags", 9, priority=6),
)
"""In the order of the cells of FlowRows."""

_FLAG_LETTERS = "FSRPAUEW"
_ARROWS = {Direction.INGRESS: "in", Direction.EGRESS: "out"}
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


_ECHO_TYPES = {1: (0, 8), 58: (128, 129)}
"""Types of echo replies and requests, by protocol."""


class FlowRows:
    """A RowSource over a LiveView."""

    def __init__(self, view: LiveView, shown: FlowFilter, sort: str, *, descending: bool) -> None:
        self._view = view
        rows = view.rows
        values = _sort_values(rows, sort, view.now_ns)
        if shown.terms:
            chosen = np.flatnonzero(shown.mask(rows))
            order = chosen[np.argsort(values[chosen], kind="stable")]
        else:
            order = np.argsort(values, kind="stable")
        self._order = order[::-1] if descending else order

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
        return (
            _ARROWS[row["direction"]],
            protocol_name(protocol),
            endpoint(row, "source"),
            endpoint(row, "destination"),
            bit_rate(row["bit_rate"]),
            whole(row["packet_rate"]),
            whole(row["packets"]),
            byte_size(row["bytes"]),
            age((now - int(row["first_ns"])) / 1e9),
            age(idle_ns / 1e9) if idle_ns > _QUIET_NS else "",
            flag_letters(int(row["tcp_flags"])) if protocol == 6 else "",
        )

    def tones(self, index: int) -> Tones:
        row = self._view.rows[self._order[index]]
        quiet = self._view.now_ns - int(row["last_ns"]) > _QUIET_NS
        return Tone.MUTED if quiet else Tone.NORMAL


def endpoint(row: Any, end: str) -> str:
    """`192.0.2.1:443`, `[2001:db8::1]:443`, `192.0.2.1 echo`, or an address by itself.

    `row` is of dtype FLOW or LIVE, `end` is `source` or `destination`.
    """
    version, protocol, port = int(row["version"]), int(row["protocol"]), int(row[f"{end}_port"])
    text = address_text(row[end].tobytes(), version)
    if protocol in _ICMP_TYPES and end == "destination":
        kind = port >> 8
        return f"{text} {_ICMP_TYPES[protocol].get(kind, kind)}"
    if protocol not in _WITH_PORTS:
        return text
    return f"{text}:{port}" if version == 4 else f"[{text}]:{port}"


def path_of(row: Any) -> Choice:
    """The path of a flow's packets out of this host; UsageError where it can't be traced.

    `row` is of dtype FLOW or LIVE. Of a flow into this host it is the path of its answers.
    """
    protocol = int(row["protocol"])
    leaves = row["direction"] == Direction.EGRESS
    near, far = ("source", "destination") if leaves else ("destination", "source")
    address = address_text(row[far].tobytes(), int(row["version"]))
    if protocol in (6, 17):
        flow = TracedFlow(protocol, int(row[f"{near}_port"]), int(row[f"{far}_port"]))
    elif int(row["destination_port"]) >> 8 in _ECHO_TYPES.get(protocol, ()):
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


def _sort_values(rows: Array, sort: str, now_ns: int) -> Array:
    if sort == "rate":
        return rows["bit_rate"]
    if sort == "age":
        return now_ns - rows["first_ns"]
    if sort == "idle":
        return now_ns - rows["last_ns"]
    if sort in ("source", "destination"):
        address = np.ascontiguousarray(rows[sort]).view(">u8").reshape(-1, 2)
        ranks = np.empty(len(rows), "i8")
        ranks[np.lexsort((rows[f"{sort}_port"], address[:, 1], address[:, 0], rows["version"]))] = (
            np.arange(len(rows))
        )
        return ranks
    return rows[sort]
