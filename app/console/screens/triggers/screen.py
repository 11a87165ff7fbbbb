"""Screen 4: policies of the monitor, the applications that they wake, and a detail of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial, partialmethod

from textual import on
from textual.widget import Widget

from app.commands.remote import set_policy
from app.console.culprit import CulpritCommands
from app.console.polling import PollingScreen
from app.console.protocol import Console
from app.console.screens.triggers.columns import APPLICATIONS, POLICIES
from app.console.screens.triggers.detail import TriggerDetail
from app.console.screens.triggers.model import PolicyView, Triggers, as_of, place_of
from app.console.screens.triggers.rows import (
    EXAMPLE,
    application_columns,
    application_rows,
    counter_items,
    empty_text,
    policy_columns,
    policy_rows,
    protocols,
    share_items,
)
from app.console.tables.sorted_table import SortedTable
from app.tape.named_state import StateValues
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.state import PolicyState
from probes.snapshot import Snapshot
from widgets.status import StatusItem, StatusStrip
from widgets.table.rows import Rows
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_Fetched = tuple[MonitorInfo | None, Mapping[str, Mapping[str, int]]]
"""The monitor, and the macros of each application while its detail is open."""
_NARROW, _WIDE = (11, 12), (30, 24)
"""Cells of the flows' time line and of the protocols' bar."""


def _waits(one: PolicyView) -> bool:
    return not one.info.state.runs or one.info.policy.mode == "permanent"


def first_states(console: Console) -> StateValues:
    """Return the values of named states before the user has turned to the screen."""
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


class TriggersScreen(PollingScreen[_Fetched]):
    """Counters above, policies and applications below, and a detail of one of them."""

    MODE = "triggers"
    AUTO_FOCUS = "#policies"
    CSS = """
    TriggersScreen .counters { background: $surface; }
    TriggersScreen #policies { max-height: 60%; }
    TriggersScreen.-empty #policies { height: 1fr; max-height: 100%; }
    TriggersScreen.-none .counters, TriggersScreen.-none #applications { display: none; }
    TriggersScreen.-detail #policies { max-height: 5; }
    TriggersScreen.-detail TriggerDetail { height: 1fr; }
    TriggersScreen.-short.-detail #applications { max-height: 5; }
    TriggersScreen.-short.-policy #applications { display: none; }
    TriggersScreen.-short.-application #policies { display: none; }
    TriggersScreen.-tall.-detail #policies { max-height: 10; }
    TriggersScreen.-tall.-detail #applications { max-height: 7; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._triggers = Triggers()
        self._info: MonitorInfo | None = None
        """The monitor now; a paused screen may show an earlier state."""
        self._known = False
        """Whether the control plane has answered."""
        self._macros: Mapping[str, Mapping[str, int]] = {}
        self._statuses: list[PolicyView] = []
        self._last: tuple[Snapshot, ...] = ()
        """The last window on the screen."""
        self._warned = ""
        """The policy that the same key removes next."""
        self._about = CulpritCommands(self, lambda: self._triggers.culprit(self._chosen))
        self.parts = (self._about,)

    def compose_body(self) -> list[Widget]:
        return [
            StatusStrip(id="counters", classes="counters"),
            StatusStrip(id="mix", classes="counters"),
            SortedTable(POLICIES),
            SortedTable(APPLICATIONS, empty="no application is loaded"),
            TriggerDetail(),
        ]

    @property
    def listing(self) -> SortedTable:
        return self.query_one("#policies", SortedTable)

    @property
    def applications(self) -> SortedTable:
        return self.query_one("#applications", SortedTable)

    @property
    def detail(self) -> TriggerDetail:
        return self.query_one(TriggerDetail)

    # What runs

    def fetch(self) -> Callable[[], _Fetched]:
        plane, macros = self.console.plane, self.detail.has_class("-application")

        def ask() -> _Fetched:
            # Imported and read here, in a thread: the menu of policies opens at once then.
            from probes.monitor.policy.ready import purposes

            purposes()
            configs = [info.config for info in plane.probes()] if macros else ()
            defined = {c.name: c.ingress.define for c in configs if c.ingress is not None}
            return plane.monitor(), defined

        return ask

    def apply(self, answer: _Fetched) -> None:
        self._known = True
        self._info, self._macros = answer

    # What is shown

    def point_at(self, key: Hashable) -> None:
        self.listing.want(key)
        self.set_focus(self.listing)

    def states(self) -> StateValues:
        info, chosen = self._triggers.info, self._chosen
        if info is None or not self.is_current:
            return {}
        # The control plane knows them before the next window.
        values: StateValues = {
            "trigger.count": len(info.policies),
            "trigger.active": sum(one.state.runs for one in info.policies),
            "trigger.selected": chosen.name if chosen is not None else None,
        }
        return values | {
            f"trigger.state.{one.policy.name}": one.state.name.lower() for one in info.policies
        }

    def show(self) -> None:
        view, info = self.console.frame.monitor, self._info
        self._triggers.view = view
        self._triggers.info = as_of(info, view) if info and self.console.time.paused else info
        line, bar = _WIDE if self.has_class("-wide") else _NARROW
        self.query_one("#counters", StatusStrip).show(counter_items(self._triggers, line))
        counts = protocols(view.metrics[-1].rows[0]) if view.metrics else {}
        self.query_one("#mix", StatusStrip).show(share_items(counts, bar) if counts else [])
        self._show_policies()
        rows, applications = Rows(), self.applications
        if self._triggers.info is not None:
            applications.columns = application_columns(self._triggers)
            rows = application_rows(self._triggers)
            # The last widget takes the room that is left.
            applications.styles.height = 1 + max(1, rows.rows) if self.detail.is_open else "1fr"
        applications.fill(rows)
        self._show_detail()
        self._show_notes()
        last = self._triggers.view.policies[-1:]
        if last != self._last:
            self._last = last
            if self._triggers.outdated:
                self._poll()

    def _show_notes(self) -> None:
        info = self._triggers.info
        notes = []
        if info is not None and info.policies:
            running = sum(one.state.runs for one in info.policies)
            told = f"{running} of {len(info.policies)} active"
            notes.append(StatusItem(told, Tone.MUTED, priority=4, label="policies"))
            if info.offload:
                notes.append(StatusItem(info.offload, Tone.MUTED, priority=7))
        notes += [
            StatusItem(one.advice, Tone.WARN, priority=3, label=one.name)
            for one in self._statuses
            if one.advice
        ]
        if self._trouble:
            notes.append(StatusItem(self._trouble, Tone.BAD, priority=1))
        self.show_notes(*notes)

    def _show_policies(self) -> None:
        triggers, table = self._triggers, self.listing
        self.set_class(triggers.info is None, "-none")
        policies = [one.policy for one in triggers.info.policies] if triggers.info else []
        cells = table.width_of("line")
        table.columns = policy_columns(policies, triggers.span(cells), cells)
        if table.width_of("line") != cells:
            # The widths of the names changed.
            self.call_later(self._show_policies)
        # Active policies first: a low screen has not all rows.
        self._statuses = sorted(triggers.statuses(cells), key=_waits)
        table.empty = empty_text(triggers.info, self._known, bool(self.console.plane.read_only))
        self.set_class(not policies, "-empty")
        # None would cause a layout each time.
        table.styles.height = 1 + len(policies) if policies else "1fr"
        table.fill(policy_rows(self._statuses))

    def _show_detail(self) -> None:
        detail, info = self.detail, self._triggers.info
        if detail.has_class("-policy") and (chosen := self._chosen) is not None:
            keys = self._about.hint("trigger")
            detail.show_policy(self._triggers, chosen, self.console.time.span, keys)
        elif detail.has_class("-application") and info is not None:
            name = self.applications.cursor_key
            for one in info.applications:
                if one.name == name:
                    tables = [t for t in self.console.frame.metrics if t.probe == name]
                    detail.show_application(
                        self._triggers, one, self._macros.get(one.name, {}), tables
                    )
        elif detail.is_open:
            self._open("")

    @property
    def _chosen(self) -> PolicyView | None:
        name = self.listing.cursor_key
        return next((one for one in self._statuses if one.name == name), None)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def _open(self, kind: str) -> None:
        if not kind and self.focused not in (self.listing, self.applications):
            self.set_focus(self.listing)
        self.detail.turn_to(kind)
        self.set_class(bool(kind), "-detail")
        for one in ("policy", "application"):
            self.set_class(one == kind, f"-{one}")
        self.show()

    # Changes

    def show_change(self) -> None:
        if self._busy:
            self._warned = ""
        self._show_notes()

    def _target(self, name: str = "") -> PolicyInfo:
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
        # A policy that is named needs no second key.
        if not policy and self._warned != name:
            self._warned = name
            text = f"{self.console.key_of('trigger.remove')} again removes {name}"
            self.notify(text, severity="warning", markup=False)
            return
        ask, done = (
            partial(self.console.plane.remove_policy, name),
            f"removed {info.policy.to_short()}",
        )
        self.change(f"removing {name}", ask, lambda _: self.notify(done, markup=False))

    def do_trigger_add(self, text: str = "") -> None:
        if text:
            ask = partial(set_policy, self.console.plane, text)
            self.change("setting the policy", ask, self._is_now)
        else:
            from probes.monitor.policy.ready import purposes

            self.prompt.ask("trigger.add", "Add", EXAMPLE, "", menu=purposes())

    def do_trigger_change(self, policy: str = "") -> None:
        text = self._target(policy).policy.to_short()
        self.prompt.ask("trigger.add", "Change", EXAMPLE, text)

    def place_of(self, error: ProbedeckError, text: str) -> int | None:
        # The error of another host's controller has no column.
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

    def do_trigger_next(self, by: int = 1) -> None:
        self.detail.step(by)
        self._show_detail()

    do_trigger_previous = partialmethod(do_trigger_next, -1)
    do_trigger_sort = PollingScreen.sort_rows
    do_trigger_reverse = PollingScreen.reverse_rows

    @on(VirtualTable.RowSelected, "#policies, #applications")
    def _selected(self, event: VirtualTable.RowSelected) -> None:
        if event.table is self.listing:
            self._open("policy")
        else:
            self._open("application")
            self._poll()

    @on(VirtualTable.RowHighlighted, "#policies, #applications")
    def _highlighted(self) -> None:
        self._warned = ""
        self._show_detail()
