"""Rows of screen 3, at one moment or at two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.state import Frame
from app.console.screens.flows.columns import CHANGES, STATES
from app.console.screens.flows.group_columns import GROUP_CHANGES, SPECS, widths_of
from app.console.screens.flows.part import GONE, ShownFlows
from app.console.screens.flows.selection import GroupedFlows, Selection
from app.console.screens.flows.table import live_table

_BAR = 8
"""Usual width of a rate with a bar."""
_BOTH, _NEW, _CUT = map(STATES.index, ("", "new", "cut"))


def shown_rows(groups: GroupedFlows, names: Names | None = None, width: int = 80) -> ShownFlows:
    """Return all groups, for a table of `width` cells."""
    spec, places = SPECS[groups.by.kind], np.arange(len(groups.rows))
    return ShownFlows(spec, groups, places, names, widths_of(width).get("in", _BAR))


def changed_rows(
    before: Frame, after: Frame, shown: Selection, names: Names | None = None
) -> ShownFlows:
    """Compare the shown flows of two frames, or their groups.

    Columns: bits per second at the later moment (`rate`), at the earlier one (`before`), and the
    difference (`change`); packets between the two, 0 for a flow that is gone (`more`); and `state`,
    the places in STATES. A group is new, or gone, if all its flows are, and cut if one is.
    """
    view, changes = _changes(before.flows, after.flows)
    table = live_table(view, after.paths, names, owners=after.owners)
    groups = GroupedFlows(view, shown.places(table), shown.by, table)
    of_flows = {name: values[groups.places] for name, values in changes.items()}
    state, sums = of_flows.pop("state"), {n: groups.sums(of) for n, of in of_flows.items()}
    size, found = groups.sums(np.ones(len(state))), np.full(len(groups.rows), _BOTH)
    for one in (_NEW, GONE):
        found[groups.sums(state == one) == size] = one
    found[groups.sums(state == _CUT) > 0] = _CUT
    spec = GROUP_CHANGES if shown.by.is_grouped else CHANGES
    return ShownFlows(spec, groups, np.arange(len(found)), names, _BAR, sums | {"state": found})


def _changes(before: LiveView, after: LiveView) -> tuple[LiveView, dict[str, Any]]:
    """Return the flows of either view (n,), and the columns (n,) of their changes."""
    old, new = before.rows, after.rows
    gone = np.flatnonzero(~np.isin(old["id"], new["id"], assume_unique=True))
    rows = np.concatenate((new, old.take(gone)))
    order = np.argsort(rows["id"])
    rows = rows.take(order)
    view = replace(after, rows=rows)
    if after.node_of is not None and before.node_of is not None:
        # Hosts may have been lost, or come, between the moments.
        nodes = tuple(dict.fromkeys((*after.nodes, *before.nodes)))
        to = np.array([nodes.index(node) for node in before.nodes], "u2")
        node_of = np.concatenate((after.node_of, to[before.node_of[gone]]))[order]
        view = replace(view, nodes=nodes, node_of=node_of)
    state = np.where(order < len(new), _BOTH, GONE)
    at = np.searchsorted(old["id"], rows["id"])
    at[at == len(old)] = 0
    then = old.take(at) if len(old) else np.zeros(len(rows), old.dtype)
    # A flow that left and came again begins from nothing.
    again = (then["id"] != rows["id"]) | (then["first_ns"] != rows["first_ns"])
    state[again] = _NEW
    counted = rows["packets"].astype("i8")
    rate = np.where(state == GONE, 0.0, rows["bit_rate"])
    earlier = np.where(again, 0.0, then["bit_rate"])
    # A flow that a cut window lacks is neither new nor gone, and has no rate.
    unknown = (state == GONE) & (rows["last_ns"] <= after.cut_ns) | again & (rows["at_least"] > 0)
    unknown |= after.cut_rates & (rate == 0) | before.cut_rates & (earlier == 0)
    state[unknown] = _CUT
    return view, {
        "rate": rate,
        "before": earlier,
        "change": rate - earlier,
        "more": np.where(again, counted, counted - then["packets"].astype("i8")),
        "state": state,
    }
