"""The lower half of screen 5: the titles of panels, and the table of the chosen one."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from app.console.screen import counted
from app.console.screens.programs.model import Programs, Slot
from app.console.screens.programs.panels import COLUMNS, Panel, empty_text, panel_rows
from probes.snapshot import Event, Snapshot
from widgets.status import StatusItem, StatusStrip
from widgets.table.table import VirtualTable
from widgets.tones import Tone


class SourcePanel(Vertical):
    """Tables about a source, one at a time."""

    DEFAULT_CSS = "SourcePanel { height: auto; }"

    def __init__(self, model: Programs) -> None:
        super().__init__()
        self._model = model
        self._whole_log = False
        self.chosen = Panel.PROBLEMS

    def compose(self) -> ComposeResult:
        yield StatusStrip(id="panels")
        yield VirtualTable(COLUMNS[self.chosen], id="panel")

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    @property
    def is_live(self) -> bool:
        """Whether each window or event may change the panel."""
        return self.chosen in (Panel.METRICS, Panel.EVENTS)

    def choose(self, panel: Panel) -> None:
        if panel is not self.chosen:
            self.chosen = panel
            self.table.columns = COLUMNS[panel]
            self.table.unpin()

    def unfold_log(self) -> None:
        """Show the visible log whole, or folded again; another panel's next log is folded."""
        self._whole_log = self.chosen is Panel.LOG and not self._whole_log

    def show(self, slot: Slot | None, events: Sequence[Event], metrics: Sequence[Snapshot]) -> None:
        verdict = self._model.verdict(slot.probe) if slot else None
        titles = []
        for panel in Panel:
            text, tone = str(panel), Tone.MUTED
            if panel is Panel.PROBLEMS and verdict and verdict.diagnostics:
                text, tone = counted(len(verdict.diagnostics), "problem"), Tone.WARN
            chosen = panel is self.chosen
            titles.append(StatusItem(text, Tone.ACCENT if chosen else tone, badge=chosen))
        titles.append(StatusItem("f3 next panel", Tone.MUTED, priority=8))
        if verdict and verdict.diagnostics:
            titles.append(StatusItem("f4 next problem", Tone.MUTED, priority=9))
        self.query_one(StatusStrip).show(titles)
        table = self.table
        table.empty = empty_text(self.chosen, self._model, slot)
        if slot is not None and slot in self._model.drafts:
            table.show(
                panel_rows(
                    self.chosen, self._model, slot, events, metrics, table.size.width,
                    whole=self._whole_log,
                )
            )  # fmt: skip
