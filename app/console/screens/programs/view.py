"""What screen 5 shows: the list of programs, an editor of each source, a panel of what is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from textual.containers import Vertical
from textual.widget import Widget

from app.console.polling import PollingScreen
from app.console.screen import counted
from app.console.screens.programs.columns import PROGRAMS
from app.console.screens.programs.model import Draft, Programs, Slot, place_of
from app.console.screens.programs.panels import COLUMNS as PANEL_COLUMNS
from app.console.screens.programs.panels import Panel, empty_text, panel_rows
from app.console.screens.programs.rows import editing_items, program_rows
from app.console.tables.sorted_table import SortedTable
from app.console.tapes.state import StateValues, of_program
from probes.config.model import ProbeConfig
from probes.control_plane import MemoryUse, ProbeInfo
from widgets.editor import CodeEditor, Mark
from widgets.format import byte_size
from widgets.status import StatusItem, StatusStrip
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_T = TypeVar("_T")
_Running = tuple[tuple[ProbeInfo, ...], MemoryUse]
"""The probes that run, and the kernel memory that all of them take."""
_NONE = "no probe runs\n\na adds one from its configuration file"
_LINES_OF_NONE = 3
_TONES = {"error": Tone.BAD, "warning": Tone.WARN}


class ProgramView(PollingScreen[_Running]):
    """A list, an editor for each program, and a panel of what is known about it."""

    PAUSES = False
    # By the name of the screen that has it: Textual confines a screen's rules to that.
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
        self._slot: Slot | None = None
        """Whose source is shown."""
        self._editors: dict[Slot, CodeEditor] = {}
        self._panel = Panel.PROBLEMS
        self._whole_log = False
        self._memory = MemoryUse(0, 0)
        self._notice = ""
        """What a second press of a key would do."""
        self._checking: ProbeConfig | None = None
        """What is being checked."""

    def compose_body(self) -> list[Widget]:
        return [
            SortedTable(PROGRAMS, empty=_NONE),
            StatusStrip(id="editing"),
            Vertical(id="editors"),
            StatusStrip(id="panels"),
            VirtualTable(PANEL_COLUMNS[self._panel], id="panel"),
        ]

    @property
    def listing(self) -> SortedTable:
        return self.query_one(SortedTable)

    @property
    def panel(self) -> VirtualTable:
        return self.query_one("#panel", VirtualTable)

    @property
    def editor(self) -> CodeEditor | None:
        """The one that is shown."""
        return self._editors.get(self._slot) if self._slot else None

    # What runs

    def states(self) -> StateValues:
        """What it knows of named state, by name."""
        doing = "changing" if self._busy else "checking" if self._checking else ""
        return of_program(self.model, self._slot, doing)

    def show(self) -> None:
        if self._panel in (Panel.METRICS, Panel.EVENTS):
            self._show_panel()
        self._show_notes()

    def fetch(self) -> Callable[[], _Running]:
        plane = self.console.plane
        return lambda: (plane.probes(), plane.memory())

    def apply(self, answer: _Running) -> None:
        infos, self._memory = answer
        self.model.take(infos)
        self._follow()
        self._show_all()

    def _follow(self) -> None:
        """Bring the editors into line with what runs; edits stay."""
        for slot in [slot for slot in self._editors if slot not in self.model.drafts]:
            self._editors.pop(slot).remove()
        for slot, draft in self.model.drafts.items():
            direction = self.model.direction(slot)
            if direction is not None and direction.source != draft.running:
                was_modified = draft.modified
                draft.running = draft.loaded = direction.source
                if not was_modified:
                    self._editors[slot].put(draft.running)
                    draft.text = draft.loaded = self._editors[slot].text
                elif draft.text == draft.running:
                    draft.loaded = draft.text
        if self._slot not in self.model.slots():
            self._slot = None

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

    # What is shown

    def _show_listing(self) -> None:
        rows = program_rows(self.model)
        self.listing.styles.height = 1 + (rows.rows or _LINES_OF_NONE)
        self.listing.fill(rows)

    def _show_all(self) -> None:
        self._show_listing()
        if self._slot is None and self.listing.source.rows:
            key = self.listing.cursor_key
            assert isinstance(key, Slot)
            self._open(key)
        self._show_editing()
        self._show_panel()

    def _open(self, slot: Slot) -> None:
        """Show this source; the one that was shown keeps its edits, cursor and history."""
        self._slot = slot
        if slot not in self._editors:
            direction = self.model.direction(slot)
            assert direction is not None
            editor = CodeEditor(direction.source)
            self.model.drafts[slot] = Draft(direction.source, editor.text, editor.text)
            self._editors[slot] = editor
            self.query_one("#editors").mount(editor)
        for other, editor in self._editors.items():
            editor.display = other == slot
        self._show_marks()

    def _show_marks(self) -> None:
        verdict = self.model.verdicts.get(self._slot.probe) if self._slot else None
        if self._slot is None or verdict is None:
            return
        for slot, editor in self._editors.items():
            if slot.probe == self._slot.probe:
                places = ((place_of(d, self._slot), d) for d in verdict.diagnostics)
                editor.show_marks(
                    [
                        Mark(
                            place.line - 1,
                            place.column - 1,
                            _TONES.get(d.severity, Tone.MUTED),
                            d.text,
                        )
                        for place, d in places
                        if place is not None and place.side == slot.side
                    ]
                )

    def _show_notes(self) -> None:
        notes = [StatusItem(counted(len(self.model.infos), "probe"), Tone.MUTED, priority=4)]
        if self._memory.limit:
            used, limit = self._memory.used, self._memory.limit
            tone = Tone.WARN if used > 0.9 * limit else Tone.MUTED
            sizes = f"{byte_size(used)} of {byte_size(limit)}"
            notes.append(StatusItem(sizes, tone, priority=7, label="memory"))
        if self._trouble:
            notes.append(StatusItem(self._trouble, Tone.BAD, priority=1))
        self.show_notes(*notes)

    def _show_editing(self) -> None:
        strip = self.query_one("#editing", StatusStrip)
        editor = self.editor
        self.console.unsaved = self.model.unsaved()
        self._show_notes()
        if self._slot is None or editor is None:
            strip.show([])
            return
        marks = editor.marks.get(editor.cursor_location[0], ())
        remark = marks[0].text if marks else ""
        doing = self._busy or ("checking" if self._checking else "")
        strip.show(
            editing_items(self.model, self._slot, self._notice, doing, remark, self.size.width)
        )

    def _show_panel(self) -> None:
        verdict = self.model.verdict(self._slot.probe) if self._slot else None
        titles = []
        for panel in Panel:
            text, tone = str(panel), Tone.MUTED
            if panel is Panel.PROBLEMS and verdict and verdict.diagnostics:
                text, tone = counted(len(verdict.diagnostics), "problem"), Tone.WARN
            chosen = panel is self._panel
            titles.append(StatusItem(text, Tone.ACCENT if chosen else tone, badge=chosen))
        titles.append(StatusItem("f3 next panel", Tone.MUTED, priority=8))
        if verdict and verdict.diagnostics:
            titles.append(StatusItem("f4 next problem", Tone.MUTED, priority=9))
        self.query_one("#panels", StatusStrip).show(titles)
        table = self.panel
        table.empty = empty_text(self._panel, self.model, self._slot)
        if self._slot is not None and self._slot in self.model.drafts:
            frame = self.console.frame
            table.show(
                panel_rows(
                    self._panel, self.model, self._slot, frame.events, frame.metrics,
                    table.size.width, whole=self._whole_log,
                )
            )  # fmt: skip

    def _choose(self, panel: Panel) -> None:
        if panel is not self._panel:
            self._panel = panel
            self.panel.columns = PANEL_COLUMNS[panel]
            self.panel.unpin()
        self._show_panel()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_panel)
