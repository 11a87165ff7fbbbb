"""Tables whose order and columns the user chooses, and screens with such tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from textual import events, on

from app.console.protocol import console_of
from app.console.tables.spec import TableSpec, columns
from bpf.errors import UsageError, did_you_mean
from widgets.table.rows import Rows, ValueSource
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffScreen

OPEN = "open"
"""Value of an open pane in a layout."""


class SortedTable(VirtualTable):
    """A table whose order and columns the user chooses."""

    def __init__(
        self,
        spec: TableSpec[Any],
        *,
        empty: str = "",
        id: str | None = None,  # noqa: A002
    ) -> None:
        """The name of `spec` is the usual `id`."""
        super().__init__(columns(spec), empty=empty, id=id or spec.name)
        self.spec = spec
        self.sort = spec.sort
        """The column (by id) that orders the rows; empty: the order of the source."""
        self.descending = spec.begins_with_largest(spec.sort)
        self._rows: ValueSource = Rows()
        self.arranged: ValueSource = self._rows
        """The rows in their present order."""
        self.whole: Callable[[], ValueSource] | None = None
        """Returns the rows that files get, if the table does not show all of them."""

    def on_mount(self) -> None:
        self.chosen = console_of(self.app).settings.columns.get(self.spec.name, ())

    def fill(self, rows: ValueSource) -> None:
        """Show `rows` in the chosen order."""
        self._rows = rows
        self.arranged = self.in_order(rows)
        self.show(self.arranged)
        self.show_sort(self.sort, descending=self.descending)

    def in_order(self, rows: ValueSource) -> ValueSource:
        """Return `rows` in the chosen order."""
        place = next((n for n, c in enumerate(self.columns) if c.id == self.sort), None)
        return rows if place is None else rows.ordered(place, descending=self.descending)

    def order_by(self, column: str, *, descending: bool) -> None:
        """Change the order; the cursor stays on its row."""
        key = self.cursor_key if self._pinned else None
        self.sort, self.descending = column, descending
        self.fill(self._rows)
        if key is not None:
            self.want(key)

    def order_by_next(self) -> None:
        """Sort by the next of the chosen columns."""
        names = self.chosen or [column.id for column in self.columns if not column.hidden]
        cycle = [name for name in names if name in self.spec.sortable]
        if not self.spec.sort:
            cycle.insert(0, "")
        at = cycle.index(self.sort) if self.sort in cycle else -1
        self.order_first(cycle[(at + 1) % len(cycle)])

    def order_first(self, column: str) -> None:
        """Sort by a column in its usual order."""
        self.order_by(column, descending=self.spec.begins_with_largest(column))

    def choose(self, columns: Sequence[str]) -> None:
        """Show these columns, or the usual ones for none. Raises UsageError for other names."""
        self.spec.check(tuple(columns))
        self.chosen = tuple(columns)

    def keep(self) -> dict[str, str]:
        """Return order and columns for a layout."""
        name, descending = self.spec.name, str(self.descending).lower()
        return {
            f"{name}.sort": self.sort,
            f"{name}.descending": descending,
            f"{name}.columns": " ".join(self.chosen),
        }

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore unknown columns."""
        now = {**self.keep(), **kept}
        sort, descending, columns = (now[key] for key in self.keep())
        if sort in ("", *self.spec.sortable):
            self.order_by(sort, descending=descending == "true")
        with suppress(UsageError):
            self.choose(columns.split())


class TableScreen(DiffScreen[None]):
    """A screen whose tables the user sorts and copies."""

    MAIN_TABLE = ""
    """The table of commands until another one gets the focus; empty for the first."""

    def __init__(self) -> None:
        super().__init__()
        self._turned_to: SortedTable | None = None

    @cached_property
    def tables(self) -> list[SortedTable]:
        """Every table; cached after the mount."""
        return list(self.query(SortedTable))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, SortedTable):
            self._turned_to = event.widget

    def keep(self) -> dict[str, str]:
        """Return the present state for a layout."""
        return {key: value for table in self.tables for key, value in table.keep().items()}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; `show` follows."""
        for table in self.tables:
            table.restore(kept)

    def shown_tables(self) -> list[SortedTable]:
        """Return the visible tables, that of commands first."""
        return sorted(
            (table for table in self.tables if table.display),
            key=lambda table: (table is not self._turned_to, table.spec.name != self.MAIN_TABLE),
        )

    def table_with(self, column: str = "") -> SortedTable:
        """Return the table of a command, which can be sorted by `column`. Raises UsageError."""
        tables = self.shown_tables()
        if not tables:
            raise UsageError("there is no table here")
        if not column:
            return tables[0]
        for table in tables:
            if column in table.spec.sortable:
                return table
        name, known = tables[0].spec.name, tables[0].spec.sortable
        hint = did_you_mean(column, known)
        raise UsageError(f"{name} cannot be sorted by {column!r}", hint=hint)

    def turn_to(self, name: str, *names: str) -> None:
        """Show the table `name` in place of others; it takes their focus."""
        tables = {table.spec.name: table for table in self.tables}
        for other in names:
            tables[other].display = False
        tables[name].display = True
        if self.focused in [tables[other] for other in names]:
            self.set_focus(tables[name])

    def do_sort(self, column: str = "") -> None:
        """Sort the table that has this column; without one, the focused table by its next."""
        table = self.table_with(column)
        if column:
            table.order_first(column)
        else:
            table.order_by_next()

    def do_reverse(self) -> None:
        table = self.table_with()
        if not table.sort:
            raise UsageError("there is no order to reverse", hint="s sorts")
        table.order_by(table.sort, descending=not table.descending)

    @on(VirtualTable.HeaderSelected)
    def _header_selected(self, event: VirtualTable.HeaderSelected) -> None:
        table = event.table
        if isinstance(table, SortedTable) and event.column in table.spec.sortable:
            if event.column == table.sort:
                table.order_by(table.sort, descending=not table.descending)
            else:
                table.order_first(event.column)
