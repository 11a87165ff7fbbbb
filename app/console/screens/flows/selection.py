"""The flows that screen 3 shows, and their groups."""

from __future__ import annotations

import numpy as np

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LIVE, Focus, LiveView
from app.console.live.owners import OwnerView
from app.console.live.state import Frame
from app.console.screens.flows.grouped import GroupedFlows, Opened
from app.console.screens.flows.table import LiveTable, Rtts, live_table
from bpf.arrays import Array, Rows
from probes.flow.filter import FlowFilter


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
