"""One flow, for the cells of its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.console.live.flows import LiveView
from app.console.screens.flows.owners.cells import RowOwner
from app.console.screens.flows.table import LiveTable
from probes.filter.network import address_text, protocol_name

QUIET_NS = 3_000_000_000
"""Without a packet for longer a flow counts as idle, and is muted."""
_FLAG_LETTERS = "FSRPAUEW"
WITH_PORTS = frozenset({6, 17, 33, 132, 136})
_ICMP_TYPES = {
    1: {0: "reply", 3: "unreach", 5: "redirect", 8: "echo", 11: "exceeded"},
    58: {
        1: "unreach", 2: "too-big", 3: "exceeded", 128: "echo", 129: "reply", 133: "rs", 134: "ra",
        135: "ns", 136: "na", 143: "mld",
    },
}  # fmt: skip
"""Short names of message types (IANA), the rest by number."""


class Flow:
    """One flow, for the cells of its row."""

    __slots__ = ("_at", "_table", "now_ns", "row", "to_utc_ns")

    def __init__(self, view: LiveView, table: LiveTable, at: int) -> None:
        self.row: Any = view.rows[at]
        """Of dtype LIVE."""
        self.now_ns, self.to_utc_ns = view.now_ns, view.to_utc_ns
        self._table, self._at = table, at

    @property
    def rtt(self) -> float:
        """Seconds, or NaN."""
        return float(self._table["rtt"][self._at])

    @property
    def node(self) -> str:
        """The host of a fleet that sees the flow; empty without a fleet."""
        coded = self._table.coded["node"]()
        return coded.texts[int(coded.codes[self._at])]

    @property
    def owner(self) -> RowOwner:
        owned = self._table.owned
        return RowOwner(owned, int(owned.at[self._at]))

    @property
    def protocol_name(self) -> str:
        return protocol_name(int(self.row["protocol"]))

    @property
    def bound(self) -> str:
        """Sign before a total that is a lower bound."""
        return "≥" if self.row["at_least"] else ""

    @property
    def is_quiet(self) -> bool:
        return self.ns_since("last_ns") > QUIET_NS

    @property
    def flags(self) -> str:
        """TCP flags; empty for other protocols."""
        return flag_letters(int(self.row["tcp_flags"])) if self.row["protocol"] == 6 else ""

    def endpoint(self, end: str) -> str:
        return endpoint(self.row, end)

    def port(self, end: str) -> str:
        """Port of `source` or `destination`; empty for protocols without ports."""
        return str(self.row[f"{end}_port"]) if int(self.row["protocol"]) in WITH_PORTS else ""

    def ns_since(self, field: str) -> int:
        """Nanoseconds since `first_ns` or `last_ns`."""
        return self.now_ns - int(self.row[field])

    def utc_ns(self, field: str) -> int:
        """`first_ns` or `last_ns` as UTC."""
        return int(self.row[field]) + self.to_utc_ns


class Change(Flow):
    """One flow at two moments, for the cells of its row."""

    __slots__ = ("before", "change", "more", "rate", "state")

    def __init__(
        self, view: LiveView, table: LiveTable, at: int, state: str, numbers: Sequence[float]
    ) -> None:
        """`numbers` are rate, rate before, change and packets between the moments."""
        super().__init__(view, table, at)
        self.state = state
        self.rate, self.before, self.change, self.more = numbers


def endpoint(row: Any, end: str) -> str:
    """Return `192.0.2.1:443`, `[2001:db8::1]:443`, or only the address.

    The source of ICMP is `192.0.2.1 id 77`, its destination `192.0.2.1 echo` or with a code
    `192.0.2.1 unreach/3`.


    `row` is of dtype FLOW or LIVE, `end` is `source` or `destination`.
    """
    version, protocol, port = int(row["version"]), int(row["protocol"]), int(row[f"{end}_port"])
    return endpoint_text(address_text(row[end].tobytes(), version), version, protocol, port, end)


def endpoint_text(text: str, version: int, protocol: int, port: int, end: str) -> str:
    """Return an endpoint, given its address as text."""
    if protocol in _ICMP_TYPES:
        if end == "source":
            return f"{text} id {port}" if port else text
        kind, code = port >> 8, port & 0xFF
        return f"{text} {_ICMP_TYPES[protocol].get(kind, kind)}" + (f"/{code}" if code else "")
    if protocol not in WITH_PORTS:
        return text
    return f"{text}:{port}" if version == 4 else f"[{text}]:{port}"


def flag_letters(flags: int) -> str:
    """Return TCP flags in tcpdump's order, with a dot for each unseen one: `.S.PA...`."""
    return "".join(letter if flags >> bit & 1 else "." for bit, letter in enumerate(_FLAG_LETTERS))
