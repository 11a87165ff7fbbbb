"""Screen 5: programs of every probe, edited, checked, swapped in and rolled back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, partialmethod
from typing import TYPE_CHECKING, TypeVar

from textual import events, on
from textual.containers import Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import TextArea

from app.console.screen import PollingScreen
from app.console.screens.programs.changes import ProbeChanges, SourceCommands
from app.console.screens.programs.columns import MAPS, PROGRAMS
from app.console.screens.programs.live_maps import Answer, LiveMaps, read_maps
from app.console.screens.programs.model import Programs, Slot, Verdict, examine
from app.console.screens.programs.panels import Panel, SourcePanel, Spot
from app.console.screens.programs.rows import editing_items, note_items, program_rows
from app.console.screens.programs.sources import Sources
from app.console.tables.sorted_table import SortedTable
from app.console.tasks import Task
from app.tape.named_state import StateValues
from bpf.errors import ProbedeckError
from probes.reports import MemoryUse, ProbeInfo
from widgets.editor import CodeEditor
from widgets.status import StatusStrip
from widgets.table.table import VirtualTable

if TYPE_CHECKING:
    from app.console.screen import ConsoleScreen
    from probes.config.model import ProbeConfig


class Checks:
    """Compiles and verifies configurations while the user types, or on request."""

    def __init__(
        self,
        screen: ConsoleScreen,
        checked: Callable[[Verdict, bool, bool], None],
        failed: Callable[[ProbedeckError], None],
    ) -> None:
        """`checked` gets a verdict, whether the user requested it, and whether a swap follows.

        `failed` gets the error of a cancelled check.
        """
        self._screen, self._checked, self._failed = screen, checked, failed
        self._task = Task("")
        self.running: ProbeConfig | None = None
        """The configuration that is being checked."""
        self._requested: ProbeConfig | None = None
        """The configuration of the user's request."""
        self._swapped: ProbeConfig | None = None
        """The configuration that a swap waits for."""
        self.outdated = False
        """Whether the source changed during the check."""

    def begin(self, config: ProbeConfig, *, requested: bool, swap: bool) -> None:
        """Check a configuration, unless a check runs."""
        if swap:
            self._swapped = config
        if requested:
            self._requested = config
            self._task.asked = True
        self.outdated = self.running is not None
        if self.outdated:
            return
        self.running = config
        self._task = Task(f"checking {config.name}", asked=config == self._requested)
        ask = partial(examine, self._screen.console.plane, config)
        self._screen.run_in_worker(ask, self._done, self._cancelled, task=self._task)

    def _done(self, verdict: Verdict) -> None:
        self.running = None
        config = verdict.config
        requested, swap = config == self._requested, config == self._swapped
        self._requested = None if requested else self._requested
        self._swapped = None if swap else self._swapped
        self._checked(verdict, requested, swap)

    def _cancelled(self, error: ProbedeckError) -> None:
        self.running = self._requested = self._swapped = None
        self._failed(error)


_T = TypeVar("_T")
_Running = tuple[tuple[ProbeInfo, ...], MemoryUse, Answer]
"""The running probes, the kernel memory of all of them, and the maps of the visible one."""
_NONE = "no probe runs\n\na adds one from its configuration file"
_PAUSE = 0.4
"""Seconds from the last key to the check of a source."""


class ProgramsScreen(PollingScreen[_Running]):
    """A list of programs, an editor for each source, and a panel about the visible one."""

    MODE = "programs"
    PAUSES = False
    MAIN_TABLE = "programs"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (120, "-beside"), (180, "-broad")]
    CSS = """
    ProgramsScreen #programs { max-height: 5; }
    ProgramsScreen.-tall #programs { max-height: 25%; }
    ProgramsScreen.-short.-editing #programs { display: none; }
    ProgramsScreen #editors { height: 1fr; min-height: 3; }
    ProgramsScreen #panel, ProgramsScreen #maps-panel { height: 6; }
    ProgramsScreen.-tall #panel, ProgramsScreen.-tall #maps-panel { height: 11; }
    ProgramsScreen #work { height: 1fr; min-height: 3; layout: horizontal; }
    ProgramsScreen #editors { width: 3fr; }
    ProgramsScreen #maps { display: none; width: 2fr; height: 1fr; margin-left: 1; }
    ProgramsScreen.-beside #maps, ProgramsScreen.-broad #maps { display: block; }
    ProgramsScreen.-beside #maps-panel, ProgramsScreen.-broad #maps-panel { display: none; }
    ProgramsScreen.-beside #panel, ProgramsScreen.-broad #panel { display: block; }
    ProgramsScreen.-broad #editors { width: 2fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = Programs()
        self.sources = Sources(self.model)
        self.source_panel = SourcePanel(self.model)
        self._checks = Checks(self, self._checked, self._unchecked)
        self._memory = MemoryUse(0, 0)
        self._pause: Timer | None = None
        self._changes = ProbeChanges(self, self._do)
        self._confirmation = self._changes.confirmation
        self._commands = SourceCommands(self, self._changes)
        self.edit = self._commands.do_program_edit
        self.live_maps = LiveMaps(self, self.sources, self.choose, self._poll)
        self.name_under_cursor = lambda: self.model.target("", self.slot)
        self.parts = (self._changes, self._commands, self.live_maps)

    def compose_body(self) -> list[Widget]:
        listing = SortedTable(PROGRAMS, empty=_NONE)
        work = Vertical(self.sources, SortedTable(MAPS), id="work")
        return [listing, StatusStrip(id="editing"), work, self.source_panel]

    @property
    def listing(self) -> SortedTable:
        return self.query_one("#programs", SortedTable)

    @property
    def panel(self) -> VirtualTable:
        return self.source_panel.table

    @property
    def editor(self) -> CodeEditor | None:
        return self.sources.editor

    @property
    def slot(self) -> Slot | None:
        return self.sources.slot

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
        return self.model.states(self.slot, doing)

    def show(self) -> None:
        if self.source_panel.is_live:
            self._show_panel()
        self.live_maps.show()
        self._show_notes()

    def fetch(self) -> Callable[[], _Running]:
        plane = self.console.plane
        name = self.live_maps.probe

        def ask() -> _Running:
            infos = plane.probes()
            runs = any(info.name == name for info in infos)
            return infos, plane.memory(), read_maps(plane, name) if runs else None

        return ask

    def apply(self, answer: _Running) -> None:
        infos, self._memory, maps = answer
        self.live_maps.take(maps)
        self.model.take(infos)
        self.sources.follow()
        self.show_all()

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
        self.show_editing() if self._busy else self.show_all()

    # The widgets

    def _show_listing(self) -> None:
        rows = program_rows(self.model)
        self.listing.styles.height = 1 + (rows.rows or 1 + _NONE.count("\n"))
        self.listing.fill(rows)

    def show_all(self) -> None:
        self._show_listing()
        if self.slot is None and self.listing.source.rows:
            key = self.listing.cursor_key
            assert isinstance(key, Slot)
            self.sources.open(key)
        self.show_source()

    def show_source(self) -> None:
        self.show_editing()
        self._show_panel()
        self.live_maps.show()

    def _show_notes(self) -> None:
        self.show_notes(*note_items(len(self.model.infos), self._memory, self._trouble))

    @on(TextArea.SelectionChanged)
    def show_editing(self) -> None:
        self.console.unsaved = self.model.unsaved()
        self._show_notes()
        doing = self._busy or ("checking" if self._checks.running else "")
        words = self._confirmation.notice, doing, self.sources.remark, self.size.width
        items = editing_items(self.model, self.slot, *words) if self.slot else []
        self.query_one("#editing", StatusStrip).show(items)

    def _show_panel(self) -> None:
        frame = self.console.time.frame
        self.source_panel.show(self.slot, frame.events, frame.metrics)

    def choose(self, panel: Panel, *, unfold: bool = False) -> None:
        if unfold:
            self.source_panel.unfold_log()
        self.source_panel.choose(panel)
        self._show_panel()
        self.call_after_refresh(self.live_maps.look)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_panel)
        self.call_after_refresh(self.live_maps.look)

    # Checks

    def check(self, *, told: bool = False, swap: bool = False) -> None:
        if self.slot is not None:
            self._checks.begin(self.model.edited(self.slot.probe), requested=told, swap=swap)
            self.show_editing()

    def _checked(self, verdict: Verdict, requested: bool, swap: bool) -> None:
        name = verdict.config.name
        if name in self.model.infos:
            self.model.verdicts[name] = verdict
            if requested and verdict.check is None:
                self.choose(Panel.PROBLEMS)
            if swap:
                self._changes.swap(verdict)
        if self._checks.outdated:
            self.check()
        self.sources.show_marks()
        self.show_source()

    def _unchecked(self, error: ProbedeckError) -> None:
        self.console.complain(error)
        self.show_all()
        self._poll()

    @on(TextArea.Changed)
    def _edited(self, event: TextArea.Changed) -> None:
        slot = self.sources.slot_of(event.text_area)
        if slot is None or self.model.drafts[slot].text == event.text_area.text:
            return
        draft = self.model.drafts[slot]
        before = draft.modified
        draft.text = event.text_area.text
        self._confirmation.forget()
        if draft.modified != before:
            self._show_listing()
        self.show_editing()
        if self.source_panel.chosen is Panel.DIFF:
            self._show_panel()
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE, self.check)

    do_program_compile = partialmethod(check, told=True)

    # Moving about

    def do_program_leave(self) -> None:
        self._confirmation.forget()
        if self.focused is self.listing:
            self.console.time.leave()
        self.set_focus(self.listing)

    do_program_problems = partialmethod(choose, Panel.PROBLEMS)
    do_program_diff = partialmethod(choose, Panel.DIFF)
    do_program_report = partialmethod(choose, Panel.REPORT)
    do_program_metrics = partialmethod(choose, Panel.METRICS)
    do_program_events = partialmethod(choose, Panel.EVENTS)

    do_program_log = partialmethod(choose, Panel.LOG, unfold=True)

    @on(VirtualTable.RowHighlighted, "#programs")
    def _row_highlighted(self, event: VirtualTable.RowHighlighted) -> None:
        slot = event.key
        if isinstance(slot, Slot) and slot != self.slot and self.model.direction(slot):
            self._confirmation.forget()
            self.sources.open(slot)
            self.show_source()
            self.live_maps.look()

    @on(VirtualTable.RowSelected, "#programs")
    def _row_selected(self) -> None:
        self._commands.do_program_edit()

    @on(VirtualTable.RowSelected, "#panel")
    def _spot_selected(self, event: VirtualTable.RowSelected) -> None:
        if isinstance(event.key, Spot) and event.key.place is not None:
            self._commands.go_to(event.key.place)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.set_class(isinstance(event.widget, CodeEditor), "-editing")
        self.refresh_bindings()
        self.show_editing()
