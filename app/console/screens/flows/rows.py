"""Rows of flows and of groups, and the columns that a table of some width needs for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from app.commands.flow_view import LABEL_KINDS
from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.screens.flows.columns import FLOWS
from app.console.screens.flows.group_columns import GROUPS, OWNED
from app.console.screens.flows.group_part import GroupLook, ShownGroups
from app.console.screens.flows.grouped import GroupedFlows
from app.console.screens.flows.part import ShownFlows
from app.console.screens.flows.table import LiveTable, live_table
from app.console.tables.array_rows import ArrayRows
from app.console.tables.spec import TableSpec, columns
from bpf.arrays import Array
from probes.flow.filter import FlowFilter
from widgets.sparkline import round_scale
from widgets.table.rows import Column

SPECS: dict[str, TableSpec[ShownGroups]] = {
    **{spec.name: spec for spec in GROUPS},
    **dict.fromkeys(LABEL_KINDS, OWNED),
}
"""By kind of groups."""
OWNED_BY_DEFAULT = ("process", "limit")
OWNED_FROM = 100
"""Columns of owners on tables of so many cells or more."""
_BAR, _LOCAL = 8, 17
"""Usual width of a rate with a bar, and of local ends with addresses."""
_WIDTHS = ((160, {"in": 16, "out": 16, "rate": 8, "service": 14, "local": 8}),
           (100, {"in": 11, "out": 11, "rate": 7, "service": 9, "local": 8}))  # fmt: skip
"""Least widths of a table, and widths of columns that are wider there."""


def flow_rows(
    view: LiveView, shown: FlowFilter | Array, table: LiveTable | None = None
) -> ArrayRows[ShownFlows]:
    """Return the flows that pass a filter, or those at places (n,), in the order of the view.

    `table` is the view's `live_table`.
    """
    table = live_table(view) if table is None else table
    if isinstance(shown, FlowFilter):
        shown = np.flatnonzero(shown.mask(table)) if shown else np.arange(len(view.rows))
    return ArrayRows(FLOWS, ShownFlows(view, table, shown))


def flow_columns(
    view: LiveView, *, traced: bool, owned: bool = False
) -> tuple[Column[ShownFlows], ...]:
    """Return the columns of flows, with RTTs of traced paths, and the main ones of owners.

    VLAN, tunnel, its id, and `totals` of lower bounds are there if one of the rows needs them, and
    the host in a view of several.
    """
    rows = view.rows
    needed = [name for name in ("vlan", "tunnel", "tunnel_id") if rows[name].any()]
    needed += ("process", "limit") * owned
    needed += ["node"] * (view.node_of is not None)
    changes: dict[str, dict[str, Any]] = {name: {"hidden": False} for name in needed}
    if traced:
        changes["rtt"] = {"hidden": False}
    if rows["at_least"].any():
        changes |= {"totals": {"hidden": False}, "bytes": {"width": 9}}
    return columns(FLOWS, **changes)


def group_rows(
    groups: GroupedFlows, names: Names | None = None, width: int = 80
) -> ArrayRows[ShownGroups]:
    """Return all groups, for a table of `width` cells."""
    return ArrayRows(SPECS[groups.by.kind], group_part(groups, names, width, {}))


def group_part(
    groups: GroupedFlows, names: Names | None, width: int, changes: Mapping[str, Array]
) -> ShownGroups:
    """Return all groups, with the columns (m,) of `changes`."""
    scales = {way: round_scale(float(groups.column(way).max(initial=0))) for way in ("in", "out")}
    look = GroupLook(names, widths_of(width).get("in", _BAR), scales)
    return ShownGroups(groups, look, np.arange(len(groups.rows)), changes)


def widths_of(width: int) -> Mapping[str, int]:
    """Return the widths of columns in a table of `width` cells, if not the usual ones."""
    return next((widths for least, widths in _WIDTHS if width >= least), {})


def group_columns(
    groups: GroupedFlows, width: int, *, traced: bool
) -> tuple[Column[ShownGroups], ...]:
    """Return the columns of groups in a table of `width` cells.

    Columns for VLANs, tunnels, lower bounds and RTTs appear if a group needs them, and columns of
    owners if they fit.
    """
    rows, has_ends = groups.rows, groups.by.kind == "conversations" and groups.has_other_ends
    needed = [name for name in ("vlan", "tunnel", "tunnel_id") if rows[name].any()]
    needed += ["node"] * (groups.view.node_of is not None)
    needed += ["rtt"] * traced + ["totals"] * bool(rows["at_least"].any())
    if len(groups.table.owned.sockets) and width >= OWNED_FROM:
        needed += OWNED_BY_DEFAULT
    return _columns(groups.by.kind, width, tuple(needed), has_ends=has_ends)


@lru_cache(maxsize=64)
def _columns(
    kind: str, width: int, needed: tuple[str, ...], *, has_ends: bool
) -> tuple[Column[ShownGroups], ...]:
    changes: dict[str, dict[str, Any]] = {
        name: {"width": cells} for name, cells in widths_of(width).items()
    }
    if width >= _WIDTHS[-1][0] and has_ends:
        changes["local"] = {"width": _LOCAL}
    for name in needed:
        changes.setdefault(name, {})["hidden"] = False
    if kind in LABEL_KINDS:
        changes["owner"] = {"title": LABEL_KINDS[kind].capitalize()}
    return columns(SPECS[kind], **changes)
