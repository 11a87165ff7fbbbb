"""`|`: choice and order of a table's columns."""

from __future__ import annotations

from typing import Any

from textual.binding import Binding

from app.console.dialogs.boxes import ListBox
from app.console.tables.sorted_table import SortedTable
from widgets.table.header import title_of
from widgets.table.rows import Column, Row, Rows
from widgets.tones import Tone

_COLUMNS: tuple[Column[Any], ...] = (
    Column("shown", "", 3),
    Column("title", "Column", 14),
    Column("name", "Name", 16, grows=True),
)
_HELP = "space shows or hides   J K move it\nu as usual   enter applies   esc cancels"


class ColumnsScreen(ListBox[None]):
    """A list of the columns of a table, from the left; shown ones have a mark."""

    BINDINGS = [
        Binding("enter", "apply", "Apply"),
        Binding("vertical_line", "dismiss", show=False),
        Binding("space", "mark", "Show or hide"),
        Binding("J,ctrl+down", "shift(1)", "Down"),
        Binding("K,ctrl+up", "shift(-1)", "Up"),
        Binding("u", "usual", "Usual"),
    ]
    DEFAULT_CSS = "ColumnsScreen > .box { width: 46; }"
    help_text, columns = _HELP, _COLUMNS

    def __init__(self, table: SortedTable) -> None:
        super().__init__()
        self._table = table
        known = {column.id: column for column in table.columns}
        self._usual = [column.id for column in table.columns if not column.hidden]
        shown = [name for name in table.chosen or self._usual if name in known]
        self._shown = set(shown)
        self._names = [*shown, *(name for name in known if name not in self._shown)]
        self._titles = {name: title_of(column) for name, column in known.items()}

    @property
    def title_text(self) -> str:
        return f"Columns of {self._table.spec.name}"

    def rows(self) -> Rows:
        return Rows.of(map(self._row, self._names))

    def _row(self, name: str) -> Row:
        shown = name in self._shown
        # The header of a time line is its scale.
        title = self._titles[name] if name in self._table.spec.sortable else "time line"
        tones = (Tone.GOOD, Tone.NORMAL if shown else Tone.MUTED, Tone.MUTED)
        return Row(name, ("[x]" if shown else "[ ]", title, name), tones)

    def action_mark(self) -> None:
        self._shown ^= {self._names[self.listed.cursor_index]}
        self.show()
        self.listed.action_move(1)

    def action_shift(self, by: int) -> None:
        at = self.listed.cursor_index
        to = at + by
        if 0 <= to < len(self._names):
            self._names[at], self._names[to] = self._names[to], self._names[at]
            self.listed.move_to(at)
            self.show()

    def action_usual(self) -> None:
        self._names = list(self._titles)
        self._shown = set(self._usual)
        self.show()

    def on_virtual_table_row_selected(self) -> None:
        self.action_mark()

    def action_apply(self) -> None:
        chosen = [name for name in self._names if name in self._shown]
        # A table needs a column.
        if chosen:
            self._table.choose(() if chosen == self._usual else chosen)
            self.dismiss()
