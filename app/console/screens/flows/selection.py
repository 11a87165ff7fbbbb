"""The flows that screen 3 shows: a filter, an opened group, and a view of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.commands.flow_view import Grouping
from app.console.live.flows import LIVE, Focus, LiveView
from app.console.live.owners import OwnerView
from app.console.screens.flows.owners import labels_of
from app.console.screens.flows.rows import LiveTable, ShownFlows, live_table
from bpf.arrays import Array, Rows, halves
from probes.flow.filter import FlowFilter
from probes.flow.grouping import group
from probes.flow.records import KEY_MASK, KEY_WORDS, FlowDirection, words_of
from probes.sockets.records import Owned

_PORTS_WORD = 4


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The row of a group, for screens that lead to it."""

    by: Grouping
    id: int


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A group that is opened: the screen shows only its flows."""

    by: Grouping
    key: Array
    """Its row, dtype GROUP (1,); of a flow LIVE."""
    text: str
    salt: int = 0
    """Of a conversation of a fleet, the `salt_of` its host."""

    @classmethod
    def of(cls, shown: ShownFlows) -> Self:
        """Return the first of some rows as a filter."""
        salts, salt = shown.table.owned.salts, 0
        if salts is not None and shown.kind == "conversations":
            salt = int(salts[shown.flows[0]])
        return cls(shown.groups.by, shown.row.reshape(1).copy(), shown.texts()[0], salt)

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
            of_destination[:, None], halves(flows["destination"]), halves(flows["source"])
        )
        wanted = halves(key["near" if is_near else "far"])
        return np.asarray(((ends & mask) == wanted).all(axis=1))


class Selection:
    """A filter, an opened group, and a view of the flows that pass both."""

    def __init__(self) -> None:
        self.filter = FlowFilter()
        self.opened: Opened | None = None
        self.by = Grouping()

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

    def places(self, table: LiveTable) -> Array:
        """Return the places (n,) of the shown flows."""
        mask = self.filter.mask(table) if self.filter else np.ones(len(table), bool)
        if self.opened is not None:
            mask &= self.opened.mask(table.rows, table.owned)
        return np.flatnonzero(mask)

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
