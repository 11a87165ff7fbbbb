"""Commands of screen 5: on the open source, and changes of running probes, with confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from textual.app import App, SuspendNotSupported
from textual.binding import Binding
from textual.widget import Widget

from app.commands.remote import add_probe, add_ready_probe, ready_config
from app.config.ready_probes import ReadyProbe, ready_probes
from app.console.dialogs.boxes import ListBox
from app.console.prompt.prompt import Prompt
from app.console.protocol import Console
from app.console.screens.programs.live_maps import LiveMaps
from app.console.screens.programs.model import Place, Programs, Slot, Verdict, loses
from app.console.screens.programs.panels import Panel, SourcePanel
from app.console.screens.programs.sources import Sources, edit_outside, write_source
from app.console.tables.sorted_table import SortedTable
from app.files import expand
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import MISSING, counted, duration
from probes.control.trials import CutError
from probes.reports import ProbeInfo, Replacement
from probes.snapshot import Snapshot
from widgets.table.rows import Column, Row, Rows
from widgets.tones import Tone

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


class SourceCommands:
    """Commands on the open source; its `do_` methods are commands of the screen."""

    def __init__(self, screen: Programming, changes: ProbeChanges) -> None:
        self._screen, self._model, self._sources = screen, screen.model, screen.sources
        self._changes = changes

    def do_program_save(self, file: str = "", overwrite: str = "") -> None:
        if (slot := self._sources.slot) is None:
            raise UsageError("there is no source to save")
        prompt = self._screen.prompt
        if not file:
            prompt.ask("program.save", "Write to", "a file", slot.file)
            return
        path, draft = expand(file), self._model.drafts[slot]
        files = self._screen.console.overwriting
        files.check(path, overwrite, prompt=prompt.is_open, source=slot)
        write_source(path, draft.text if draft.modified else draft.running)
        files.wrote(path, slot)
        draft.saved = draft.text
        self._changes.say(f"{path} is written")
        self._screen.show_editing()

    def do_program_external(self) -> None:
        if (slot := self._sources.slot) is None or (editor := self._sources.editor) is None:
            return
        try:
            with self._screen.app.suspend():
                text = edit_outside(slot.file, editor.text)
        except SuspendNotSupported:
            self._changes.refuse("this terminal cannot be handed to another editor")
        except ProbedeckError as error:
            self._screen.console.complain(error)
        else:
            if text != editor.text:
                editor.put(text)

    def do_program_revert(self) -> None:
        if (slot := self._sources.slot) is not None and self._sources.editor is not None:
            self._sources.editor.put(self._model.drafts[slot].running)

    def do_program_host(self, host: str = "") -> None:
        """Turn to the programs of a chosen host, or of the next one."""
        console = self._screen.console
        if not console.hosts.several:
            raise UsageError("a single host is shown", hint="m on screen 7 chooses more")
        names = console.hosts.planes.chosen
        name = host or names[(names.index(console.hosts.current) + 1) % len(names)]
        self._screen.app.call_later(console.action_command, f"host.programs {name}")

    def do_program_edit(self, probe: str = "") -> None:
        if probe:
            name = self._model.target(probe, self._sources.slot)
            self._turn_to(next(slot for slot in self._model.slots() if slot.probe == name))
        self._screen.set_focus(self._sources.editor)

    def do_program_next_direction(self) -> None:
        if (slot := self._sources.slot) is None:
            return
        others = [each for each in self._model.slots() if each.probe == slot.probe and each != slot]
        if others:
            self._turn_to(others[0])
        else:
            self._changes.refuse(f"{slot.probe} has no other direction")

    def do_program_next_error(self) -> None:
        if (slot := self._sources.slot) is None or (editor := self._sources.editor) is None:
            return
        row, column = editor.cursor_location
        here = Place(slot.side, row + 1, column + 1)
        if (place := self._model.next_problem(slot, here)) is not None:
            self.go_to(place)
        else:
            self._screen.choose(Panel.PROBLEMS)
            self._changes.refuse("no problem with a place in this source")

    def do_program_panel(self) -> None:
        chosen = self._screen.source_panel.chosen
        beside = self._screen.live_maps.beside
        panels = [each for each in Panel if each is not Panel.MAPS or not beside]
        self._screen.choose(
            panels[(panels.index(chosen) + 1) % len(panels) if chosen in panels else 0]
        )

    def _turn_to(self, slot: Slot) -> None:
        self._sources.open(slot)
        listing = self._screen.listing
        if (index := listing.source.index(slot)) is not None:
            listing.move_to(index)
        self._screen.show_source()

    def go_to(self, place: Place) -> None:
        """Put the cursor on a place of the probe's sources."""
        assert self._sources.slot is not None
        slot = Slot(self._sources.slot.probe, place.side)
        if slot != self._sources.slot and slot in self._model.slots():
            self._turn_to(slot)
        if (editor := self._sources.editor) is not None:
            editor.go_to(place.line - 1, max(0, place.column - 1))
            self._screen.set_focus(editor)


_COLUMNS: tuple[Column[Any], ...] = (
    Column("name", "Probe", 14),
    Column("cost", "ns/packet", 9, "right"),
    Column("purpose", "Purpose", 30, grows=True),
)
_HELP = "enter adds it and opens its source   esc cancels"
Measure = Callable[[ReadyProbe, Callable[[str], None]], None]
"""Measures a probe in a worker, and calls with the time as a text."""


class LibraryScreen(ListBox[str]):
    """A list of ready probes; its result is the name of the chosen one."""

    BINDINGS = [Binding("enter", "choose", "Add"), Binding("n", "dismiss", show=False)]
    DEFAULT_CSS = "LibraryScreen > .box { width: 110; }"
    help_text, columns = _HELP, _COLUMNS
    title_text = "Ready probes"

    def __init__(self, probes: Sequence[ReadyProbe], measure: Measure) -> None:
        super().__init__()
        self._probes, self._measure = probes, measure
        self._costs: dict[str, str] = {}

    def on_mount(self) -> None:
        self._measure_next()

    def rows(self) -> Rows:
        tones = Tone.ACCENT, Tone.MUTED, Tone.NORMAL
        cost = self._costs.get
        return Rows.of(
            Row(one.name, (one.name, cost(one.name, MISSING), one.purpose), tones)
            for one in self._probes
        )

    def _measure_next(self) -> None:
        """Measure one probe after the other, while the menu is open."""
        left = [each for each in self._probes if each.name not in self._costs]
        if left and self.is_attached:
            self._measure(left[0], lambda text: self._measured(left[0].name, text))

    def _measured(self, name: str, text: str) -> None:
        self._costs[name] = text
        if self.is_attached:
            self.show()
            self._measure_next()

    def action_choose(self) -> None:
        self.dismiss(self._probes[self.listed.cursor_index].name)

    def on_virtual_table_row_selected(self) -> None:
        self.action_choose()
