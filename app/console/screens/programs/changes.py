"""Changes of running probes on screen 5, and the confirmation of those that lose something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from textual.app import App
from textual.widget import Widget

from app.commands.remote import add_probe, add_ready_probe, ready_config
from app.config.ready_probes import ReadyProbe, ready_probes
from app.console.prompt.prompt import Prompt
from app.console.protocol import Console
from app.console.screens.programs.library import LibraryScreen
from app.console.screens.programs.live_maps import LiveMaps
from app.console.screens.programs.model import Programs, Verdict, loses
from app.console.screens.programs.panels import Panel, SourcePanel
from app.console.screens.programs.sources import Sources
from app.console.tables.sorted_table import SortedTable
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import MISSING, counted, duration
from probes.control.trials import CutError
from probes.control_plane import ProbeInfo, Replacement
from probes.snapshot import Snapshot

_T = TypeVar("_T")
_LOSES = "the report says what is lost"
_CUTS = "no test frame passes"


class Confirmation:
    """Asks for a second press of a key before an action."""

    def __init__(self) -> None:
        self.notice = ""
        """What the second press would do, in words."""
        self._action: object = None

    def is_asked(self, action: object) -> bool:
        """Return whether the next press of the action's key confirms it."""
        return self._action == action

    def given(self, action: object, notice: str) -> bool:
        """Return whether the user repeats an action; the first time, keep the notice."""
        again = self.is_asked(action)
        self._action, self.notice = (None, "") if again else (action, notice)
        return again

    def forget(self) -> None:
        self._action, self.notice = None, ""


class Programming(Protocol):
    """The part of screen 5 that its commands use."""

    model: Programs
    sources: Sources
    source_panel: SourcePanel
    live_maps: LiveMaps

    @property
    def app(self) -> App[Any]: ...

    @property
    def console(self) -> Console: ...

    @property
    def prompt(self) -> Prompt: ...

    @property
    def listing(self) -> SortedTable: ...

    def set_focus(self, widget: Widget | None) -> None: ...

    def run_in_worker(
        self, ask: Callable[[], _T], done: Callable[[_T], None],
        failed: Callable[[ProbedeckError], None], *, asked: bool = True,
    ) -> None: ...  # fmt: skip

    def edit(self, probe: str) -> None:
        """Open the editor of a probe."""

    def check(self, *, told: bool = False, swap: bool = False) -> None:
        """Check the open source; `swap`: then swap it in."""

    def choose(self, panel: Panel) -> None:
        """Turn to a panel."""

    def show_all(self) -> None: ...

    def show_source(self) -> None: ...

    def show_editing(self) -> None: ...


class ProbeChanges:
    """Makes changes by the control plane, one at a time, and reports their results.

    Its `do_` methods are commands of the screen.
    """

    def __init__(
        self,
        screen: Programming,
        change: Callable[[str, Callable[[], Any], Callable[[Any], None]], None],
    ) -> None:
        """`change` makes a change with a title."""
        self._screen, self._model, self._change = screen, screen.model, change
        self.confirmation = Confirmation()

    def do_program_swap(self) -> None:
        if (slot := self._screen.sources.slot) is None:
            return
        if not self._model.modified(slot.probe):
            self.refuse(f"{slot.probe} runs as it is shown: there is nothing to swap in")
        elif (verdict := self._model.verdict(slot.probe)) is not None:
            self.swap(verdict)
            self._screen.show_editing()
        else:
            self._screen.check(told=True, swap=True)

    def swap(self, verdict: Verdict) -> None:
        """Swap a checked source in; ask first if the swap loses something."""
        config = verdict.config
        if verdict.check is None:
            self._screen.choose(Panel.PROBLEMS)
            # The panel has the reasons; a longer text would cover its last rows.
            self._screen.app.clear_notifications()
            self.refuse(f"{config.name} is not swapped: see its problems")
            return
        force = bool(verdict.check.cuts)
        key = self._screen.console.key_of("program.swap")
        notice = f"{_CUTS if force else _LOSES}; {key} again swaps"
        if not loses(verdict.check) or self.confirmation.given(config, notice):
            ask = partial(self._screen.console.plane.replace, config, force=force)
            self._change(f"swapping {config.name}", ask, partial(self._replaced, config.name))
        else:
            self._screen.choose(Panel.REPORT)

    def _target(self, probe: str) -> str:
        return self._model.target(probe, self._screen.sources.slot)

    def do_program_rollback(self, probe: str = "") -> None:
        name = self._target(probe)
        ask = partial(self._screen.console.plane.roll_back, name)
        self._change(f"rolling back {name}", ask, partial(self._replaced, name))

    def _replaced(self, name: str, made: Replacement) -> None:
        self.say(f"generation {made.generation} of {name} runs; it took {duration(made.seconds)}")

    def do_program_cost(self, probe: str = "") -> None:
        name = self._target(probe)
        ask = partial(self._screen.console.plane.cost, name)
        self._change(f"measuring {name}", ask, partial(self._model.measured, name))

    def do_probe_add(self, file: str = "") -> None:
        if not file:
            self._screen.prompt.ask("probe.add", "Add a probe from", "counter.toml", "")
            return
        action = ("add", file)
        force = self.confirmation.is_asked(action)
        self.confirmation.forget()

        def add() -> ProbeInfo | CutError:
            try:
                return add_probe(self._screen.console.plane, file, force=force)
            except CutError as error:
                return error

        def added(made: ProbeInfo | CutError) -> None:
            if isinstance(made, CutError):
                self.confirmation.given(action, f"{made.message}; adding it again does it")
                self.refuse(self.confirmation.notice)
            else:
                self.say(f"{made.name} runs")

        self._change(f"adding {Path(file).name}", add, added)

    def do_probe_new(self, name: str = "") -> None:
        plane = self._screen.console.plane
        if not name:
            menu = LibraryScreen(ready_probes(), self._measure)
            self._screen.app.push_screen(
                menu, lambda name: self.do_probe_new(name) if name else None
            )
            return

        def added(made: ProbeInfo) -> None:
            self.say(f"{made.name} runs")
            self._screen.app.call_later(self._screen.edit, made.name)

        self._change(f"adding {name}", partial(add_ready_probe, plane, name), added)

    def _measure(self, probe: ReadyProbe, done: Callable[[str], None]) -> None:
        """Measure the time per packet of a ready probe in a worker."""
        plane = self._screen.console.plane

        def ask() -> str:
            costs = plane.check(ready_config(plane, probe.name)).costs
            return f"{sum(cost.ns for cost in costs) / len(costs):.1f}" if costs else MISSING

        self._screen.run_in_worker(ask, done, lambda _: done(MISSING), asked=False)

    def do_probe_remove(self, probe: str = "") -> None:
        name = self._target(probe)
        edits = " and loses its edits" if self._model.modified(name) else ""
        key = self._screen.console.key_of("probe.remove")
        if name in self._model.removed:
            self._model.forget(name)
            self._screen.sources.follow()
            self._screen.show_all()
        # A probe that is named needs no second key.
        elif probe or self.confirmation.given(
            ("remove", name), f"{key} again removes {name}{edits}"
        ):

            def removed(last: Sequence[Snapshot]) -> None:
                self._model.forget(name)
                self.say(f"{name} is removed; {counted(len(last), 'table')} published")

            ask = partial(self._screen.console.plane.remove, name)
            self._change(f"removing {name}", ask, removed)
        self._screen.show_editing()

    def do_probe_export(self, probe: str = "") -> None:
        name = self._target(probe)

        def exported(tables: Sequence[Snapshot]) -> None:
            window = f"window {tables[0].window} of {name}" if tables else name
            rows = counted(sum(len(table.rows) for table in tables), "row")
            self.say(f"{window}: {counted(len(tables), 'table')}, {rows}")

        ask = partial(self._screen.console.plane.export, name)
        self._change(f"exporting {name}", ask, exported)

    def say(self, text: str) -> None:
        self._screen.app.notify(text, markup=False)

    def refuse(self, text: str) -> None:
        self._screen.console.complain(UsageError(text))
