"""`|`: choice and order of a table's columns."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static

from app.console.tables.sorted_table import SortedTable
from widgets.table.columns import Column
from widgets.table.rows import Row, Rows
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffModalScreen
from widgets.tones import Tone

_COLUMNS = (
    Column("shown", "", 3),
    Column("title", "Column", 14),
    Column("name", "Name", 16, grows=True),
)
_HELP = "space shows or hides   J K move it\nu as usual   enter applies   esc cancels"
_OTHER_LINES = 5
"""Lines of the box without the table."""


class ColumnsScreen(DiffModalScreen[None]):
    """A list of the columns of a table, from the left; shown ones have a mark."""

    BINDINGS = [
        Binding("enter", "apply", "Apply"),
        Binding("escape,vertical_line,q", "dismiss", "Cancel"),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,g,pageup", "move(-100)", show=False),
        Binding("end,G,pagedown", "move(100)", show=False),
        Binding("space", "mark", "Show or hide"),
        Binding("J,ctrl+down", "shift(1)", "Down"),
        Binding("K,ctrl+up", "shift(-1)", "Up"),
        Binding("u", "usual", "Usual"),
    ]
    CSS = """
    ColumnsScreen { align: center middle; }
    ColumnsScreen > Vertical {
        width: 46; max-width: 100%; height: auto; max-height: 100%;
        padding: 0 1; background: $panel; border: round $primary;
    }
    ColumnsScreen VirtualTable { background: $panel; }
    ColumnsScreen Static { height: auto; color: $text-muted; margin-top: 1; }
    """

    def __init__(self, table: SortedTable) -> None:
        super().__init__()
        self._table = table
        known = {column.id: column for column in table.columns}
        self._usual = [column.id for column in table.columns if not column.hidden]
        shown = [name for name in table.chosen or self._usual if name in known]
        self._shown = set(shown)
        self._names = [*shown, *(name for name in known if name not in self._shown)]
        self._titles = {name: column.title for name, column in known.items()}

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"Columns of {self._table.spec.name}"
            yield VirtualTable(_COLUMNS, id="columns")
            yield Static(_HELP, markup=False)

    @property
    def _list(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        self._list.show(Rows.of(self._row(name) for name in self._names))
        self.on_resize()

    def on_resize(self) -> None:
        room = max(2, self.size.height - _OTHER_LINES)
        self._list.styles.height = min(1 + len(self._names), room)

    def _row(self, name: str) -> Row:
        shown = name in self._shown
        # The header of a time line is its scale.
        title = self._titles[name] if name in self._table.spec.sortable else "time line"
        tones = (Tone.GOOD, Tone.NORMAL if shown else Tone.MUTED, Tone.MUTED)
        return Row(name, ("[x]" if shown else "[ ]", title, name), tones)

    def action_move(self, rows: int) -> None:
        self._list.action_move(rows)

    def action_mark(self) -> None:
        self._shown ^= {self._names[self._list.cursor_index]}
        self._show()
        self._list.action_move(1)

    def action_shift(self, by: int) -> None:
        at = self._list.cursor_index
        to = at + by
        if 0 <= to < len(self._names):
            self._names[at], self._names[to] = self._names[to], self._names[at]
            self._list.move_to(at)
            self._show()

    def action_usual(self) -> None:
        self._names = list(self._titles)
        self._shown = set(self._usual)
        self._show()

    def on_virtual_table_row_selected(self) -> None:
        self.action_mark()

    def action_apply(self) -> None:
        chosen = [name for name in self._names if name in self._shown]
        # A table needs a column.
        if chosen:
            self._table.choose(() if chosen == self._usual else chosen)
            self.dismiss()
