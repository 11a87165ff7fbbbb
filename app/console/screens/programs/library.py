"""`n`: a menu of ready probes, with the time per packet of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from textual.binding import Binding

from app.config.ready_probes import ReadyProbe
from app.console.dialogs.boxes import ListBox
from bpf.quantities import MISSING
from widgets.table.rows import Column, Row, Rows
from widgets.tones import Tone

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
