"""`n`: a menu of ready probes, with the time per packet of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from app.config.ready_probes import ReadyProbe
from widgets.format import MISSING
from widgets.table.columns import Column
from widgets.table.rows import Row, Rows
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffModalScreen
from widgets.tones import Tone

_COLUMNS = (
    Column("name", "Probe", 14),
    Column("cost", "ns/packet", 9, "right"),
    Column("purpose", "Purpose", 30, grows=True),
)
_HELP = "enter adds it and opens its source   esc cancels"
_OTHER_LINES = 5
"""Lines of the box without the table."""
Measure = Callable[[ReadyProbe, Callable[[str], None]], None]
"""Measures a probe in a worker, and calls with the time as a text."""


class LibraryScreen(DiffModalScreen[str]):
    """A list of ready probes; its result is the name of the chosen one."""

    BINDINGS = [
        Binding("enter", "choose", "Add"),
        Binding("escape,n,q", "dismiss", "Cancel"),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,g,pageup", "move(-100)", show=False),
        Binding("end,G,pagedown", "move(100)", show=False),
    ]
    CSS = """
    LibraryScreen { align: center middle; }
    LibraryScreen > Vertical {
        width: 110; max-width: 100%; height: auto; max-height: 100%;
        padding: 0 1; background: $panel; border: round $primary;
    }
    LibraryScreen VirtualTable { background: $panel; }
    LibraryScreen Static { height: auto; color: $text-muted; margin-top: 1; }
    """

    def __init__(self, probes: Sequence[ReadyProbe], measure: Measure) -> None:
        super().__init__()
        self._probes, self._measure = probes, measure
        self._costs: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Ready probes"
            yield VirtualTable(_COLUMNS, id="library")
            yield Static(_HELP, markup=False)

    @property
    def _list(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def on_mount(self) -> None:
        self._show()
        self._measure_next()

    def on_resize(self) -> None:
        room = max(2, self.size.height - _OTHER_LINES)
        self._list.styles.height = min(1 + len(self._probes), room)

    def _show(self) -> None:
        tones = Tone.ACCENT, Tone.MUTED, Tone.NORMAL
        self._list.show(
            Rows.of(
                Row(
                    each.name, (each.name, self._costs.get(each.name, MISSING), each.purpose), tones
                )
                for each in self._probes
            )
        )

    def _measure_next(self) -> None:
        """Measure one probe after the other, while the menu is open."""
        left = [each for each in self._probes if each.name not in self._costs]
        if left and self.is_attached:
            self._measure(left[0], lambda text: self._measured(left[0].name, text))

    def _measured(self, name: str, text: str) -> None:
        self._costs[name] = text
        if self.is_attached:
            self._show()
            self._measure_next()

    def action_move(self, rows: int) -> None:
        self._list.action_move(rows)

    def action_choose(self) -> None:
        self.dismiss(self._probes[self._list.cursor_index].name)

    def on_virtual_table_row_selected(self) -> None:
        self.action_choose()
