"""A block: a table of a few rows, as one of several parts of a screen.

The first column's title is the block's name. Only the focused block shows its cursor, which moves
on to the neighbouring block at either end. A block without rows can shrink to one line with the
reason.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip

from widgets.table.columns import MARGIN, ColumnLayout, cell
from widgets.table.lines import RowLine
from widgets.table.rows import RowSource
from widgets.table.table import VirtualTable
from widgets.tones import Tone

_GAP, _SAID = 2, 13
"""Least column of the reason for no rows, and least cells after the block's name."""


class Block(VirtualTable):
    """A VirtualTable whose rows all fit."""

    COMPONENT_CLASSES = {"block--name"}
    DEFAULT_CSS = """
    Block {
        overflow-y: hidden;
        scrollbar-gutter: auto;
        & > .block--name { background: $panel; color: $text-primary; text-style: bold; }
    }
    """

    class CursorLeft(VirtualTable.TableMessage):
        """The cursor left the block beyond its first or last row."""

        def __init__(self, table: VirtualTable, step: int) -> None:
            super().__init__(table)
            self.step = step
            """1: downwards, -1: upwards."""

    passed_by = True
    """Whether the focus skips the block while it has no rows."""

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

    def action_move(self, rows: int) -> None:
        """Move the cursor, or the focus at either end."""
        if 0 <= self.cursor_index + rows < self.source.rows:
            super().action_move(rows)
        else:
            self.post_message(self.CursorLeft(self, 1 if rows > 0 else -1))

    def _line(self, index: int, shown: tuple[ColumnLayout, ...]) -> RowLine | None:
        line = super()._line(index, shown)
        return line if line is None or self.has_focus else line._replace(cursor=False)

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
