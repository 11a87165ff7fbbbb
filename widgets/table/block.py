"""A block: a table of a few rows, as one of several parts of a screen.

Only the focused block shows its cursor, which moves
on to the neighbouring block at either end. A block without rows can shrink to one line with the
reason.
"""

from __future__ import annotations

from textual.strip import Strip

from bpf.errors import printable
from bpf.quantities import REPLACED
from widgets.table.columns import GAP, MARGIN, ColumnLayout
from widgets.table.header import Title, draw_header, header_styles
from widgets.table.rows import RowSource
from widgets.table.table import RowLine, VirtualTable
from widgets.terminal.compositor import caps_of

_REASON_AT = 14
"""First cell of the reason for no rows, if the block's name is short."""


class Block(VirtualTable):
    """A VirtualTable whose rows all fit."""

    DEFAULT_CSS = "Block { overflow-y: hidden; scrollbar-gutter: auto; }"

    class CursorLeft(VirtualTable.TableMessage):
        """The cursor left the block beyond its first or last row."""

        def __init__(self, table: VirtualTable, step: int) -> None:
            super().__init__(table)
            self.step = step
            """1: downwards, -1: upwards."""

    passed_by = True
    """Whether the focus skips the block while it has no rows."""
    counts_hidden = False

    def show(self, source: RowSource) -> None:
        self.can_focus = source.rows > 0 or not self.passed_by
        super().show(source)

    def on_focus(self) -> None:
        self._repaint()

    def on_blur(self) -> None:
        self._repaint()

    def enter(self, step: int) -> None:
        """Take the focus; the cursor starts at the end from which it came."""
        self.screen.set_focus(self)
        self.move_to(0 if step > 0 else self.source.rows - 1)

    def action_move(self, rows: int, *, pinned: bool = True) -> None:
        """Move the cursor, or the focus at either end."""
        if 0 <= self.cursor_index + rows < self.source.rows:
            super().action_move(rows, pinned=pinned)
        else:
            self.post_message(self.CursorLeft(self, 1 if rows > 0 else -1))

    def _line(self, index: int, shown: tuple[ColumnLayout, ...]) -> RowLine | None:
        line = super()._line(index, shown)
        return line if line is None or self.has_focus else line._replace(cursor=False)

    def _header(self, width: int) -> Strip:
        if self.source.rows or self.size.height > 1 or not self.columns:
            return super()._header(width)
        styles = header_styles(self.get_component_rich_style)
        key = "" if caps_of(self.app).glyphs == "ascii" else self.key
        name = Title(MARGIN, self.columns[0].title, styles.name)
        text = printable(self.empty, REPLACED)[: max(0, width - MARGIN - self._reason_at)]
        return draw_header([name, Title(self._reason_at, text, styles.plain)], width, styles, key)

    @property
    def _reason_at(self) -> int:
        return max(_REASON_AT, MARGIN + len(self.columns[0].title) + GAP)

    @property
    def needs_line(self) -> bool:
        """Whether the reason for no rows is too long for the line of the name."""
        return 0 < self.size.width < self._reason_at + len(self.empty) + MARGIN
