"""Values of the named states of screen 3."""

from __future__ import annotations

from typing import Any

from app.console.protocol import Console
from app.console.screens.flows.flow import endpoint
from app.tape.named_state import StateValues
from probes.filter.network import protocol_name


def values(console: Console) -> StateValues:
    """Return the values before the user has turned to the screen."""
    total = len(console.frame.flows.rows)
    return {
        "flow.total": total, "flow.count": total, "flow.filter": "", "flow.sort": "rate",
        "flow.order": "descending", "flow.capture": console.plane.capture, "flow.detail": False,
    }  # fmt: skip


def of_flow(row: Any) -> StateValues:
    """Return the values about the flow under the cursor, a row of dtype LIVE."""
    return {
        "flow.source": endpoint(row, "source"),
        "flow.destination": endpoint(row, "destination"),
        "flow.protocol": protocol_name(int(row["protocol"])),
        "flow.rate": float(row["bit_rate"]),
    }
