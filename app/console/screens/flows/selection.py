"""The flows that screen 3 shows, in groups, with the numbers of each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from app.commands.flow_view import INTERFACES, Grouping
from app.console.host_names import Names
from app.console.live.flows import LIVE, Focus, LiveView
from app.console.live.owners import OwnerView
from app.console.live.state import Frame
from app.console.screens.flows.owners import labels_of
from app.console.screens.flows.table import LiveTable, Rtts, live_table
from bpf.arrays import Array, Rows
from probes.flow.filter import FlowFilter
from probes.flow.grouping import Groups, group, regroup, relabel
from probes.flow.records import KEY_MASK, KEY_WORDS, FlowDirection, words_of
from probes.sockets.records import Owned

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The row of a group, for screens that lead to it."""

    by: Grouping
    id: int


_PORTS_WORD = 4
_MAIN_SHARE = 0.75
"""Least share of the conversations of an IP version that make a near address the host's own."""


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
            sums = _halves(near).sum(axis=1)
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
        others = _halves(self.rows["near"]) != _halves(mains)[self.rows["version"]]
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


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A group that is opened: the screen shows only its flows."""

    by: Grouping
    key: Array
    """Its row, dtype GROUP (1,); of a flow LIVE."""
    text: str
    salt: int = 0
    """Of a conversation of a fleet, the `salt_of` its host."""

    def mask(self, flows: Array, owned: Owned) -> NDArray[np.bool_]:
        """Return which of `flows` (n,), with the fields of dtype FLOW, are in the group; `owned`
        has their owners."""
        if self.by.is_by_label:
            numbers, _ = labels_of(self.by.kind, flows, owned)
            return np.asarray(numbers == self.key["id"][0])
        if not self.by.is_grouped:
            return self._is_flow(flows)
        found = np.zeros(len(flows), bool)
        places = np.flatnonzero(self._may_have(flows))
        # Few are left, and the grouping decides.
        salts = None if owned.salts is None else owned.salts[places]
        groups = group(
            flows.take(places), self.by.kind, self.by.prefixes, near=self.by.near, salts=salts
        )
        # The tables of one host have no salt.
        wanted = self.key["id"][0] ^ np.uint64(self.salt if salts is None else 0)
        found[places] = (groups.rows["id"] == wanted)[groups.of]
        return found

    def _is_flow(self, flows: Array) -> NDArray[np.bool_]:
        if "id" in (flows.dtype.names or ()):
            return np.asarray(flows["id"] == self.key["id"])
        words, found = words_of(flows), np.zeros(len(flows), bool)
        key = self.key.view("u8")[:KEY_WORDS] & KEY_MASK
        # The ports tell nearly all flows apart: few rows are compared whole.
        near = np.flatnonzero(words[:, _PORTS_WORD] == key[_PORTS_WORD])
        found[near] = (words[near, :KEY_WORDS] & KEY_MASK == key).all(axis=1)
        return found

    def _may_have(self, flows: Array) -> Array:
        key = self.key
        if self.by.kind == "services":
            port, found = key["service_port"][0], flows["protocol"] == key["protocol"][0]
            if port:
                found &= (flows["source_port"] == port) | (flows["destination_port"] == port)
            return np.asarray(found)
        is_near = self.by.near and self.by.kind != "conversations"
        prefix = int(key["prefix"][0]) or 128
        mask = np.packbits(np.arange(128) < prefix).view("u8")
        of_destination = (flows["direction"] == FlowDirection.EGRESS) != is_near
        ends = np.where(
            of_destination[:, None], _halves(flows["destination"]), _halves(flows["source"])
        )
        wanted = _halves(key["near" if is_near else "far"])
        return np.asarray(((ends & mask) == wanted).all(axis=1))


def _halves(addresses: Array) -> Array:
    """Addresses (n, 16) u1 as words (n, 2)."""
    return np.ascontiguousarray(addresses).view("u8").reshape(len(addresses), 2)


class Selection:
    """A filter, an opened group, and a view of the flows that pass both."""

    def __init__(self) -> None:
        self.filter = FlowFilter()
        self.opened: Opened | None = None
        self.by = Grouping()
        self._rtts = Rtts()
        self._found: tuple[object, GroupedFlows | None] = (None, None)

    def __bool__(self) -> bool:
        """Whether any flow is hidden."""
        return bool(self.filter) or self.opened is not None

    def turn_to(self, by: Grouping) -> None:
        """Show another view; only conversations and directions may be of an opened group."""
        self.by = by
        if not by.is_finest:
            self.opened = None

    def open(self, group: Opened) -> None:
        """Show the conversations of a group."""
        self.opened, self.by = group, Grouping(prefixes=self.by.prefixes)

    def close(self) -> bool:
        """Return to the view of the opened group; False if none is open."""
        group, self.opened = self.opened, None
        self.by = self.by if group is None else group.by
        return group is not None

    def table(self, frame: Frame, names: Names) -> LiveTable:
        """The flows of a frame with their computed columns."""
        return live_table(frame.flows, frame.paths, names, self._rtts.medians, frame.owners)

    def places(self, table: LiveTable) -> Array:
        """Return the places (n,) of the shown flows."""
        mask = self.filter.mask(table) if self.filter else np.ones(len(table), bool)
        if self.opened is not None:
            mask &= self.opened.mask(table.rows, table.owned)
        return np.flatnonzero(mask)

    def grouped(self, frame: Frame, names: Names) -> GroupedFlows:
        """Return the shown flows in groups: a frame is grouped once."""
        paths = frame.paths.generation, frame.paths.second
        asked = (frame.flows, frame.owners, self.filter, self.opened, self.by, paths, names.version)
        known, groups = self._found
        if groups is None or known != asked:
            table = self.table(frame, names)
            groups = GroupedFlows(frame.flows, self.places(table), self.by, table)
            self._found = asked, groups
        return groups

    def focus(self, ids: Array, owners: OwnerView) -> Focus:
        """Return a focus on the shown flows and on `ids` (n,): these come first in a flood."""
        if not self:
            return Focus(ids=ids)
        shown, opened = self.filter, self.opened

        def passes(rows: Rows[LIVE], now_ns: int) -> Array:
            # Without names: looking them up would hold up the probe's thread.
            table = live_table(LiveView(rows, now_ns, 0), owners=owners)
            mask = shown.mask(table)
            return mask if opened is None else mask & opened.mask(rows, table.owned)

        return Focus(passes, ids)
