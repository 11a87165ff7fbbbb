"""Screen 5: programs of every probe, edited, checked, swapped in and rolled back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import TypeVar

from textual import events, on
from textual.app import SuspendNotSupported
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea

from app.console.polling import PollingScreen
from app.console.screens.programs.changes import ProbeChanges
from app.console.screens.programs.checks import Checks
from app.console.screens.programs.columns import PROGRAMS
from app.console.screens.programs.model import Place, Programs, Slot, Verdict
from app.console.screens.programs.panels import Panel, SourcePanel, Spot
from app.console.screens.programs.rows import editing_items, note_items, program_rows
from app.console.screens.programs.sources import Sources, edit_outside, write_source
from app.console.tables.sorted_table import SortedTable
from app.files import expand
from app.tape.named_state import StateValues
from bpf.errors import ProbedeckError, UsageError
from probes.control_plane import MemoryUse, ProbeInfo
from widgets.editor import CodeEditor
from widgets.status import StatusStrip
from widgets.table.table import VirtualTable

_T = TypeVar("_T")
_Running = tuple[tuple[ProbeInfo, ...], MemoryUse]
"""The running probes, and the kernel memory of all of them."""
_NONE = "no probe runs\n\na adds one from its configuration file"
_PAUSE = 0.4
"""Seconds from the last key to the check of a source."""


class ProgramsScreen(PollingScreen[_Running]):
    """A list of programs, an editor for each source, and a panel about the visible one."""

    MODE = "programs"
    PAUSES = False
    CSS = """
    ProgramsScreen #programs { max-height: 5; }
    ProgramsScreen.-tall #programs { max-height: 25%; }
    ProgramsScreen.-short.-editing #programs { display: none; }
    ProgramsScreen #editors { height: 1fr; min-height: 3; }
    ProgramsScreen #panel { height: 6; }
    ProgramsScreen.-tall #panel { height: 11; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = Programs()
        self._sources = Sources(self.model)
        self._panel = SourcePanel(self.model)
        self._checks = Checks(self, self._checked, self._unchecked)
        self._memory = MemoryUse(0, 0)
        self._pause: Timer | None = None
        self._changes = ProbeChanges(self, self.model, self._do, self._choose)
        self._confirmation = self._changes.confirmation

    def compose_body(self) -> list[Widget]:
        listing = SortedTable(PROGRAMS, empty=_NONE)
        return [listing, StatusStrip(id="editing"), self._sources, self._panel]

    @property
    def listing(self) -> SortedTable:
        return self.query_one(SortedTable)

    @property
    def panel(self) -> VirtualTable:
        return self._panel.table

    @property
    def editor(self) -> CodeEditor | None:
        return self._sources.editor

    @property
    def _slot(self) -> Slot | None:
        return self._sources.slot

    def offers(self, command: str) -> bool:
        if command == "table.select":
            return not isinstance(self.focused, CodeEditor)
        if command == "program.leave":
            leads = not self.console.time.is_live or bool(self.console.tasks.cancellable)
            return leads or not self.listing.has_focus
        # The screen has no packets that a pause could freeze.
        return command != "view.pause" or self.console.time.paused

    # The running probes

    def states(self) -> StateValues:
        doing = "changing" if self._busy else "checking" if self._checks.running else ""
        return self.model.states(self._slot, doing)

    def show(self) -> None:
        if self._panel.is_live:
            self._show_panel()
        self._show_notes()

    def fetch(self) -> Callable[[], _Running]:
        plane = self.console.plane
        return lambda: (plane.probes(), plane.memory())

    def apply(self, answer: _Running) -> None:
        infos, self._memory = answer
        self.model.take(infos)
        self._sources.follow()
        self._show_all()

    def _do(self, what: str, ask: Callable[[], _T], done: Callable[[_T], None]) -> None:
        """Make a change in a thread, one at a time, and fetch the probes with it."""
        fetch = self.fetch()

        def made(answers: tuple[_T, _Running]) -> None:
            answer, running = answers
            self.model.take(running[0])
            done(answer)
            self.apply(running)

        self.change(what, lambda: (ask(), fetch()), made)

    def show_change(self) -> None:
        self._show_editing() if self._busy else self._show_all()

    # The widgets

    def _show_listing(self) -> None:
        rows = program_rows(self.model)
        self.listing.styles.height = 1 + (rows.rows or 1 + _NONE.count("\n"))
        self.listing.fill(rows)

    def _show_all(self) -> None:
        self._show_listing()
        if self._slot is None and self.listing.source.rows:
            key = self.listing.cursor_key
            assert isinstance(key, Slot)
            self._sources.open(key)
        self._show_source()

    def _show_source(self) -> None:
        self._show_editing()
        self._show_panel()

    def _show_notes(self) -> None:
        self.show_notes(*note_items(len(self.model.infos), self._memory, self._trouble))

    @on(TextArea.SelectionChanged)
    def _show_editing(self) -> None:
        self.console.unsaved = self.model.unsaved()
        self._show_notes()
        doing = self._busy or ("checking" if self._checks.running else "")
        words = self._confirmation.notice, doing, self._sources.remark, self.size.width
        items = editing_items(self.model, self._slot, *words) if self._slot else []
        self.query_one("#editing", StatusStrip).show(items)

    def _show_panel(self) -> None:
        frame = self.console.frame
        self._panel.show(self._slot, frame.events, frame.metrics)

    def _choose(self, panel: Panel, *, unfold: bool = False) -> None:
        if unfold:
            self._panel.unfold_log()
        self._panel.choose(panel)
        self._show_panel()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_panel)

    # Checks

    def _check(self, *, told: bool = False, swap: bool = False) -> None:
        if self._slot is not None:
            self._checks.begin(self.model.edited(self._slot.probe), requested=told, swap=swap)
            self._show_editing()

    def _checked(self, verdict: Verdict, requested: bool, swap: bool) -> None:
        name = verdict.config.name
        if name in self.model.infos:
            self.model.verdicts[name] = verdict
            if requested and verdict.check is None:
                self._choose(Panel.PROBLEMS)
            if swap:
                self._changes.swap(verdict)
        if self._checks.outdated:
            self._check()
        self._sources.show_marks()
        self._show_source()

    def _unchecked(self, error: ProbedeckError) -> None:
        self.console.complain(error)
        self._show_all()
        self._poll()

    @on(TextArea.Changed)
    def _edited(self, event: TextArea.Changed) -> None:
        slot = self._sources.slot_of(event.text_area)
        if slot is None or self.model.drafts[slot].text == event.text_area.text:
            return
        draft = self.model.drafts[slot]
        before = draft.modified
        draft.text = event.text_area.text
        self._confirmation.forget()
        if draft.modified != before:
            self._show_listing()
        self._show_editing()
        if self._panel.chosen is Panel.DIFF:
            self._show_panel()
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE, self._check)

    do_program_compile = partialmethod(_check, told=True)

    # Changes

    def do_program_swap(self) -> None:
        if self._slot is None:
            return
        name = self._slot.probe
        if not self.model.modified(name):
            self._changes.refuse(f"{name} runs as it is shown: there is nothing to swap in")
        elif (verdict := self.model.verdict(name)) is not None:
            self._changes.swap(verdict)
            self._show_editing()
        else:
            self._check(told=True, swap=True)

    def _target(self, probe: str = "") -> str:
        return self.model.target(probe, self._slot)

    def _change_probe(self, probe: str = "", *, by: Callable[[ProbeChanges, str], None]) -> None:
        by(self._changes, self._target(probe))

    do_program_rollback = partialmethod(_change_probe, by=ProbeChanges.roll_back)
    do_program_cost = partialmethod(_change_probe, by=ProbeChanges.measure)
    do_probe_export = partialmethod(_change_probe, by=ProbeChanges.export)

    def do_probe_add(self, file: str = "") -> None:
        if file:
            self._changes.add(file)
        else:
            self.prompt.ask("probe.add", "Add a probe from", "counter.toml", "")

    def do_probe_remove(self, probe: str = "") -> None:
        name = self._target(probe)
        edits = " and loses its edits" if self.model.modified(name) else ""
        key = self.console.key_of("probe.remove")
        if name in self.model.removed:
            self.model.forget(name)
            self._sources.follow()
            self._show_all()
        # A probe that is named needs no second key.
        elif probe or self._confirmation.given(
            ("remove", name), f"{key} again removes {name}{edits}"
        ):
            self._changes.remove(name)
        self._show_editing()

    # The source

    def do_program_save(self, file: str = "", overwrite: str = "") -> None:
        if self._slot is None:
            raise UsageError("there is no source to save")
        if not file:
            self.prompt.ask("program.save", "Write to", "a file", self._slot.file)
            return
        path, draft = expand(file), self.model.drafts[self._slot]
        files, prompt = self.console.overwriting, self.prompt.is_open
        files.check(path, overwrite, prompt=prompt, source=self._slot)
        write_source(path, draft.text if draft.modified else draft.running)
        files.wrote(path, self._slot)
        draft.saved = draft.text
        self._changes.say(f"{path} is written")
        self._show_editing()

    def do_program_external(self) -> None:
        if self._slot is None or (editor := self.editor) is None:
            return
        try:
            with self.app.suspend():
                text = edit_outside(self._slot.file, editor.text)
        except SuspendNotSupported:
            self._changes.refuse("this terminal cannot be handed to another editor")
        except ProbedeckError as error:
            self.console.complain(error)
        else:
            if text != editor.text:
                editor.put(text)

    def do_program_revert(self) -> None:
        if self._slot is not None and self.editor is not None:
            self.editor.put(self.model.drafts[self._slot].running)

    def do_program_next_direction(self) -> None:
        if self._slot is None:
            return
        others = [s for s in self.model.slots() if s.probe == self._slot.probe and s != self._slot]
        if others:
            self._turn_to(others[0])
        else:
            self._changes.refuse(f"{self._slot.probe} has no other direction")

    def do_program_next_error(self) -> None:
        if self._slot is None or (editor := self.editor) is None:
            return
        row, column = editor.cursor_location
        here = Place(self._slot.side, row + 1, column + 1)
        if (place := self.model.next_problem(self._slot, here)) is not None:
            self._go_to(place)
        else:
            self._choose(Panel.PROBLEMS)
            self._changes.refuse("no problem with a place in this source")

    def _turn_to(self, slot: Slot) -> None:
        self._sources.open(slot)
        index = self.listing.source.index(slot)
        if index is not None:
            self.listing.move_to(index)
        self._show_source()

    def _go_to(self, place: Place) -> None:
        assert self._slot is not None
        slot = Slot(self._slot.probe, place.side)
        if slot != self._slot and slot in self.model.slots():
            self._turn_to(slot)
        if (editor := self.editor) is not None:
            editor.go_to(place.line - 1, max(0, place.column - 1))
            self.set_focus(editor)

    # Moving about

    do_program_sort = PollingScreen.sort_rows
    do_program_reverse = PollingScreen.reverse_rows

    def do_program_edit(self, probe: str = "") -> None:
        if probe:
            name = self._target(probe)
            self._turn_to(next(slot for slot in self.model.slots() if slot.probe == name))
        self.set_focus(self.editor)

    def do_program_leave(self) -> None:
        self._confirmation.forget()
        if self.focused is self.listing:
            self.console.time.leave()
        self.set_focus(self.listing)

    do_program_problems = partialmethod(_choose, Panel.PROBLEMS)
    do_program_diff = partialmethod(_choose, Panel.DIFF)
    do_program_report = partialmethod(_choose, Panel.REPORT)
    do_program_metrics = partialmethod(_choose, Panel.METRICS)
    do_program_events = partialmethod(_choose, Panel.EVENTS)

    do_program_log = partialmethod(_choose, Panel.LOG, unfold=True)

    def do_program_panel(self) -> None:
        panels = list(Panel)
        self._choose(panels[(panels.index(self._panel.chosen) + 1) % len(panels)])

    @on(VirtualTable.RowHighlighted, "#programs")
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        slot = event.key
        if isinstance(slot, Slot) and slot != self._slot and self.model.direction(slot):
            self._confirmation.forget()
            self._sources.open(slot)
            self._show_source()

    @on(VirtualTable.RowSelected, "#programs")
    def _row_selected(self) -> None:
        self.do_program_edit()

    @on(VirtualTable.RowSelected, "#panel")
    def _spot_selected(self, event: VirtualTable.RowSelected) -> None:
        if isinstance(event.key, Spot) and event.key.place is not None:
            self._go_to(event.key.place)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.set_class(isinstance(event.widget, CodeEditor), "-editing")
        self.refresh_bindings()
        self._show_editing()
