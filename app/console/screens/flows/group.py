"""One group of flows, for the cells of its row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.console.host_names import Name, Names
from app.console.screens.flows.flow import QUIET_NS, WITH_PORTS, endpoint_text, flag_letters
from app.console.screens.flows.grouped import GroupedFlows, Opened
from app.console.screens.flows.owners.cells import RowOwner
from probes.filter.network import address_text, protocol_name
from probes.flow.services import service_name
from widgets.bars import behind
from widgets.format import si
from widgets.sparkline import BARS, NOTHING, round_scale
from widgets.table.rows import Pieces
from widgets.tones import Tone, Way, rate_tone

ZERO: Pieces = (("·", Tone.MUTED),)
"""A rate of nothing, which draws no attention."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupLook:
    """Names and bars of the rows of a table."""

    names: Names | None
    bar: int
    """Width of a rate with a bar, in cells."""
    scales: Mapping[str, float]
    """Ends of the scales of the bars, by direction."""


class Group:
    """A conversation, host, service or network, for the cells of its row."""

    __slots__ = ("_groups", "_look", "at", "row")

    def __init__(self, groups: GroupedFlows, at: int, look: GroupLook) -> None:
        self._groups, self.at, self._look = groups, at, look
        self.row: Any = groups.rows[at]
        """Of dtype GROUP."""

    @property
    def kind(self) -> str:
        """One of GROUPED."""
        return self._groups.by.kind

    @property
    def is_by_label(self) -> bool:
        return self._groups.by.is_by_label

    @property
    def opened(self) -> Opened:
        """The group as a filter."""
        salts, salt = self._groups.table.owned.salts, 0
        if salts is not None and self.kind == "conversations":
            salt = int(self._groups.of_flows(salts)[self.at])
        return Opened(self._groups.by, self.row.reshape(1).copy(), self.text, salt)

    @property
    def node(self) -> str:
        """The host of a fleet that sees a conversation; empty without a fleet."""
        view = self._groups.view
        if view.node_of is None:
            return ""
        return view.nodes[int(self._groups.of_flows(view.node_of)[self.at])]

    @property
    def text(self) -> str:
        """The group in a few words."""
        kind = self.kind
        if self.is_by_label:
            return self._groups.labels[int(self.row["id"])]
        if kind == "services":
            return self.service
        if kind == "networks":
            return self.network
        return self.host if kind == "hosts" else f"{self.service} {self.remote} ↔ {self.local}"

    @property
    def label_tone(self) -> Tone:
        """Tone of a group by owner: muted without an owner."""
        return Tone.MUTED if self.text.startswith("no ") else Tone.NORMAL

    @property
    def owner(self) -> RowOwner:
        """Owner and socket of a conversation."""
        return RowOwner(self._groups.table.owned, int(self._groups.sockets[self.at]))

    @property
    def service(self) -> str:
        return service_name(int(self.row["protocol"]), int(self.row["service_port"]))

    @property
    def port(self) -> str:
        """`tcp/443`, or the protocol if it has no ports."""
        port = int(self.row["service_port"])
        return f"{self.protocol}/{port}" if port else self.protocol

    @property
    def protocol(self) -> str:
        return protocol_name(int(self.row["protocol"]))

    @property
    def address(self) -> str:
        """The address of a host, or of the far end."""
        end = "near" if self._groups.by.near else "far"
        return address_text(self.row[end].tobytes(), int(self.row["version"]))

    @property
    def known_name(self) -> Name | None:
        """The name of a host, or of the far end of a conversation; None if it is unknown."""
        names = self._look.names
        if names is None or self.kind not in ("conversations", "hosts"):
            return None
        return names.of(self.address)

    @property
    def name(self) -> str:
        """The text of that name; empty if it is unknown."""
        return found.text if (found := self.known_name) is not None else ""

    @property
    def host(self) -> str:
        return self.name or self.address

    @property
    def network(self) -> str:
        return f"{self.address}/{self.row['prefix']}"

    @property
    def remote(self) -> str:
        """Far end of a conversation, by its known name or its address."""
        return self._end("far", name, 4) if (name := self.name) else self.end("far")

    @property
    def local(self) -> str:
        """Near end of a conversation; without its address if nearly all others have the same."""
        near, version = self.row["near"].tobytes(), int(self.row["version"])
        if self._groups.main.get(version) != near:
            return self.end("near")
        return self._end("near", "", 4).strip() or "·"

    def end(self, end: str) -> str:
        """The address and port of the `near` or `far` end of a conversation."""
        version = int(self.row["version"])
        return self._end(end, address_text(self.row[end].tobytes(), version), version)

    def port_of(self, end: str) -> str:
        """Port of the `near` or `far` end; empty for protocols without ports."""
        return str(self.row[f"{end}_port"]) if int(self.row["protocol"]) in WITH_PORTS else ""

    def _end(self, end: str, host: str, version: int) -> str:
        side = "source" if end == "near" else "destination"
        protocol, port = int(self.row["protocol"]), int(self.row[f"{end}_port"])
        return endpoint_text(host, version, protocol, port, side)

    @property
    def bound(self) -> str:
        """Sign before a total that is a lower bound."""
        return "≥" if self.row["at_least"] else ""

    @property
    def flags(self) -> str:
        """TCP flags; empty for other protocols."""
        return flag_letters(int(self.row["tcp_flags"])) if self.row["protocol"] == 6 else ""

    @property
    def is_quiet(self) -> bool:
        return self.ns_since("last_ns") > QUIET_NS

    def ns_since(self, field: str) -> int:
        """Nanoseconds since `first_ns` or `last_ns`."""
        return self._groups.view.now_ns - int(self.row[field])

    def utc_ns(self, field: str) -> int:
        """`first_ns` or `last_ns` as UTC."""
        return int(self.row[field]) + self._groups.view.to_utc_ns

    def number(self, name: str) -> Any:
        """The number of a column of GroupedFlows."""
        return self._groups.column(name)[self.at]

    def bar(self, way: Way) -> Pieces:
        """The rate of a direction over its share of the largest."""
        if not (rate := float(self.number(way))):
            return ZERO
        share = rate / self._look.scales[way]
        return behind(si(rate), self._look.bar, share, way, rate_tone(way, rate))

    def rate(self, name: str) -> Pieces | str:
        """A rate; a dot if nothing came."""
        return si(value) if (value := float(self.number(name))) else ZERO

    @property
    def line(self) -> Pieces:
        """The last minute, in the colour of the direction with more bytes."""
        values = self._groups.line(self.at).tolist()
        scale = round_scale(max((value for value in values if value == value), default=0.0))
        text = "".join(
            NOTHING if math.isnan(value) else BARS[max(1, math.ceil(value / scale * len(BARS))) - 1]
            for value in values
        )
        tone = Tone.IN if self.row["in_bytes"] >= self.row["out_bytes"] else Tone.OUT
        return ((text, Tone.MUTED if self.is_quiet else tone),)
