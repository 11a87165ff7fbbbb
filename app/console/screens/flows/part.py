"""Some flows of a view, or groups of them, column by column, and the texts of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from app.commands.flow_view import DIRECTIONS, OWNER_KINDS, QUIET_NS
from app.console.host_names import Name, Names
from app.console.screens.flows.owners import RowOwner
from app.console.screens.flows.selection import GroupedFlows, Opened
from app.console.screens.flows.table import ECHO_TYPES
from app.console.screens.paths.hop import PathKey
from app.console.tables.array_rows import ArrayRows
from app.console.tables.spec import TableSpec
from bpf.arrays import Array, Row
from bpf.errors import UsageError
from probes.filter.hosts import address_text, protocol_name
from probes.flow.records import FLOW, FlowDirection
from probes.flow.services import service_name
from probes.path.options import TracedFlow
from probes.tables.flow_columns import WITH_PORTS

_FLAG_LETTERS = "FSRPAUEW"
_ICMP_TYPES = {
    1: {0: "reply", 3: "unreach", 5: "redirect", 8: "echo", 11: "exceeded"},
    58: {
        1: "unreach", 2: "too-big", 3: "exceeded", 128: "echo", 129: "reply", 133: "rs", 134: "ra",
        135: "ns", 136: "na", 143: "mld",
    },
}  # fmt: skip
"""Short names of message types (IANA), the rest by number."""


TONED = (DIRECTIONS, "conversations", *OWNER_KINDS)
"""Views with columns of owners."""
ENDS = {DIRECTIONS: ("source", "destination"), "conversations": ("near", "far")}
"""Fields of both ends, by kind."""
_NO_CHANGES: Mapping[str, Array] = MappingProxyType({})


class ShownFlows(ArrayRows):
    """Some groups of flows, in an order. In the view of directions each flow is a group."""

    def __init__(
        self, spec: TableSpec[Any], groups: GroupedFlows, places: Array,
        names: Names | None = None, bar: int = 0, changes: Mapping[str, Array] = _NO_CHANGES,
    ) -> None:  # fmt: skip
        """`places` (n,) has the place of each group. Rates with a bar have `bar` cells. `changes`
        have further columns (m,) of all groups."""
        super().__init__(spec)
        self.groups, self.places, self.changes = groups, places, changes
        self.view, self.table = groups.view, groups.table
        self.kind = groups.by.kind
        """One of VIEWS."""
        self.end: str = "near" if groups.by.near else "far"
        """The end whose address is the group's."""
        self.bar = bar
        self.has_tones = bool(changes) or (len(self.table.owned.sockets) > 0 and self.kind in TONED)
        self._names = names

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> Array:
        whole = self.changes.get(name)
        found: Array = (self.groups.column(name) if whole is None else whole)[self.places]
        return found

    def at(self, places: Array) -> Self:
        found = self.places[places]
        return type(self)(self.spec, self.groups, found, self._names, self.bar, self.changes)

    @property
    def muted(self) -> Array:
        if not self.changes:
            return self["idle"] > QUIET_NS
        # The same at both compared moments, or gone.
        found: Array = (self["state"] == GONE) | ((self["change"] == 0) & (self["more"] == 0))
        return found

    @property
    def flows(self) -> Array:
        """Places (n,) in the view of a flow of each row."""
        return self.groups.flow_of[self.places]

    @cached_property
    def owners(self) -> list[RowOwner]:
        """Owners and sockets of the rows."""
        owned = self.table.owned
        return [RowOwner(owned, place) for place in owned.at[self.flows].tolist()]

    # Texts of flows (n,)

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

    def address_ranks(self, field: str) -> Array:
        """Return ranks (n,) by version, address and port of an end."""
        address = np.ascontiguousarray(self[field]).view(">u8").reshape(-1, 2)
        by = self[f"{field}_port"], address[:, 1], address[:, 0], self["version"]
        return ranks_of(np.lexsort(by))

    def change_ranks(self, name: str) -> Array:
        """Return ranks (n,) by the size of a change, not by its sign."""
        return ranks_of(np.lexsort((np.abs(self["more"]), np.abs(self[name]))))

    # One group

    @property
    def row(self) -> Any:
        """The first row, of dtype GROUP; in the view of directions LIVE."""
        return self.groups.rows[self.places[0]]

    @property
    def opened(self) -> Opened:
        """The first group as a filter."""
        salts, salt = self.table.owned.salts, 0
        if salts is not None and self.kind == "conversations":
            salt = int(salts[self.flows[0]])
        return Opened(self.groups.by, self.row.reshape(1).copy(), self.texts()[0], salt)

    # Texts of groups (n,)

    def texts(self) -> list[str]:
        """Return the groups in a few words."""
        if self.kind == DIRECTIONS:
            return self.endpoints("source")
        if self.groups.by.is_by_label:
            return [self.groups.labels[number] for number in self["id"].tolist()]
        if self.kind == "services":
            return self.services()
        if self.kind == "networks":
            return self.networks()
        if self.kind == "hosts":
            return self.named()
        three = zip(self.services(), self.remotes(), self.locals(), strict=True)
        return [f"{service} {remote} ↔ {local}" for service, remote, local in three]

    def text_ranks(self, key: Callable[[str], str]) -> Array:
        """Return the ranks (n,) of these texts."""
        texts = self.texts()
        return ranks_of(sorted(range(len(texts)), key=lambda at: key(texts[at])))

    def services(self) -> list[str]:
        """Return the names of the serving ports."""
        return list(map(service_name, self["protocol"].tolist(), self["service_port"].tolist()))

    def serving_ports(self) -> list[str]:
        """Return `tcp/443`, or the protocol if it has no ports."""
        pairs = zip(self.protocols(), self["service_port"].tolist(), strict=True)
        return [f"{protocol}/{port}" if port else protocol for protocol, port in pairs]

    def hosts(self) -> list[str]:
        """Return the addresses of hosts, or of far ends."""
        return list(self.addresses(self.end))

    def known(self) -> list[Name | None]:
        """Return the names of hosts, or of far ends of conversations."""
        names = self._names
        if names is None or self.kind not in ("conversations", "hosts"):
            return [None] * len(self)
        return [names.of(address) for address in self.hosts()]

    def names(self) -> list[str]:
        """Return the texts of these names; empty if they are unknown."""
        return ["" if name is None else name.text for name in self.known()]

    def named(self) -> list[str]:
        """Return the names of hosts, or else the addresses."""
        return [name or host for name, host in zip(self.names(), self.hosts(), strict=True)]

    def networks(self) -> list[str]:
        """Return the prefixes."""
        pairs = zip(self.hosts(), self["prefix"].tolist(), strict=True)
        return [f"{address}/{length}" for address, length in pairs]

    def endpoints(self, field: str) -> list[str]:
        """Return address and port of one of ENDS."""
        return self._ends(field, list(self.addresses(field)), self["version"].tolist())

    def remotes(self) -> list[str]:
        """Return the far ends of conversations, by known names or addresses."""
        names = self.names()
        named = self._ends("far", names, [4] * len(self))
        if all(names):
            return named
        ends = self.endpoints("far")
        return [end if name else other
                for name, end, other in zip(names, named, ends, strict=True)]  # fmt: skip

    def locals(self) -> list[str]:
        """Return the near ends; without their address if nearly all others have the same."""
        short = self._ends("near", [""] * len(self), [4] * len(self))
        near, versions = self["near"], self["version"].tolist()
        return [
            short[at].strip() or "·" if self.groups.main.get(versions[at]) == near[at].tobytes()
            else end
            for at, end in enumerate(self.endpoints("near"))
        ]  # fmt: skip

    def _ends(self, end: str, hosts: Sequence[str], versions: Sequence[int]) -> list[str]:
        side = {"near": "source", "far": "destination"}.get(end, end)
        parts = hosts, versions, self["protocol"].tolist(), self[f"{end}_port"].tolist()
        return [endpoint_text(*each, side) for each in zip(*parts, strict=True)]


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
