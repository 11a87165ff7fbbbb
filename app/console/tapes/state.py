"""Values of the named states of app.tape.states, for tapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS
from app.console.screens.flows.rows import endpoint
from app.console.screens.paths.model import PathKey, Paths
from probes.filter.network import protocol_name
from probes.monitor.state import PolicyState as Stage

if TYPE_CHECKING:
    from app.console.screens.programs.model import Programs, Slot
    from app.console.screens.triggers.model import PolicyView
    from app.tape.named_state import StateValue
    from probes.monitor.info import MonitorInfo

StateValues: TypeAlias = "dict[str, StateValue]"
"""Values by name."""


def state_of(console: Console, name: str) -> StateValue:
    """Return the value of a named state; None if it does not exist now."""
    group = name.partition(".")[0] if "." in name else ""
    values = _GROUPS[group](console) if group in _GROUPS else {}
    for mode, info in SCREENS.items():
        if any(state.name.startswith(f"{group}.") for state in info.states):
            screen = _screen_of(console, mode)
            values |= screen.states() if screen is not None else {}
    return values.get(name)


def _screen_of(console: Console, mode: str) -> ConsoleScreen | None:
    """Return a mode's screen, if the user has turned to it."""
    try:
        screen = console.app.get_screen_stack(mode)[0]
    except (KeyError, IndexError):
        return None
    return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None


def _console(console: Console) -> StateValues:
    last, app = console.frame.last, console.app
    return {
        "view": app.current_mode,
        "paused": console.time.paused,
        "busy": console.tasks.busy,
        "read_only": bool(console.plane.read_only),
        "theme": "dark" if app.current_theme.dark else "light",
        "width": app.size.width,
        "height": app.size.height,
        "windows": last.window if last is not None else 0,
        "generation": last.generation if last is not None else None,
        "rate": float(console.frame.flows.rows["bit_rate"].sum()),
        "lost": console.frame.lost,
    }


def _flows(console: Console) -> StateValues:
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


def _paths(console: Console) -> StateValues:
    paths = Paths()
    paths.take(console.frame.paths, ())
    return of_path(paths, None)


def of_path(paths: Paths, choice: PathKey | None) -> StateValues:
    """Return the values about all traced paths, and about the chosen path."""
    values: StateValues = {"path.count": sum(one.flow is None for one in paths.choices)}
    if choice is None or choice not in paths.choices:
        return values
    hops, summary = paths.hops(choice, 1), paths.summary(choice)
    return values | {
        "path.destination": choice.destination,
        "path.hops": len(hops),
        "path.answering": sum(bool(hop.routers) for hop in hops),
        "path.rtt": _known(summary.rtt),
        "path.loss": _known(summary.loss),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _triggers(console: Console) -> StateValues:
    view = console.frame.monitor
    policies = view.policies[-1].rows if view.policies else ()
    values: StateValues = {"trigger.count": len(policies)}
    for row in policies:
        name, stage = row["policy"].decode(), Stage(row["state"])
        values[f"trigger.state.{name}"] = stage.name.lower()
        values[f"trigger.value.{name}"] = _known(float(row["value"]))
    values["trigger.active"] = sum(Stage(row["state"]).runs for row in policies)
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


def _programs(console: Console) -> StateValues:
    return {"program.count": 0, "program.state": "none"}


def of_program(programs: Programs, slot: Slot | None, doing: str) -> StateValues:
    """Return the values about the chosen source; `doing` is the state of a change or a check."""
    values: StateValues = {"program.count": len(programs.infos), "program.state": "none"}
    if slot is None or slot.probe not in programs.infos:
        return values
    info, verdict = programs.infos[slot.probe], programs.verdict(slot.probe)
    state = "ended" if info.failure else "running"
    if programs.modified(slot.probe):
        state = "edited"
        if verdict is not None:
            state = "ready" if verdict.check is not None else "failed"
    return values | {
        "program.probe": slot.probe,
        "program.state": doing or state,
        "program.generation": info.generation,
        "program.problems": len(verdict.diagnostics) if verdict is not None else None,
    }


def _events(console: Console) -> StateValues:
    events = console.frame.events
    return {
        "event.count": len(events),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }


_GROUPS: Mapping[str, Callable[[Console], StateValues]] = {
    "": _console, "flow": _flows, "path": _paths, "trigger": _triggers, "program": _programs,
    "event": _events,
}  # fmt: skip
