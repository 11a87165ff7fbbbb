"""Named state of the console, for tapes: what each name of app.tape.states stands for now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from app.console.screens import SCREENS
from app.console.screens.flows.rows import endpoint
from app.console.screens.paths.model import PathKey, Paths
from probes.flow.filter import protocol_name
from probes.monitor.state import PolicyState as Stage

if TYPE_CHECKING:
    from app.console.app import ConsoleApp
    from app.console.screens.programs.model import Programs, Slot
    from app.console.screens.triggers.model import PolicyStatus
    from app.tape.named_state import StateValue
    from probes.monitor.info import MonitorInfo

Values: TypeAlias = "dict[str, StateValue]"
"""What names stand for."""


def state_of(app: ConsoleApp, name: str) -> StateValue:
    """What a name stands for; None where there is no such thing now."""
    group = name.partition(".")[0] if "." in name else ""
    values = _GROUPS[group](app) if group in _GROUPS else {}
    for mode, info in SCREENS.items():
        if any(state.name.startswith(f"{group}.") for state in info.states):
            screen = app.screen_of(mode)
            values |= screen.states() if screen is not None else {}
    return values.get(name)


def _console(app: ConsoleApp) -> Values:
    last = app.frame.last
    return {
        "view": app.current_mode,
        "paused": app.paused,
        "busy": app.at_work,
        "read_only": bool(app.read_only),
        "theme": "dark" if app.current_theme.dark else "light",
        "width": app.size.width,
        "height": app.size.height,
        "message": app.message,
        "windows": last.window if last is not None else 0,
        "generation": last.generation if last is not None else None,
        "rate": float(app.frame.flows.rows["bit_rate"].sum()),
        "lost": app.frame.lost,
        "prompt": app.asking[0],
    }


def _prompts(app: ConsoleApp) -> Values:
    return {"prompt.text": app.asking[1]}


def _flows(app: ConsoleApp) -> Values:
    total = len(app.frame.flows.rows)
    return {
        "flow.total": total, "flow.count": total, "flow.filter": "", "flow.sort": "rate",
        "flow.order": "descending", "flow.capture": app.capture, "flow.detail": False,
    }  # fmt: skip


def of_flow(row: Any) -> Values:
    """Of the flow under the cursor; `row` is of dtype LIVE."""
    return {
        "flow.source": endpoint(row, "source"),
        "flow.destination": endpoint(row, "destination"),
        "flow.protocol": protocol_name(int(row["protocol"])),
        "flow.rate": float(row["bit_rate"]),
    }


def _paths(app: ConsoleApp) -> Values:
    paths = Paths()
    paths.take(app.frame.paths, ())
    return of_path(paths, None)


def of_path(paths: Paths, choice: PathKey | None) -> Values:
    """Of all that is traced, and of the path that is looked at."""
    values: Values = {"path.count": sum(one.flow is None for one in paths.choices)}
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


def _triggers(app: ConsoleApp) -> Values:
    view = app.frame.monitor
    policies = view.policies[-1].rows if view.policies else ()
    values: Values = {"trigger.count": len(policies)}
    for row in policies:
        name, stage = row["policy"].decode(), Stage(row["state"])
        values[f"trigger.state.{name}"] = stage.name.lower()
        values[f"trigger.value.{name}"] = _known(float(row["value"]))
    values["trigger.active"] = sum(Stage(row["state"]).runs for row in policies)
    if view.metrics:
        values["trigger.flows"] = float(view.metrics[-1].rows["flows"][0])
    return values


def of_policies(info: MonitorInfo | None, chosen: PolicyStatus | None) -> Values:
    """As the control plane says that they stand, which is known before the next window."""
    if info is None:
        return {}
    values: Values = {
        "trigger.count": len(info.policies),
        "trigger.active": sum(one.state.runs for one in info.policies),
        "trigger.selected": chosen.name if chosen is not None else None,
    }
    return values | {
        f"trigger.state.{one.policy.name}": one.state.name.lower() for one in info.policies
    }


def _programs(app: ConsoleApp) -> Values:
    return {"program.count": 0, "program.state": "none"}


def of_program(programs: Programs, slot: Slot | None, doing: str) -> Values:
    """Of the source that is looked at; `doing` is what is being done with it, a state's word."""
    values: Values = {"program.count": len(programs.infos), "program.state": "none"}
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


def _events(app: ConsoleApp) -> Values:
    events = app.frame.events
    return {
        "event.count": len(events),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }


def _macros(app: ConsoleApp) -> Values:
    return {"macro.playing": app.playing, "macro.recording": app.recording}


_GROUPS: Mapping[str, Callable[[ConsoleApp], Values]] = {
    "": _console, "prompt": _prompts, "flow": _flows, "path": _paths, "trigger": _triggers,
    "program": _programs, "event": _events, "macro": _macros,
}  # fmt: skip
