"""The busiest conversations, hosts and services, made once a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.owners import NO_OWNERS, OwnerView
from app.console.screens.flows.group_columns import CONVERSATIONS, HOSTS, SERVICES, shown_columns
from app.console.screens.flows.part import ShownFlows
from app.console.screens.flows.screen import shown_rows
from app.console.screens.flows.selection import GroupedFlows, GroupKey
from app.console.screens.flows.table import live_table
from app.console.tables.spec import columns
from probes.flow.grouping import group
from widgets.table.rows import Column

SPECS = {spec.name: spec for spec in (CONVERSATIONS, HOSTS, SERVICES)}
_TITLES = {"conversations": "Conversations", "hosts": "Hosts", "services": "Services"}
_NAMES = {"conversations": "service", "hosts": "host", "services": "service"}
"""First column of each block: its title is the name of the block."""
_LEFT_OUT = ("idle", "protocol")
"""Columns that take the room of names: the busiest are not idle, and a service has one protocol."""
_NAME_CELLS = 13
"""Least width of that column, for the name."""
_NARROW = 78
_NARROW_CELLS = {"remote": 16, "process": 8}
"""Widths of columns in a narrower block: they leave room for the process."""


class Busiest:
    """Groups of all flows of a view, the busiest first."""

    def __init__(self) -> None:
        self._of: tuple[LiveView, OwnerView] | None = None
        self._grouped: dict[str, GroupedFlows] = {}
        self._rows: dict[tuple[str, int, int, object], ShownFlows] = {}

    def take(self, view: LiveView, owners: OwnerView = NO_OWNERS) -> None:
        """Group the flows of a view, unless view and owners are the last ones."""
        if self._of == (view, owners):
            return
        table, places = live_table(view, owners=owners), np.arange(len(view.rows))
        self._of = view, owners
        conversations = group(view.rows, "conversations", salts=view.salts)
        self._grouped = {
            kind: GroupedFlows(view, places, Grouping(kind), table, conversations) for kind in SPECS
        }
        self._rows = {}

    def count(self, kind: str) -> int:
        """Return the number of groups of a kind."""
        return len(self._grouped[kind].rows)

    def rows(self, kind: str, names: Names, width: int, most: int) -> ShownFlows:
        """Return the groups of a kind with the `most` highest rates, for a block of `width`
        cells."""
        asked = kind, width, most, names.version
        if asked not in self._rows:
            rows = shown_rows(self._grouped[kind], names, width)
            place = rows.spec.names.index("rate")
            first = np.arange(max(0, min(most, rows.rows)))
            self._rows[asked] = rows.ordered(place, descending=True).at(first)
        return self._rows[asked]

    def columns(self, kind: str, width: int) -> tuple[Column[Any], ...]:
        """Return the columns of a block of `width` cells."""
        found = titled(kind, shown_columns(self._grouped[kind], width, traced=False))
        cells = _NARROW_CELLS if width < _NARROW else {}
        return tuple(replace(one, width=cells.get(one.id, one.width)) for one in found)


def first_columns(kind: str) -> tuple[Column[Any], ...]:
    """Return the columns of a block before there are flows."""
    return titled(kind, columns(SPECS[kind]))


def titled(kind: str, found: tuple[Column[Any], ...]) -> tuple[Column[Any], ...]:
    """Return columns with the name of the block as the title of the first."""
    return tuple(
        replace(one, title=_TITLES[kind], width=max(one.width, _NAME_CELLS))
        if one.id == _NAMES[kind]
        else replace(one, hidden=one.hidden or one.id in _LEFT_OUT)
        for one in found
    )


def key_of(kind: str, identity: int) -> GroupKey:
    """Return the key of a group, for the screen that has it."""
    return GroupKey(Grouping(kind), identity)
