"""Values of the named states of screen 4."""

from __future__ import annotations

import math

from app.console.protocol import Console
from app.console.screens.triggers.model import PolicyView
from app.tape.named_state import StateValues
from probes.monitor.info import MonitorInfo
from probes.monitor.state import PolicyState


def values(console: Console) -> StateValues:
    """Return the values before the user has turned to the screen."""
    view = console.frame.monitor
    policies = view.policies[-1].rows if view.policies else ()
    values: StateValues = {"trigger.count": len(policies)}
    for row in policies:
        name, stage = row["policy"].decode(), PolicyState(row["state"])
        values[f"trigger.state.{name}"] = stage.name.lower()
        values[f"trigger.value.{name}"] = None if math.isnan(row["value"]) else float(row["value"])
    values["trigger.active"] = sum(PolicyState(row["state"]).runs for row in policies)
    if view.metrics:
        values["trigger.flows"] = float(view.metrics[-1].rows["flows"][0])
    return values


def of_policies(info: MonitorInfo | None, chosen: PolicyView | None) -> StateValues:
    """Return the values by the control plane, which knows them before the next window."""
    if info is None:
        return {}
    values: StateValues = {
        "trigger.count": len(info.policies),
        "trigger.active": sum(one.state.runs for one in info.policies),
        "trigger.selected": chosen.name if chosen is not None else None,
    }
    return values | {
        f"trigger.state.{one.policy.name}": one.state.name.lower() for one in info.policies
    }
