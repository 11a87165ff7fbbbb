"""Rows of screen 3 in the view of directions, without a console."""

from __future__ import annotations

from app.commands.flow_view import DIRECTIONS, Grouping
from app.console.live.flows import LiveView
from app.console.live.frames import Frame
from app.console.live.paths import LivePaths, PathView
from app.console.screens.flows.rows import GroupedFlows, ShownFlows, live_table
from app.console.screens.flows.screen import changed_rows, shown_rows
from app.console.screens.flows.selection import Selection
from probes.flow.filter import FlowFilter


def selection(text: str = "") -> Selection:
    """The flows that pass a filter."""
    found = Selection()
    found.filter, found.by = FlowFilter.parse(text), Grouping(DIRECTIONS)
    return found


def flow_rows(view: LiveView, text: str = "", paths: PathView | None = None) -> ShownFlows:
    """The flows of a view that pass a filter."""
    table, shown = live_table(view, paths), selection(text)
    return shown_rows(GroupedFlows(view, shown.places(table), shown.by, table))


def flow_changes(before: LiveView, after: LiveView, text: str = "") -> ShownFlows:
    """The flows of two views that pass a filter."""
    paths = LivePaths().view()
    return changed_rows(Frame(before, paths, ()), Frame(after, paths, ()), selection(text))
