"""Some flows of a view, column by column, and the texts of their fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from app.commands.flow_view import QUIET_NS
from app.console.live.flows import LiveView
from app.console.screens.flows.owners.cells import RowOwner
from app.console.screens.flows.table import ECHO_TYPES, LiveTable
from app.console.screens.paths.hop import PathKey
from bpf.arrays import Array, Row
from bpf.errors import UsageError
from probes.filter.hosts import address_text, protocol_name
from probes.flow.columns import WITH_PORTS
from probes.flow.records import FLOW, FlowDirection
from probes.path.options import TracedFlow
from probes.sockets.records import By, Limit

_FLAG_LETTERS = "FSRPAUEW"
_ICMP_TYPES = {
    1: {0: "reply", 3: "unreach", 5: "redirect", 8: "echo", 11: "exceeded"},
    58: {
        1: "unreach", 2: "too-big", 3: "exceeded", 128: "echo", 129: "reply", 133: "rs", 134: "ra",
        135: "ns", 136: "na", 143: "mld",
    },
}  # fmt: skip
"""Short names of message types (IANA), the rest by number."""
_NO_CHANGES: Mapping[str, Array] = MappingProxyType({})
_LABELS = {"limit": tuple(one.label for one in Limit), "by": tuple(one.label for one in By)}
"""Words of columns of codes."""


class ShownFlows:
    """Some flows of a view, in an order."""

    depths, each, rows = None, False, ()

    def __init__(
        self, view: LiveView, table: LiveTable, places: Array,
        changes: Mapping[str, Array] = _NO_CHANGES,
    ) -> None:  # fmt: skip
        """`places` (n,) are the rows of the view; `table` is its `live_table`. `changes` have
        further columns (m,) of all its rows."""
        self.view, self.table, self.places, self.changes = view, table, places, changes

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> Array:
        whole = self.changes.get(name)
        return (self.table[name] if whole is None else whole)[self.places]

    def at(self, places: Array) -> Self:
        return type(self)(self.view, self.table, self.places[places], self.changes)

    @property
    def muted(self) -> Array:
        return self.unchanged if self.changes else self["idle"] > QUIET_NS

    @property
    def unchanged(self) -> Array:
        """Whether the rows are the same at both compared moments, or gone; (n,)."""
        return (self["state"] == GONE) | ((self["change"] == 0) & (self["more"] == 0))

    @property
    def has_tones(self) -> bool:
        return bool(self.changes) or len(self.table.owned.sockets) > 0

    @property
    def flows(self) -> Array:
        """Places (n,) in the view of a flow of each row."""
        return self.places

    @cached_property
    def owners(self) -> list[RowOwner]:
        """Owners and sockets of the rows."""
        owned = self.table.owned
        return [RowOwner(owned, place) for place in owned.at[self.flows].tolist()]

    def shared(self, name: str) -> list[str]:
        """Return the texts of a column that many rows share."""
        coded = self.table.coded[name]()
        return [coded.texts[code] for code in coded.codes[self.flows].tolist()]

    def ranks(self, name: str) -> Array:
        """Return the ranks (n,) of these texts, without regard to case; empty ones last."""
        coded = self.table.coded[name]()
        texts = coded.texts
        order = sorted(range(len(texts)), key=lambda at: (not texts[at], texts[at].casefold()))
        return ranks_of(order)[coded.codes[self.flows]]

    def labels(self, name: str) -> list[str]:
        """Return the words of a column of codes, `limit` or `by`."""
        return [_LABELS[name][code] for code in self[name].tolist()]

    def seconds(self, name: str, unit: float) -> Any:
        """Return a column of times in `unit`, with three decimals."""
        return (self[name] / unit).round(3).tolist()

    def utc(self, name: str) -> Array:
        """Return `first_ns` or `last_ns` as UTC in nanoseconds."""
        return self[name] + self.view.to_utc_ns

    def iso(self, name: str) -> Sequence[str]:
        """Return `first_ns` or `last_ns` as UTC in ISO 8601."""
        from probes.tables.conversion import iso_all

        return iso_all(self.utc(name))

    def protocols(self) -> list[str]:
        """Return the names of the protocols."""
        return list(map(protocol_name, self["protocol"].tolist()))

    def flags(self) -> Iterator[str]:
        """Yield the TCP flags; empty for other protocols."""
        for protocol, flags in zip(self["protocol"], self["tcp_flags"].tolist(), strict=True):
            yield flag_letters(flags) if protocol == 6 else ""

    def ports(self, field: str) -> list[str]:
        """Return the ports of an end; empty for protocols without ports."""
        pairs = zip(self[field].tolist(), self["protocol"].tolist(), strict=True)
        return [str(port) if protocol in WITH_PORTS else "" for port, protocol in pairs]

    def addresses(self, field: str) -> Iterator[str]:
        """Return the addresses of an end."""
        from app.outputs.view import addresses

        return addresses(self[field], self["version"].tolist())

    def endpoints(self, field: str) -> list[str]:
        """Return address and port of an end, `source` or `destination`."""
        parts = (self[name].tolist() for name in ("version", "protocol", f"{field}_port"))
        return list(map(endpoint_text, self.addresses(field), *parts, repeat(field)))

    def address_ranks(self, field: str) -> Array:
        """Return ranks (n,) by version, address and port of an end."""
        address = np.ascontiguousarray(self[field]).view(">u8").reshape(-1, 2)
        by = self[f"{field}_port"], address[:, 1], address[:, 0], self["version"]
        return ranks_of(np.lexsort(by))

    def change_ranks(self, name: str) -> Array:
        """Return ranks (n,) by the size of a change, not by its sign."""
        return ranks_of(np.lexsort((np.abs(self["more"]), np.abs(self[name]))))


GONE = 2
"""State of a flow that is gone at the later moment."""


def ranks_of(order: Array | Sequence[int]) -> Array:
    """Return the ranks (n,) of rows, given the places (n,) of the rows by rank."""
    ranks = np.empty(len(order), "i8")
    ranks[order] = np.arange(len(order))
    return ranks


def endpoint(row: Row[FLOW], end: str) -> str:
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


def path_of(row: Row[FLOW]) -> PathKey:
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
