"""Named state of the console, for tapes: what each name of app.tape.states stands for now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from app.console.path_model import Choice, Paths
from probes.primitive.records import State as Stage

if TYPE_CHECKING:
    from app.console.app import ConsoleApp
    from app.tape.states import State

_Values: TypeAlias = "dict[str, State]"


def state_of(app: ConsoleApp, name: str) -> State:
    """What a name stands for; None where there is no such thing now."""
    group = name.partition(".")[0] if "." in name else ""
    values = _GROUPS[group](app)
    mode = _MODES.get(group, "")
    if mode and (screen := app.screen_of(mode)) is not None:
        values |= screen.states()
    return values.get(name)


def _console(app: ConsoleApp) -> _Values:
    last = app.frame.last
    return {
        "view": app.current_mode,
        "paused": app.paused,
        "busy": app.busy,
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


def _prompts(app: ConsoleApp) -> _Values:
    return {"prompt.text": app.asking[1]}


def _flows(app: ConsoleApp) -> _Values:
    total = len(app.frame.flows.rows)
    return {
        "flow.total": total, "flow.count": total, "flow.filter": "", "flow.sort": "rate",
        "flow.order": "descending", "flow.capture": app.capture.text, "flow.detail": False,
    }  # fmt: skip


def _paths(app: ConsoleApp) -> _Values:
    paths = Paths()
    paths.take(app.frame.paths, ())
    return of_path(paths, None)


def of_path(paths: Paths, choice: Choice | None) -> _Values:
    """Of all that is traced, and of the path that is looked at."""
    values: _Values = {"path.count": sum(one.flow is None for one in paths.choices)}
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


def _triggers(app: ConsoleApp) -> _Values:
    view = app.frame.monitor
    policies = view.policies[-1].rows if view.policies else ()
    values: _Values = {"trigger.count": len(policies), "trigger.active": 0}
    for row in policies:
        stage = Stage(row["state"])
        values |= of_policy(row["policy"].decode(), stage, row)
        values["trigger.active"] = int(values["trigger.active"] or 0) + stage.runs
    if view.metrics:
        values["trigger.flows"] = float(view.metrics[-1].rows["flows"][0])
    return values


def of_policy(name: str, stage: Stage, numbers: Any) -> _Values:
    """`numbers` is a row of dtype POLICY."""
    value = _known(float(numbers["value"]))
    return {f"trigger.state.{name}": stage.name.lower(), f"trigger.value.{name}": value}


def _programs(app: ConsoleApp) -> _Values:
    return {"program.state": "none"}


def _events(app: ConsoleApp) -> _Values:
    events = app.frame.events
    return {
        "event.count": len(events),
        "event.errors": sum(event.severity == "error" for event in events),
        "event.last": events[0].text if events else None,
    }


def _macros(app: ConsoleApp) -> _Values:
    return {"macro.playing": app.playing, "macro.recording": app.recording}


_GROUPS: Mapping[str, Callable[[ConsoleApp], _Values]] = {
    "": _console, "prompt": _prompts, "flow": _flows, "path": _paths, "trigger": _triggers,
    "program": _programs, "event": _events, "macro": _macros,
}  # fmt: skip
_MODES = {"flow": "flows", "path": "paths", "trigger": "triggers", "program": "programs"}
"""The screens that know more of a group, as soon as they were turned to."""
