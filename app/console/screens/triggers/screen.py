"""Screen 4: the monitor's policies and applications, and what wakes them."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from textual import on

from app.commands.remote import set_policy
from app.console.screens.triggers.model import place_of
from app.console.screens.triggers.rows import EXAMPLE
from app.console.screens.triggers.view import TriggerView
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.monitor.info import PolicyInfo
from widgets.table.table import VirtualTable

_T = TypeVar("_T")


class TriggersScreen(TriggerView):
    """What an operator can do to policies."""

    MODE = "triggers"

    def __init__(self) -> None:
        super().__init__()
        self._warned = ""
        """The policy that is removed when that is asked for again."""

    # Changes

    def show_change(self) -> None:
        if self._busy:
            self._warned = ""
        self._show_notes()

    def _target(self, name: str = "") -> PolicyInfo:
        """The policy of a name, or the one under the cursor. UsageError where there is none."""
        if not name:
            if (chosen := self._chosen) is None:
                raise UsageError("there is no policy here")
            name = chosen.name
        info = self._info
        infos = {one.policy.name: one for one in info.policies} if info is not None else {}
        if name not in infos:
            raise UsageError(f"there is no policy {name!r}", hint=did_you_mean(name, infos))
        return infos[name]

    def do_trigger_toggle(self, policy: str = "") -> None:
        info = self._target(policy)
        plane, name = self.console.plane, info.policy.name
        if info.state.runs:
            what, ask = "deactivating", partial(plane.deactivate_policy, name)
        else:
            what, ask = "activating", partial(plane.activate_policy, name)
        self.change(f"{what} {name}", ask, self._is_now)

    def _is_now(self, info: PolicyInfo) -> None:
        self.notify(f"{info.policy.name} is {info.state.label}", timeout=2.0, markup=False)

    def do_trigger_remove(self, policy: str = "") -> None:
        info = self._target(policy)
        name = info.policy.name
        # Who says which one means it.
        if not policy and self._warned != name:
            self._warned = name
            text = f"{self.console.key_of('trigger.remove')} again removes {name}"
            self.notify(text, severity="warning", markup=False)
            return
        ask = partial(self.console.plane.remove_policy, name)
        self.change(f"removing {name}", ask, lambda _: self._removed(info))

    def _removed(self, info: PolicyInfo) -> None:
        self.notify(f"removed {info.policy.to_short()}", markup=False)

    def do_trigger_add(self, text: str = "") -> None:
        if text:
            self._set(text)
        else:
            self.prompt.ask("trigger.add", "Add", EXAMPLE, "")

    def do_trigger_change(self, policy: str = "") -> None:
        text = self._target(policy).policy.to_short()
        self.prompt.ask("trigger.add", "Change", EXAMPLE, text)

    def _set(self, text: str) -> None:
        ask = partial(set_policy, self.console.plane, text)
        self.change("setting the policy", ask, self._is_now)

    def place_of(self, error: ProbedeckError, text: str) -> int | None:
        # One by another host's controller is no TextError any more.
        place = super().place_of(error, text)
        return place_of(str(error), text) if place is None else place

    # Moving about

    def do_trigger_detail(self) -> None:
        (self.applications if self.applications.has_focus else self.listing).action_select()

    def do_trigger_leave(self) -> None:
        self._warned = ""
        self.leave()

    def close_detail(self) -> bool:
        if was_open := self.detail.is_open:
            self._open("")
        return was_open

    def do_trigger_next(self) -> None:
        self._step(1)

    def do_trigger_previous(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        self.detail.step(by)
        self._show_detail()

    do_trigger_sort = TriggerView.sort_rows
    do_trigger_reverse = TriggerView.reverse_rows

    @on(VirtualTable.RowSelected, "#policies")
    def _policy_selected(self) -> None:
        self._open("policy")

    @on(VirtualTable.RowSelected, "#applications")
    def _application_selected(self) -> None:
        self._open("application")
        self._poll()

    @on(VirtualTable.RowHighlighted, "#policies, #applications")
    def _highlighted(self) -> None:
        self._warned = ""
        self._show_detail()
