"""Screens with tables that the user sorts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

from textual import events, on

from bpf.errors import UsageError, did_you_mean
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffScreen

if TYPE_CHECKING:
    from app.console.tables.sorted_table import SortedTable


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
        return cast("list[SortedTable]", list(self.query("SortedTable")))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        # By identity: its module loads numpy, and the first paint does not.
        self._turned_to = next((t for t in self.tables if t is event.widget), self._turned_to)

    def keep(self) -> dict[str, str]:
        """Return the present state for a layout."""
        return {key: value for table in self.tables for key, value in table.keep().items()}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; `show` follows."""
        for table in self.tables:
            table.restore(kept)

    def shown_tables(self) -> list[SortedTable]:
        """Return the visible tables; the table of commands comes first."""
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
        table = next((table for table in self.tables if table is event.table), None)
        if table is not None and event.column in table.spec.sortable:
            if event.column == table.sort:
                table.order_by(table.sort, descending=not table.descending)
            else:
                table.order_first(event.column)
