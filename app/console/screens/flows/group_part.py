"""Some groups of flows, column by column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.commands.flow_view import OWNER_KINDS, QUIET_NS
from app.console.host_names import Name, Names
from app.console.screens.flows.grouped import COMPUTED, GroupedFlows, Opened
from app.console.screens.flows.part import ShownFlows, endpoint_text, ranks_of
from bpf.arrays import Array
from bpf.quantities import si
from probes.flow.grouping import GROUP
from probes.flow.services import service_name
from widgets.bars import behind
from widgets.sparkline import BARS, NOTHING, round_scale
from widgets.table.rows import Pieces
from widgets.tones import Tone, Way, rate_tone

TONED = ("conversations", *OWNER_KINDS)
"""Kinds of groups with columns of owners."""
_NOTHING: Pieces = (("·", Tone.MUTED),)
"""A rate of nothing, which draws no attention."""
_FIELDS = frozenset(GROUP.names or ()) | set(COMPUTED)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLook:
    """Names and bars of the rows of a table."""

    names: Names | None
    bar: int
    """Width of a rate with a bar, in cells."""
    scales: Mapping[str, float]
    """Ends of the scales of the bars, by direction."""


class ShownGroups(ShownFlows):
    """Some conversations, hosts, services, networks or owners, in an order."""

    def __init__(
        self, groups: GroupedFlows, look: GroupLook, places: Array, changes: Mapping[str, Array]
    ) -> None:
        """`places` (n,) are those of the groups; `changes` as of ShownFlows, of all groups."""
        super().__init__(groups.view, groups.table, places, changes)
        self.groups, self._look = groups, look
        self.kind = groups.by.kind
        """One of GROUPED."""
        self.end: str = "near" if groups.by.near else "far"
        """The end whose address is the group's."""

    def __getitem__(self, name: str) -> Array:
        if name in self.changes:
            whole = self.changes[name]
        elif name in _FIELDS:
            whole = self.groups.column(name)
        else:
            return self.table[name][self.flows]
        return whole[self.places]

    def at(self, places: Array) -> Self:
        return type(self)(self.groups, self._look, self.places[places], self.changes)

    @property
    def has_tones(self) -> bool:
        return bool(self.changes) or (len(self.table.owned.sockets) > 0 and self.kind in TONED)

    @property
    def flows(self) -> Array:
        """Places (n,) in the view of a flow of each group."""
        return self.groups.flow_of[self.places]

    # One group

    @property
    def row(self) -> Any:
        """The first group, of dtype GROUP."""
        return self.groups.rows[self.places[0]]

    @property
    def opened(self) -> Opened:
        """The first group as a filter."""
        salts, salt = self.table.owned.salts, 0
        if salts is not None and self.kind == "conversations":
            salt = int(salts[self.flows[0]])
        return Opened(self.groups.by, self.row.reshape(1).copy(), self.texts()[0], salt)

    @property
    def node(self) -> str:
        """The host of a fleet that sees the first conversation; empty without a fleet."""
        return self.shared("node")[0]

    # Texts (n,)

    def texts(self) -> list[str]:
        """Return the groups in a few words."""
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

    def label_tones(self) -> list[Tone]:
        """Return the tones of groups by owner: muted without an owner."""
        return [Tone.MUTED if text.startswith("no ") else Tone.NORMAL for text in self.texts()]

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
        names = self._look.names
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
        """Return address and port of an end, `near` or `far`."""
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
        side = "source" if end == "near" else "destination"
        parts = hosts, versions, self["protocol"].tolist(), self[f"{end}_port"].tolist()
        return [endpoint_text(*each, side) for each in zip(*parts, strict=True)]

    # Pictures (n,)

    def bars(self, way: Way) -> list[Pieces]:
        """Return the rates of a direction over their shares of the largest."""
        width, scale = self._look.bar, self._look.scales[way]
        return [
            behind(si(rate), width, rate / scale, way, rate_tone(way, rate)) if rate else _NOTHING
            for rate in self[way].tolist()
        ]

    def rates(self, name: str) -> list[Pieces | str]:
        """Return rates; a dot if nothing came."""
        return [si(rate) if rate else _NOTHING for rate in self[name].tolist()]

    def lines(self) -> list[Pieces]:
        """Return the last minute, in the colour of the direction with more bytes."""
        found: list[Pieces] = []
        inwards = (self["in_bytes"] >= self["out_bytes"]).tolist()
        for place, is_in, quiet in zip(self.places.tolist(), inwards, self["idle"], strict=True):
            values = self.groups.line(place).tolist()
            scale = round_scale(max((value for value in values if value == value), default=0.0))
            text = "".join(
                NOTHING if math.isnan(value)
                else BARS[max(1, math.ceil(value / scale * len(BARS))) - 1]
                for value in values
            )  # fmt: skip
            tone = Tone.MUTED if quiet > QUIET_NS else Tone.IN if is_in else Tone.OUT
            found.append(((text, tone),))
        return found
