"""Two moments of screen 3 side by side: the changes of each flow, or of groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.commands.flow_view import Grouping
from app.console.host_names import Names
from app.console.live.flows import LiveView
from app.console.live.owners import NO_OWNERS, OwnerView
from app.console.live.paths import PathView
from app.console.screens.flows.columns import CHANGES, STATES
from app.console.screens.flows.group_columns import GROUP_CHANGES
from app.console.screens.flows.group_part import ShownGroups
from app.console.screens.flows.grouped import GroupedFlows
from app.console.screens.flows.part import GONE, ShownFlows
from app.console.screens.flows.rows import flow_rows, group_part
from app.console.screens.flows.table import live_table
from app.console.tables.array_rows import ArrayRows
from probes.flow.filter import FlowFilter

_BOTH, _NEW = STATES.index(""), STATES.index("new")


def flow_changes(
    before: LiveView, after: LiveView, shown: FlowFilter, paths: PathView | None = None,
    names: Names | None = None, owners: OwnerView = NO_OWNERS,
) -> ArrayRows[ShownFlows]:  # fmt: skip
    """Compare the flows that `shown` passes; terms on RTTs look at `paths`.

    Columns: bits per second at the later moment (`rate`), at the earlier one (`before`), and the
    difference (`change`); packets between the two, 0 for a flow that is gone (`more`); and `state`,
    the places in STATES.
    """
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
    changes = {
        "rate": rate,
        "before": earlier,
        "change": rate - earlier,
        "more": np.where(again, counted, counted - then["packets"].astype("i8")),
        "state": state,
    }
    part = flow_rows(view, shown, live_table(view, paths, names, owners=owners)).part
    return ArrayRows(CHANGES, ShownFlows(view, part.table, part.places, changes))


def group_changes(flows: ShownFlows, by: Grouping, names: Names | None) -> ArrayRows[ShownGroups]:
    """Group compared flows. A group is new, or gone, if all its flows are."""
    groups = GroupedFlows(flows.view, flows.places, by, flows.table)
    changes = {name: groups.sums(flows[name]) for name in ("change", "rate", "before", "more")}
    size, state = groups.sums(np.ones(len(flows))), flows["state"]
    found = np.full(len(size), _BOTH)
    for one in (_NEW, GONE):
        found[groups.sums(state == one) == size] = one
    return ArrayRows(GROUP_CHANGES, group_part(groups, names, 80, changes | {"state": found}))
