"""The monitor of one host, or the monitors of the chosen hosts of a fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.console.live.chosen import several
from app.console.live.monitor import MonitorView
from app.console.live.state import Frame
from app.console.protocol import Console
from app.console.screens.triggers.model import PolicyView, Triggers, as_of
from app.tape.named_state import StateValues
from bpf.errors import UsageError, did_you_mean
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.state import PolicyState

Infos = Mapping[str, MonitorInfo | None]
"""Monitors by host; the only host of a console has an empty name."""


def monitors(frame: Frame, *, merged: bool) -> dict[str, MonitorView]:
    """Return the monitor's windows by host; `merged`: the frame is of several hosts."""
    if merged:
        return {part.host: part.frame.monitor for part in frame.parts}
    return {"": frame.monitor}


@dataclass(slots=True)
class MonitorHosts:
    """The policies of every chosen host, and the control plane of each."""

    models: dict[str, Triggers] = field(default_factory=lambda: {"": Triggers()})
    """By host, in the order of the fleet."""
    infos: Infos = field(default_factory=dict)
    """The monitors now; a paused screen may show an earlier state."""

    def take(self, console: Console) -> None:
        """Arrange the shown frame by host and policy."""
        views = monitors(console.frame, merged=several(console) is not None)
        self.models = {host: self.models.get(host) or Triggers(host=host) for host in views}
        for host, view in views.items():
            model, info = self.models[host], self.infos.get(host)
            model.view = view
            model.info = as_of(info, view) if info and console.time.paused else info

    @property
    def policies(self) -> list[PolicyInfo]:
        """The shown policies of all hosts."""
        infos = [model.info for model in self.models.values()]
        return [one for info in infos if info is not None for one in info.policies]

    def statuses(self, cells: int) -> list[PolicyView]:
        """Return every policy of every host, with a time line of `cells` cells."""
        return [one for model in self.models.values() for one in model.statuses(cells)]

    def model(self, host: str) -> Triggers:
        """Return the model of a host; of an unknown one, of the first that has a monitor."""
        if (found := self.models.get(host)) is not None:
            return found
        models = self.models.values()
        return next((one for one in models if one.info), next(iter(models), Triggers()))

    def find(self, name: str, host: str) -> tuple[str, PolicyInfo]:
        """Return the host and the present state of a policy: on `host`, or else on the only one.

        Raises UsageError if no host has the policy, or if several others have it.
        """
        every = {
            (of, one.policy.name): one
            for of, info in self.infos.items()
            for one in (info.policies if info is not None else ())
        }
        if (host, name) in every:
            return host, every[host, name]
        having = [of for of, known in every if known == name]
        if not having:
            hint = did_you_mean(name, {known for _, known in every})
            raise UsageError(f"there is no policy {name!r}", hint=hint)
        if len(having) > 1:
            text = f"{', '.join(having)} have a policy {name!r}"
            raise UsageError(text, hint="put the cursor on a row of the host")
        return having[0], every[having[0], name]


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
    views = monitors(console.frame, merged=several(console) is not None).values()
    policies = [row for view in views for row in (view.policies[-1].rows if view.policies else ())]
    values: StateValues = {"trigger.count": len(policies)}
    for row in policies:
        name, stage = row["policy"].decode(), PolicyState(row["state"])
        values[f"trigger.state.{name}"] = stage.name.lower()
        values[f"trigger.value.{name}"] = None if math.isnan(row["value"]) else float(row["value"])
    values["trigger.active"] = sum(PolicyState(row["state"]).runs for row in policies)
    if (view := console.frame.monitor).metrics:
        values["trigger.flows"] = float(view.metrics[-1].rows["flows"][0])
    return values
