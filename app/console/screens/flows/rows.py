"""The rows of screen 3: flows of a view in groups, the numbers of each group, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.commands.flow_view import DIRECTIONS, INTERFACES, OWNER_KINDS, QUIET_NS, Grouping
from app.console.host_names import Name, Names
from app.console.live.flows import LiveView
from app.console.live.owners import NO_OWNERS, OwnerView, owned
from app.console.live.paths import PathView
from app.console.screens.flows.owners import RowOwner, labels_of
from app.console.screens.flows.paths import Medians, flow_rtts, path_medians
from app.console.tables.sorted_table import ArrayRows
from app.console.tables.spec import TableSpec
from bpf.arrays import Array, halves
from probes.filter.hosts import protocol_name
from probes.filter.table import AddressNames, Coded, RowTable
from probes.flow.grouping import Groups, group, regroup, relabel
from probes.flow.interfaces import names_of
from probes.flow.records import FlowDirection
from probes.flow.services import endpoint_text, flag_letters, service_name
from probes.sockets.records import Owned
from probes.tables.flow_columns import WITH_PORTS

Numbers = NDArray[np.float64]
_MAIN_SHARE = 0.75
"""Least share of the conversations of an IP version that make a near address the host's own."""
TONED = (DIRECTIONS, "conversations", *OWNER_KINDS)
"""Views with columns of owners."""
ENDS = {DIRECTIONS: ("source", "destination"), "conversations": ("near", "far")}
"""Fields of both ends, by kind."""
_NO_CHANGES: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class LiveTable(RowTable):
    """The rows of a view, dtype LIVE, with computed columns."""

    owned: Owned = field(kw_only=True)
    """Sockets and owners of the rows."""


def live_table(
    view: LiveView, paths: PathView | None = None, names: AddressNames | None = None,
    medians: Callable[[PathView], Medians] | None = None, owners: OwnerView = NO_OWNERS,
) -> LiveTable:  # fmt: skip
    """Return the rows of a view with the columns that filters know.

    `age` and `idle` are in ns, `rtt` in seconds. `medians` computes the round-trip times on
    `paths`, only if a caller reads them.
    """
    rows, now, of = view.rows, view.now_ns, owned(view, owners)
    columns = of.columns

    @cache
    def rtts() -> Array:
        found = columns["rtt"]()
        if paths is None or not len(paths.series):
            return found
        traced = flow_rtts(rows, *(medians or path_medians)(paths))
        return np.where(np.isnan(traced), found, traced)

    made: dict[str, Callable[[], Array]] = {
        **columns,
        "age": lambda: now - rows["first_ns"],
        "idle": lambda: view.idle_ns(rows["last_ns"]),
        "rate": lambda: rows["bit_rate"],
        "rtt": rtts,
    }

    def nodes() -> Coded:
        codes = np.zeros(len(rows), "u2") if view.node_of is None else view.node_of
        return Coded(codes, view.nodes or ("",))

    @cache
    def named() -> Coded:
        return names_of(rows)

    coded: dict[str, Callable[[], Coded]] = {**of.coded, "node": nodes, "interface": named}
    return LiveTable(rows, made, names, coded, owned=of)


class GroupedFlows:
    """Groups of some flows of a view; in the view of directions the flows themselves.

    Arrays (m,) are in the order of `rows`.
    """

    labels: Mapping[int, str] = MappingProxyType({})
    """Of groups by owner, by `id`."""

    def __init__(
        self, view: LiveView, places: Array, by: Grouping, table: LiveTable,
        conversations: Groups | None = None,
    ) -> None:  # fmt: skip
        """`places` (n,) are the rows of the view to group; `table` is its `live_table`.

        `conversations` of the same rows save work, if another grouping has found them.
        """
        self.view, self.places, self.by, self.table = view, places, by, table
        self.flows = view.rows if len(places) == len(view.rows) else view.rows.take(places)
        """dtype LIVE, (n,)."""
        self.rows: Array
        """dtype LIVE or GROUP, (m,)."""
        self.of: Array
        """Place in `rows` of the group of each flow, (n,)."""
        self._columns: dict[str, Array] = {}
        if not by.is_grouped:
            self.rows, self.of = self.flows, np.arange(len(places))
            return
        salts = table.owned.salts
        if by.is_by_label:
            numbers, self.labels = labels_of(by.kind, table.rows, table.owned)
        if by.kind == INTERFACES:
            # Both directions of a conversation may have other interfaces.
            salts, conversations = numbers if salts is None else numbers ^ salts, None
        found = conversations or group(
            self.flows, "conversations", salts=None if salts is None else salts[places]
        )
        if by.is_by_label:
            of_talk = np.empty(len(found.rows), "u8")
            of_talk[found.of] = numbers[places]
            groups = relabel(found, of_talk)
        else:
            groups = regroup(found, by.kind, by.prefixes, near=by.near)
        self.rows, self.of = groups.rows, groups.of

    def sums(self, values: Array) -> Numbers:
        """Sum up values (n,) of flows for each group, (m,)."""
        if not self.by.is_grouped:
            return values
        found: Numbers = np.bincount(self.of, values, len(self.rows)).astype("f8", copy=False)
        return found

    def column(self, name: str) -> Array:
        """Return a column (m,) of COMPUTED, a field of `rows`, or a column of the table: of a flow
        of each group."""
        if name not in self._columns:
            if self.by.is_grouped and name in COMPUTED:
                found = COMPUTED[name](self)
            elif name in (self.rows.dtype.names or ()):
                found = self.rows[name]
            else:
                found = self.of_flows(self.table[name])
            self._columns[name] = found
        return self._columns[name]

    def of_flows(self, values: Array) -> Array:
        """Return for each group (m,) the value of one of its flows, from values of all flows of the
        view. Both flows of a conversation have the same socket."""
        found = np.empty(len(self.rows), values.dtype)
        found[self.of] = values[self.places]
        return found

    @cached_property
    def flow_of(self) -> Array:
        """Places in the view, (m,), of a flow of each group."""
        return self.of_flows(np.arange(len(self.view.rows)))

    def rates(self, field: str, way: FlowDirection) -> Numbers:
        """Sum up the rates of a direction."""
        return self.sums(self.flows[field] * (self.flows["direction"] == way))

    def line(self, at: int) -> Numbers:
        """Bits per second of a group in the last minute, (CELLS,); see LiveView."""
        return self.view.line(self.places[self.of == at])

    @property
    def rtts(self) -> Numbers:
        """The longest round-trip times in seconds; NaN if no path is traced."""
        found = np.full(len(self.rows), np.nan)
        np.fmax.at(found, self.of, self.table["rtt"][self.places])
        return found

    @cached_property
    def main(self) -> dict[int, bytes]:
        """The near address of nearly all conversations, by IP version."""
        found = {}
        for version in (4, 6):
            near = self.rows["near"][self.rows["version"] == version]
            if not len(near):
                continue
            # The sum of both halves tells the addresses of a host apart, and the most frequent one
            # is the middle one.
            sums = halves(near).sum(axis=1)
            same = sums == np.partition(sums, len(sums) // 2)[len(sums) // 2]
            if same.sum() > _MAIN_SHARE * len(near):
                found[version] = near[same.argmax()].tobytes()
        return found

    @property
    def has_other_ends(self) -> bool:
        """Whether a conversation has another near address than `main`."""
        mains = np.zeros((7, 16), "u1")
        for version, address in self.main.items():
            mains[version] = np.frombuffer(address, "u1")
        others = halves(self.rows["near"]) != halves(mains)[self.rows["version"]]
        return bool(others.any())

    def place(self, identity: int) -> int | None:
        """Return the place of a group in `rows`; None if `rows` lacks it."""
        at = int(np.searchsorted(self.rows["id"], np.uint64(identity)))
        return at if at < len(self.rows) and int(self.rows["id"][at]) == identity else None


_IN, _OUT = FlowDirection.INGRESS, FlowDirection.EGRESS
COMPUTED: dict[str, Callable[[GroupedFlows], Array]] = {
    "in": lambda groups: groups.rates("bit_rate", _IN),
    "out": lambda groups: groups.rates("bit_rate", _OUT),
    "rate": lambda groups: groups.column("in") + groups.column("out"),
    "in_packet_rate": lambda groups: groups.rates("packet_rate", _IN),
    "out_packet_rate": lambda groups: groups.rates("packet_rate", _OUT),
    "packets": lambda groups: groups.rows["in_packets"] + groups.rows["out_packets"],
    "bytes": lambda groups: groups.rows["in_bytes"] + groups.rows["out_bytes"],
    "age": lambda groups: groups.view.now_ns - groups.rows["first_ns"],
    "idle": lambda groups: groups.view.idle_ns(groups.rows["last_ns"]),
    "rtt": lambda groups: groups.rtts,
    "mean": lambda groups: (
        groups.sums(groups.flows["history"].sum(axis=1)) * 8 / max(sum(groups.view.seconds), 1e-3)
    ),
}
"""Columns (m,) of groups: rates and the mean of the last minute in bits or packets per second, age
and idle time in nanoseconds, the round-trip time in seconds."""


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
