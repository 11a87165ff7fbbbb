"""Flows of several interfaces on screen 3: groups and their sums."""

from __future__ import annotations

import numpy as np

from app.commands.flow_view import INTERFACES, Grouping
from app.console.live.flows import LIVE, LiveView
from app.console.screens.flows.detail import repeated_items
from app.console.screens.flows.group_columns import has_interfaces
from app.console.screens.flows.owners import labels_of
from app.console.screens.flows.rows import GroupedFlows, live_table
from bpf.arrays import Rows
from probes.flow.filter import FlowFilter
from probes.flow.interfaces import INTERFACE
from probes.flow.records import FlowDirection
from tests.support.console.feed import window


def flows() -> Rows[LIVE]:
    """A conversation that comes in by eth0 and leaves by veth1, and another one at veth1."""
    rows = np.zeros(3, LIVE)
    rows["version"], rows["protocol"], rows["id"] = 4, 17, (1, 2, 3)
    rows["interface"] = b"eth0", b"veth1", b"veth1"
    rows["direction"] = FlowDirection.INGRESS, FlowDirection.EGRESS, FlowDirection.EGRESS
    rows["source"][:, 0], rows["destination"][:, 0] = (1, 2, 2), (2, 1, 3)
    rows["bit_rate"] = 100, 20, 3
    return rows


def test_groups_by_interface_have_the_sums_of_their_flows() -> None:
    view = LiveView(flows(), 0, 0)
    grouped = GroupedFlows(view, np.arange(3), Grouping(INTERFACES), live_table(view))
    labels = [grouped.labels[number] for number in grouped.rows["id"].tolist()]
    sums = zip(grouped.column("in").tolist(), grouped.column("out").tolist(), strict=True)
    assert dict(zip(labels, sums, strict=True)) == {"eth0": (100, 0), "veth1": (0, 23)}
    numbers, _ = labels_of(INTERFACES, view.rows, grouped.table.owned)
    assert set(numbers.tolist()) == set(grouped.rows["id"].tolist())


def test_the_filter_takes_names_and_patterns() -> None:
    table = live_table(LiveView(flows(), 0, 0))
    for text, passing in (("if:eth0", 1), ("if:veth", 0), ("if:veth*", 2), ("if:eth0,veth1", 3),
                          ("!if:eth0", 2), ("if:/th/", 3)):  # fmt: skip
        assert FlowFilter.parse(text).mask(table).sum() == passing, text


def test_the_line_of_totals_names_the_interfaces_that_saw_packets_again() -> None:
    rows = np.zeros(3, INTERFACE)
    rows["interface"] = b"eth0", b"veth1", b"veth2"
    rows["repeated_out_bytes"][:2], rows["repeated_in_bytes"][1] = (125_000, 1_000), 250_000
    items = [(item.label, item.text) for item in repeated_items(window(rows, 1))]
    assert items == [("repeated at", "veth1 2.01 Mbit/s"), ("", "eth0 1.00 Mbit/s")]
    assert not repeated_items(window(rows[2:], 1))


def test_one_interface_needs_no_column() -> None:
    assert has_interfaces(flows())
    assert not has_interfaces(flows()[1:])
    assert not has_interfaces(flows()[:0])
