"""A table of tens of thousands of rows that formats only what is on the screen.

A table is shown one immutable source after another. A new source repaints only the lines whose text
or tone changed, and never scrolls. The cursor belongs to a row's key: after the user has moved it,
it follows that row as sorting moves it. Until then it stays at the top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets.table.columns import (
    GAP,
    MARGIN,
    ColumnLayout,
    cell,
    fit,
    placed_pieces,
    wanted,
)
from widgets.table.header import (
    EmptyStyles,
    draw_empty,
    draw_header,
    header_styles,
    more_sign,
    titles,
)
from widgets.table.rows import Align, Column, Pieces, Rows, RowSource, Tones
from widgets.terminal.compositor import caps_of
from widgets.tones import Tone, tone_styles

_HEADER = 1
"""Lines above the rows."""


def _nearest(seen: range, index: int) -> int:
    return max(seen.start, min(index, seen.stop - 1)) if seen else index


class RowLine(NamedTuple):
    """Content of a row's line."""

    columns: tuple[ColumnLayout, ...]
    cells: tuple[str | Pieces, ...]
    """Of the columns."""
    tones: Tones
    cursor: bool
    """Whether the row is under the cursor."""


def draw_row(
    line: RowLine, width: int, styles: Mapping[Tone, Style], over: Style | None, focused: bool
) -> Strip:
    """Draw a row; `over` is the style of the cursor if the row is under it."""
    normal = base = styles[Tone.NORMAL]
    # Without a background the cursor is a mark, which takes few bytes to move.
    marked = over is not None and over.bgcolor == base.bgcolor
    over = None if marked else over
    base = base if over is None else base + over
    segments = [Segment((">" if marked else "").ljust(MARGIN), base)]
    for place, content in zip(line.columns, line.cells, strict=True):
        if not isinstance(content, str):
            for text, tone in placed_pieces(content, place.width):
                style = styles[tone]
                # The background of a tone keeps its meaning under the cursor.
                if over is not None and style.bgcolor == normal.bgcolor:
                    style += over.background_style
                segments.append(Segment(text, style))
            segments.append(Segment(" " * GAP, base))
            continue
        tones = line.tones
        style = styles[tones if isinstance(tones, Tone) else tones[place.position]]
        if over is not None:
            style = base if focused else style + over.background_style
        segments.append(_segment(content, place.width, place.column.align, style))
    last = line.columns[-1]
    strip = Strip(segments, last.x + last.width + GAP)
    # The cursor is as wide as the table.
    return strip if over is None else strip.adjust_cell_length(width, base)


@lru_cache(maxsize=8192)
def _segment(text: str, width: int, align: Align, style: Style) -> Segment:
    """A cell and the gap after it."""
    # Each cell apart: the terminal gets only those that changed.
    return Segment(cell(text, width, align) + " " * GAP, style)


class VirtualTable(ScrollView, can_focus=True, inherit_bindings=False):
    """A sorted list of rows with a cursor, drawn line by line.

    The title of the first column is the name of the table. Its user binds keys to its actions.
    """

    COMPONENT_CLASSES = {
        "table--name", "table--header", "table--sorted", "table--rule", "table--cursor",
    }  # fmt: skip
    DEFAULT_CSS = """
    VirtualTable {
        background: $surface;
        height: 1fr;
        overflow-x: hidden;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        & > .table--name { color: $foreground; text-style: bold; }
        & > .table--header { color: $text-muted; }
        & > .table--sorted { color: $text-primary; text-style: bold; }
        & > .table--rule { color: $primary-muted; }
        & > .table--cursor { background: $block-cursor-blurred-background; }
        &:focus > .table--cursor {
            background: $block-cursor-background; color: $block-cursor-foreground;
        }
        &:focus > .table--name { color: $text-primary; }
        &:focus > .table--rule { color: $primary; }
    }
    """
    empty: reactive[str] = reactive("")
    """Text of an empty table."""
    chosen: reactive[tuple[str, ...]] = reactive((), init=False)
    """Ids of the shown columns, from the left; empty: all but hidden ones."""

    class TableMessage(Message):
        """Base of a table's messages."""

        def __init__(self, table: VirtualTable) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> VirtualTable:
            """The table, for `on(..., selector)`."""
            return self.table

    class RowMessage(TableMessage):
        """Base of messages about a row."""

        def __init__(self, table: VirtualTable, key: Hashable) -> None:
            super().__init__(table)
            self.key = key

    class RowHighlighted(RowMessage):
        """The cursor moved to another row."""

    class RowSelected(RowMessage):
        """Enter or a double click chose a row."""

        def __init__(self, table: VirtualTable, key: Hashable, *, clicked: bool) -> None:
            super().__init__(table, key)
            self.clicked = clicked

    class HeaderSelected(TableMessage):
        """A click on a column's title."""

        def __init__(self, table: VirtualTable, column: str) -> None:
            super().__init__(table)
            self.column = column

    holds: Callable[[], bool] = staticmethod(lambda: True)
    """Returns whether the cursor stays on its row even out of view, because a pane shows that row.
    Otherwise it lets go of a row that leaves the view, and stays at its place on the screen."""
    counts_hidden = True
    """Whether the header counts the columns that do not fit."""

    def __init__(
        self,
        columns: Sequence[Column[Any]],
        *,
        empty: str = "",
        key: str = "",
        id: str | None = None,  # noqa: A002
    ) -> None:
        """`key` is the key that leads to the table, for its header."""
        super().__init__(id=id)
        self.key = key
        self._columns = tuple(columns)
        self.source: RowSource = Rows()
        """The present source; `show` replaces it."""
        self.cursor_index = 0
        self.cursor_key: Hashable | None = None
        """Key of the row under the cursor; None in an empty table."""
        self._pinned = False
        self._wanted: Hashable | None = None
        self._sorted = ("", False)
        self._skipped = 0
        """Columns that are scrolled away to the left."""
        self._lines: dict[int, RowLine | None] = {}
        self._fitted: tuple[Size | None, tuple[ColumnLayout, ...]] = (None, ())
        self._tones: dict[Tone, Style] = {}
        self.set_reactive(VirtualTable.empty, empty)

    @property
    def columns(self) -> tuple[Column[Any], ...]:
        """All columns, also those that do not fit."""
        return self._columns

    @columns.setter
    def columns(self, columns: Sequence[Column[Any]]) -> None:
        if self._columns != tuple(columns):
            self._columns = tuple(columns)
            self._repaint()

    def watch_chosen(self) -> None:
        self._repaint()

    @property
    def shown(self) -> tuple[ColumnLayout, ...]:
        """The columns that fit, from the left."""
        if self._fitted[0] != self.outer_size:
            width = self.scrollable_content_region.width
            known = self._columns, width, self.chosen, self._sorted[0]
            fitting = fit(*known)
            if len(fitting) == len(wanted(self._columns, self.chosen, self._sorted[0])):
                self._skipped = 0
            elif self._skipped:
                fitting = fit(*known, self._skipped)
            self._fitted = (self.outer_size, fitting)
        return self._fitted[1]

    @property
    def _beyond(self) -> tuple[int, bool]:
        """Number of columns that do not fit, and whether there are some at the right."""
        shown, names = self.shown, wanted(self._columns, self.chosen, self._sorted[0])
        count = len(names) - len(shown)
        return count, count > 0 and (not self._skipped or shown[-1].position != names[-1])

    @property
    def in_view(self) -> range:
        """Indices of the rows on the screen."""
        top = self.scroll_offset.y
        return range(min(top, self.source.rows), min(top + self._visible, self.source.rows))

    @property
    def cursor_screen_offset(self) -> Offset:
        """Screen offset of the row under the cursor."""
        y = self.cursor_index - self.scroll_offset.y + _HEADER
        return self.content_region.offset + Offset(0, y)

    def width_of(self, column: str) -> int:
        """Return the cells of a column (by id); 0 if it does not fit."""
        return next((p.width for p in self.shown if p.column.id == column), 0)

    def show(self, source: RowSource) -> None:
        """Show a new source; the cursor stays on its row, and the view where it is."""
        followed = self.cursor_index in self.in_view
        had_rows = self.source.rows > 0
        self.source = source
        if not source.rows:
            self._pinned = False
        self.virtual_size = Size(1, source.rows + _HEADER)
        if self.scroll_y > self.max_scroll_y:
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)
        found = source.index(self.cursor_key) if self._pinned else None
        if found is not None and followed and found not in self.in_view and not self.holds():
            found, self._pinned = None, False
        self._place(self.cursor_index if found is None else found)
        if had_rows != (source.rows > 0):
            self._repaint()
        else:
            self._repaint_changed()
        if self._wanted is not None:
            self.want(self._wanted)

    def want(self, key: Hashable) -> None:
        """Put the cursor on a row now, or when the row appears, unless the user moves it before."""
        if (index := self.source.index(key)) is not None:
            self.move_to(index)
        else:
            self._wanted = key

    def show_sort(self, column: str, *, descending: bool) -> None:
        """Mark the column (by id) by which the source is sorted; an empty id: none.

        Even a narrow table shows that column.
        """
        if self._sorted != (column, descending):
            self._sorted = (column, descending)
            self._repaint()

    def move_to(self, index: int, *, pinned: bool = True) -> None:
        """Put the cursor on row `index`, or the nearest, as the user would.

        A `pinned` cursor follows that row.
        """
        self._pinned, self._wanted = pinned and self.source.rows > 0, None
        before = self.cursor_index
        self._place(index)
        self._reveal()
        for row in {before, self.cursor_index}:
            y = row - self.scroll_offset.y + _HEADER
            self._lines.pop(y, None)
            self.refresh(Region(0, y, self.size.width, 1))

    def action_move(self, rows: int, *, pinned: bool = True) -> None:
        """Move the cursor, from the nearest row in view."""
        self.move_to(_nearest(self.in_view, self.cursor_index) + rows, pinned=pinned)

    def action_page(self, pages: float) -> None:
        rows = pages * max(1, self._visible - 1)
        at = _nearest(self.in_view, self.cursor_index)
        self.move_to(at + int(rows + math.copysign(0.5, rows)))

    def action_scroll_columns(self, columns: int) -> None:
        """Scroll sideways; the first columns stay."""
        skipped = max(0, self._skipped + columns)
        if skipped < self._skipped or self._beyond[1]:
            self._skipped = skipped
            self._repaint()

    def action_top(self) -> None:
        """Go to the first row, and stay at the top whatever the first row is."""
        self.move_to(0, pinned=False)

    def action_select(self, *, clicked: bool = False) -> None:
        if self.cursor_key is not None:
            self._pinned = True
            self.post_message(self.RowSelected(self, self.cursor_key, clicked=clicked))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y < _HEADER:
            for place in self.shown:
                if place.x - MARGIN <= offset.x < place.x + place.width + GAP - MARGIN:
                    self.post_message(self.HeaderSelected(self, place.column.id))
            return
        index = offset.y - _HEADER + self.scroll_offset.y
        if index < self.source.rows:
            self.move_to(index)
            if event.chain % 2 == 0:
                self.action_select(clicked=True)

    def on_resize(self) -> None:
        self._reveal()
        self._repaint()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if round(old_value) != round(new_value):
            self._lines.clear()
        super().watch_scroll_y(old_value, new_value)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._tones.clear()

    def render_line(self, y: int) -> Strip:
        if not self._tones:
            self._tones = tone_styles(self)
        width = self.outer_size.width
        if y < _HEADER:
            return self._header(width)
        if not self.source.rows:
            room = self.scrollable_content_region.width, self._visible
            look = EmptyStyles(
                self._tones[Tone.MUTED], self.get_component_rich_style("table--rule")
            )
            return draw_empty(self.empty, y - _HEADER, self.shown, room, look)
        if y not in self._lines:
            self._lines[y] = self._line(y - _HEADER + self.scroll_offset.y, self.shown)
        line = self._lines[y]
        if line is None:
            return Strip.blank(width, self._tones[Tone.NORMAL])
        cursor = self.get_component_rich_style("table--cursor") if line.cursor else None
        return draw_row(line, width, self._tones, cursor, self.has_focus)

    @property
    def _visible(self) -> int:
        return max(0, self.size.height - _HEADER)

    def _place(self, index: int) -> None:
        rows = self.source.rows
        self.cursor_index = max(0, min(index, rows - 1))
        key = self.source.key(self.cursor_index) if rows else None
        if key != self.cursor_key:
            self.cursor_key = key
            if key is not None:
                self.post_message(self.RowHighlighted(self, key))

    def _reveal(self) -> None:
        top = self.scroll_offset.y
        if self._visible and self.source.rows and self.cursor_index not in self.in_view:
            above = self.cursor_index < top
            y = self.cursor_index if above else self.cursor_index - self._visible + 1
            # Before the next layout scrolling may seem forbidden, hence force.
            self.scroll_to(y=y, animate=False, force=True)

    def _repaint(self) -> None:
        self._lines.clear()
        self._fitted = (None, ())
        self.refresh()

    def _repaint_changed(self) -> None:
        changed: list[Region] = []
        shown, size, top = self.shown, self.size, self.scroll_offset.y
        for y in range(_HEADER, size.height):
            line = self._line(y - _HEADER + top, shown)
            if y not in self._lines or self._lines[y] != line:
                self._lines[y] = line
                changed.append(Region(0, y, size.width, 1))
        if changed:
            self.refresh(*changed)

    def _line(self, index: int, shown: tuple[ColumnLayout, ...]) -> RowLine | None:
        if index >= self.source.rows:
            return None
        cells = self.source.cells(index)
        seen = tuple(cells[place.position] for place in shown)
        return RowLine(shown, seen, self.source.tones(index), index == self.cursor_index)

    def _header(self, width: int) -> Strip:
        styles = header_styles(self.get_component_rich_style)
        apart = caps_of(self.app).glyphs == "ascii"
        shown = titles(self.shown, self._sorted, styles, apart=apart)
        more = more_sign(*self._beyond, skipped=self._skipped) if self.counts_hidden else ""
        # The scroll bar covers the end of the header.
        beside = width - self.scrollable_content_region.width
        key = "" if apart else self.key
        return draw_header(shown, width, styles, key, more and more + " " * beside)
