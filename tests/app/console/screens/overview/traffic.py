"""Flows, and the state of a probe at its last window."""

from __future__ import annotations

from app.console.live.overview_feed import Pulse
from bpf.arrays import Array
from probes.flow.records import FlowDirection
from probes.snapshot import Loss, LossReason
from tests.app.console.fake import flow

SECOND_NS = 10**9
FULL = {LossReason.TABLE_FULL: Loss(7)}


def out(rows: Array) -> Array:
    """The same flow, out of this host."""
    rows["direction"] = FlowDirection.EGRESS
    return rows


def some() -> list[Array]:
    return [flow(1, 10, proto=17), flow(2, 30), out(flow(3, 20)), flow(4, 5, proto=58)]


def pulse(**changes: object) -> Pulse:
    usual = {
        "name": "flow", "generation": 1, "interval": 1.0, "poll": 0.01, "occupancy": 0.0,
        "came_at": 0.0, "end_utc_ns": 0, "window": 1, "last": {}, "losses": {},
    }  # fmt: skip
    return Pulse(**(usual | changes))  # type: ignore[arg-type]
