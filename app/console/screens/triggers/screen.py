"""Screen 4: policies of the monitor, the applications that they wake, and a detail of one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial, partialmethod

from textual import events, on
from textual.widget import Widget

from app.commands.remote import set_policies
from app.console.culprit import CulpritCommands
from app.console.protocol import on_host, with_hint
from app.console.screen import ConsoleScreen, PollingScreen
from app.console.screens.triggers.columns import APPLICATIONS, POLICIES
from app.console.screens.triggers.detail import TriggerDetail
from app.console.screens.triggers.model import Infos, MonitorHosts, PolicyView, Triggers, place_of
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
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import counted
from probes.monitor.info import PolicyInfo
from probes.snapshot import NOT_COUNTED, Snapshot
from widgets.status import StatusItem, StatusStrip
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_Fetched = tuple[Infos, Mapping[str, Mapping[str, int]]]
"""The monitors, and the macros of each application while its detail is open."""
_NARROW, _WIDE = (11, 12), (30, 24)
"""Cells of the flows' time line and of the protocols' bar."""


def _tell(screen: ConsoleScreen, host: str, info: PolicyInfo) -> None:
    text = f"{info.policy.name} is {info.state.label}{on_host(host)}"
    screen.notify(text, timeout=2.0, markup=False)


def _tell_all(screen: ConsoleScreen, host: str, infos: tuple[PolicyInfo, ...]) -> None:
    if len(infos) == 1:
        _tell(screen, host, infos[0])
        return
    text = f"{len(infos)} policies are set{on_host(host)}"
    screen.notify(text, timeout=2.0, markup=False)


def _kind_of(screen: TriggersScreen) -> str:
    """Return the kind of the detail. A tall screen shows the row under the cursor."""
    if not screen.has_class("-tall"):
        return screen.opened
    if screen.focused not in (screen.applications, screen.detail.table):
        return "policy" if screen.listing.cursor_key is not None else ""
    return "application" if screen.applications.cursor_key is not None else ""


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
        self._hosts = MonitorHosts()
        self._host = ""
        """The host whose counters and applications are shown."""
        self._edited = ""
        """The host of the policy that the prompt changes; empty: all hosts."""
        self._known = False
        """Whether the control plane has answered."""
        self._macros: Mapping[str, Mapping[str, int]] = {}
        self._statuses: list[PolicyView] = []
        self._last: tuple[Snapshot, ...] = ()
        """The last window on the screen."""
        self._warned: tuple[str, str] | None = None
        """Host and name of the policy that the same key removes next."""
        self.opened = ""
        """The detail that the user has opened: `policy`, `application` or empty."""
        self._about = CulpritCommands(
            self, "trigger", lambda: self._triggers.culprit(self._chosen),
            lambda: self._triggers.host,
        )  # fmt: skip
        self.parts = (self._about,)
        self.name_under_cursor = lambda: self._target("")[1].policy.name

    def compose_body(self) -> list[Widget]:
        return [
            StatusStrip(id="counters", classes="counters"),
            StatusStrip(id="mix", classes="counters"),
            SortedTable(POLICIES),
            SortedTable(APPLICATIONS, empty="none is awake: a policy wakes them"),
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

    @property
    def _triggers(self) -> Triggers:
        """The model of the host under the cursor."""
        key = self.listing.cursor_key
        return self._hosts.model(key[0] if isinstance(key, tuple) else "")

    # What runs

    def fetch(self) -> Callable[[], _Fetched]:
        console, known, host = self.console, self._hosts.infos, self._triggers.host
        macros = self.detail.kind == "application"

        def ask() -> _Fetched:
            # Imported and read here, in a thread: the menu of policies opens at once then.
            from probes.monitor.policy.ready import purposes

            purposes()
            probes = console.hosts.plane(host).probes() if macros else ()
            configs = [info.config for info in probes]
            defined = {c.name: c.ingress.define for c in configs if c.ingress is not None}
            return console.hosts.ask(lambda plane: plane.monitor(), known), defined

        return ask

    def apply(self, answer: _Fetched) -> None:
        self._known = True
        self._hosts.infos, self._macros = answer

    # What is shown

    def point_at(self, key: Hashable) -> None:
        if self.console.hosts.several and isinstance(key, str):
            key = self.console.hosts.current, key
        self.listing.want(key)
        self.set_focus(self.listing)

    def states(self) -> StateValues:
        policies, chosen = self._hosts.policies, self._chosen
        if self._triggers.info is None or not self.is_current:
            return {}
        # The control plane knows them before the next window.
        values: StateValues = {
            "trigger.count": len(policies),
            "trigger.active": sum(one.state.runs for one in policies),
            "trigger.selected": chosen.name if chosen is not None else None,
        }
        return values | {
            f"trigger.state.{one.policy.name}": one.state.name.lower() for one in policies
        }

    def show(self) -> None:
        self._hosts.take(self.console)
        self._show_policies()
        triggers = self._triggers
        view, self._host = triggers.view, triggers.host
        line, bar = _WIDE if self.has_class("-wide") else _NARROW
        self.query_one("#counters", StatusStrip).show(counter_items(triggers, line))
        counts = protocols(view.metrics[-1].rows[0]) if view.metrics else {}
        self.query_one("#mix", StatusStrip).show(share_items(counts, bar) if counts else [])
        self.detail.turn_to(_kind_of(self))
        rows, applications = application_rows(triggers), self.applications
        if triggers.info is not None:
            applications.columns = application_columns(triggers)
            # The last widget takes the room that is left.
            applications.styles.height = 1 + max(1, rows.rows) if self.detail.is_open else "1fr"
        applications.fill(rows)
        self._show_detail()
        self._show_notes()
        models = self._hosts.models.values()
        last = tuple(one for model in models for one in model.view.policies[-1:])
        if last != self._last:
            self._last = last
            if any(model.outdated for model in models):
                self._poll()

    def _show_notes(self) -> None:
        info, policies = self._triggers.info, self._hosts.policies
        notes = []
        if policies:
            running = sum(one.state.runs for one in policies)
            told = f"{running} of {len(policies)} active"
            notes.append(StatusItem(told, Tone.MUTED, priority=4, label="policies"))
            actions = [one.action for one in policies if one.action and one.action.until_utc_ns]
            if acting := sum(not one.dry for one in actions):
                key = self.console.key_of("action.stop")
                text = f"{counted(acting, 'action')} on packets, {key} ends all"
                notes.append(StatusItem(text, Tone.BAD, priority=1))
            if info is not None and info.held:
                notes.append(StatusItem(NOT_COUNTED, Tone.WARN, priority=1))
            if info is not None and info.offload:
                notes.append(StatusItem(info.offload, Tone.MUTED, priority=7))
        notes += [
            StatusItem(one.advice, Tone.WARN, priority=3, label=one.full_name)
            for one in self._statuses
            if one.advice
        ]
        if self._trouble:
            notes.append(StatusItem(self._trouble, Tone.BAD, priority=1))
        self.show_notes(*notes)

    def _show_policies(self) -> None:
        models, table = self._hosts.models, self.listing
        info = next((model.info for model in models.values() if model.info), None)
        self.set_class(info is None, "-none")
        policies = [one.policy for one in self._hosts.policies]
        cells = table.width_of("line")
        span = max((model.span(cells) for model in models.values()), default=0.0)
        merged = self.console.hosts.several
        table.columns = policy_columns(policies, span, cells, models if merged else ())
        if table.width_of("line") != cells:
            # The widths of the names changed.
            self.call_later(self._show_policies)
        # Active policies first: a low screen has not all rows.
        self._statuses = sorted(
            self._hosts.statuses(cells),
            key=lambda one: not one.info.state.runs or one.info.policy.mode == "permanent",
        )
        table.empty = with_hint(self.console, *empty_text(info)) if self._known else ""
        if not models:
            table.empty = "no chosen host answers"
        self.set_class(not policies, "-empty")
        # None would cause a layout each time.
        table.styles.height = 1 + len(policies) if policies else "1fr"
        table.fill(policy_rows(self._statuses))

    def _show_detail(self) -> None:
        detail, info = self.detail, self._triggers.info
        if detail.kind == "policy" and (chosen := self._chosen) is not None:
            keys = self._about.hint
            detail.show_policy(self._triggers, chosen, self.console.time.span, keys)
        elif detail.kind == "application" and info is not None:
            name = self.applications.cursor_key
            for one in info.applications:
                if one.name == name:
                    whole = self.console.time.frame
                    frame = whole.of(self._triggers.host) or whole
                    tables = [t for t in frame.metrics if t.probe == name]
                    detail.show_application(
                        self._triggers, one, self._macros.get(one.name, {}), tables
                    )
        elif self.opened:
            self._open("")

    @property
    def _chosen(self) -> PolicyView | None:
        key = self.listing.cursor_key
        return next((one for one in self._statuses if one.key == key), None)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def _open(self, kind: str) -> None:
        if not kind and self.focused not in (self.listing, self.applications):
            self.set_focus(self.listing)
        self.opened = kind
        self.show()

    # Changes

    def show_change(self) -> None:
        if self._busy:
            self._warned = None
        self._show_notes()

    def _target(self, name: str = "") -> tuple[str, PolicyInfo]:
        """Return a policy by name, or the one under the cursor, and its host."""
        if not name:
            if (chosen := self._chosen) is None:
                raise UsageError("there is no policy here")
            name = chosen.name
        return self._hosts.find(name, self._triggers.host)

    def do_trigger_toggle(self, policy: str = "") -> None:
        host, info = self._target(policy)
        plane, name = self.console.hosts.plane(host), info.policy.name
        if info.state.runs:
            what, ask = "deactivating", partial(plane.deactivate_policy, name)
        else:
            what, ask = "activating", partial(plane.activate_policy, name)
        self.change(f"{what} {name}{on_host(host)}", ask, partial(_tell, self, host))

    def do_trigger_remove(self, policy: str = "") -> None:
        host, info = self._target(policy)
        name = info.policy.name
        # A policy that is named needs no second key.
        if not policy and self._warned != (host, name):
            self._warned = host, name
            text = f"{self.console.key_of('trigger.remove')} again removes {name}{on_host(host)}"
            self.notify(text, severity="warning", markup=False)
            return
        ask, done = (
            partial(self.console.hosts.plane(host).remove_policy, name),
            f"removed {info.policy.to_short()}{on_host(host)}",
        )
        self.change(
            f"removing {name}{on_host(host)}", ask, lambda _: self.notify(done, markup=False)
        )

    def do_trigger_add(self, text: str = "") -> None:
        if text:
            # A whole line has the same command, and is about all hosts.
            answers = self.prompt.is_open and self.prompt.command == "trigger.add"
            host = self._edited if answers else ""
            ask = partial(set_policies, self.console.hosts.plane(host), text)
            self.change(f"setting the policy{on_host(host)}", ask, partial(_tell_all, self, host))
        else:
            from probes.monitor.policy.ready import menu

            self._edited, hosts = "", self.console.hosts
            question = f"Add on {len(hosts.planes.chosen)} hosts" if hosts.several else "Add"
            self.prompt.ask("trigger.add", question, EXAMPLE, "", menu=menu())

    def do_trigger_change(self, policy: str = "") -> None:
        self._edited, info = self._target(policy)
        text = info.policy.to_short()
        self.prompt.ask("trigger.add", f"Change{on_host(self._edited)}", EXAMPLE, text)

    def place_of(self, error: ProbedeckError, text: str) -> int | None:
        # The error of another host's controller has no column.
        place = super().place_of(error, text)
        return place_of(str(error), text) if place is None else place

    # Moving about

    def do_trigger_detail(self) -> None:
        (self.applications if self.applications.has_focus else self.listing).action_select()

    def do_trigger_leave(self) -> None:
        self._warned = None
        self.do_leave()

    def close_detail(self) -> bool:
        has_focus = self.detail.table.has_focus
        if was_open := has_focus or (self.detail.is_open and not self.has_class("-tall")):
            self._open("")
        return was_open

    def do_trigger_next(self, by: int = 1) -> None:
        self.detail.step(by)
        self._show_detail()

    do_trigger_previous = partialmethod(do_trigger_next, -1)

    @on(VirtualTable.RowSelected, "#policies, #applications")
    def _selected(self, event: VirtualTable.RowSelected) -> None:
        if event.table is self.listing:
            self._open("policy")
        else:
            self._open("application")
            self._poll()

    @on(events.DescendantFocus)
    @on(VirtualTable.RowHighlighted, "#policies, #applications")
    def _highlighted(self) -> None:
        self._warned = None
        if self._triggers.host != self._host or _kind_of(self) != self.detail.kind:
            self.show()
            self._poll()
        else:
            self._show_detail()
