"""A table of a few rows that stands among others, as one part of a screen.

The first column's title is the block's name. The cursor is seen only where the focus is, and moves
on to the neighbouring block at either end. Without rows a block can be one line, which then says
why.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip

from widgets.table.columns import MARGIN, ColumnLayout, cell
from widgets.table.rows import RowSource
from widgets.table.table import VirtualTable, _Line
from widgets.tones import Tone

_GAP, _SAID = 2, 13
"""Cells after a block's name at least, and from where on it says why it has no rows."""


class Block(VirtualTable):
    """A VirtualTable whose source has no more rows than there are lines for."""

    COMPONENT_CLASSES = {"block--name"}
    DEFAULT_CSS = """
    Block {
        overflow-y: hidden;
        scrollbar-gutter: auto;
        & > .block--name { background: $panel; color: $text-primary; text-style: bold; }
    }
    """

    class CursorLeft(VirtualTable.TableMessage):
        """The cursor was moved beyond the first or the last row."""

        def __init__(self, table: VirtualTable, step: int) -> None:
            super().__init__(table)
            self.step = step
            """1 downwards, -1 upwards."""

    passed_by = True
    """Whether the focus goes past it while it has no rows."""

    def show(self, source: RowSource) -> None:
        """Show `source` from now on."""
        self.can_focus = source.rows > 0 or not self.passed_by
        super().show(source)

    def on_focus(self) -> None:
        """Draw the cursor."""
        self._repaint()

    def on_blur(self) -> None:
        """Draw no cursor."""
        self._repaint()

    def enter(self, step: int) -> None:
        """Take the focus with the cursor at the end that it comes in from."""
        self.screen.set_focus(self)
        self.move_to(0 if step > 0 else self.source.rows - 1)

    def action_move(self, rows: int) -> None:
        """Move the cursor, or the focus."""
        if 0 <= self.cursor_index + rows < self.source.rows:
            super().action_move(rows)
        else:
            self.post_message(self.CursorLeft(self, 1 if rows > 0 else -1))

    def _line(self, index: int, shown: tuple[ColumnLayout, ...]) -> _Line:
        line = super()._line(index, shown)
        return line if line is None or self.has_focus else (*line[:3], False)

    def _header(self, width: int) -> Strip:
        header = super()._header(width)
        if not self.columns:
            return header
        name = self.columns[0].title
        end = MARGIN + len(name)
        segments = [
            Segment(" " * MARGIN, self.get_component_rich_style("table--header")),
            Segment(name, self.get_component_rich_style("block--name")),
        ]
        if self.source.rows or self.size.height > 1:
            return Strip([*segments, *header.crop(end)]).adjust_cell_length(width)
        muted = self.get_component_rich_style(f"tone--{Tone.MUTED}")
        panel = self.get_component_rich_style("table--header").background_style
        said = " " * max(_GAP, _SAID - len(name)) + self.empty
        text = cell(said, max(0, width - end), "left")
        return Strip([*segments, Segment(text, muted + panel)]).adjust_cell_length(width)
