"""A text area for long sources: it highlights and measures only the lines that it draws.

Textual's own asks the whole syntax tree for highlights at each key and joins all lines. This one
takes a key in half the time at 2,000 lines (`bench/editor.py`), and keeps a megabyte usable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widgets import TextArea

_BLOCK = 64
"""Lines of one query for highlights."""
_MEASURED = 4096
"""Up to so many lines, each edit measures the longest line again."""

Span = tuple[int, int | None, str]
"""First column, column after the last (None: to the end of the line), and name of a highlight."""


class _Highlights(dict[int, list[Span]]):
    """Highlights by line; a missing line is queried on first access."""

    def __init__(self, query: Callable[[int, _Highlights], None]) -> None:
        super().__init__()
        self._query = query

    def __bool__(self) -> bool:
        return True

    def __missing__(self, line: int) -> list[Span]:
        first = line - line % _BLOCK
        for row in range(first, first + _BLOCK):
            self[row] = []
        self._query(first, self)
        return self[line]


class LazyTextArea(TextArea):
    """A text area whose cost of a key does not grow with its text."""

    _joined: str | None = None
    """The whole text; None after an edit."""
    _styled = False
    """The text area's theme has the styles of the app's theme."""
    _longest = 0
    """Cells of the longest line found so far."""

    def syntax_styles(self) -> Mapping[str, Style]:
        """Return the style of each highlight in the app's theme."""
        return {}

    def forget_lines(self) -> None:
        """Draw each line anew when it is next drawn."""
        self._line_cache.clear()

    @property
    def text(self) -> str:
        if self._joined is None:
            self._joined = self.document.text
        return self._joined

    @text.setter
    def text(self, value: str) -> None:
        self.load_text(value)

    def load_text(self, text: str) -> None:
        self._longest = 0
        super().load_text(text)

    def notify_style_update(self) -> None:
        """Take over the styles of the app's theme when lines are next drawn."""
        super().notify_style_update()
        self._styled = False

    def _set_theme(self, theme: str) -> None:
        super()._set_theme(theme)
        self._styled = False

    def render_lines(self, crop: Region) -> list[Strip]:
        if not self._styled:
            self._styled = True
            self._theme.syntax_styles = dict(self.syntax_styles())
        return super().render_lines(crop)

    def _build_highlight_map(self) -> None:
        # Textual calls this after each change of the text.
        self.forget_lines()
        self._joined = None
        self._highlights = _Highlights(self._query)

    def _query(self, first: int, lines: _Highlights) -> None:
        if self._highlight_query is None:
            return
        last = first + _BLOCK
        found = self.document.query_syntax_tree(self._highlight_query, (first, 0), (last, 0))
        for name in self._theme.syntax_styles:
            for node in found.get(name, ()):
                (top, start), (bottom, end) = node.start_point, node.end_point
                for row in range(max(top, first), min(bottom, last - 1) + 1):
                    from_column = start if row == top else 0
                    lines[row].append((from_column, end if row == bottom else None, name))

    def _refresh_size(self) -> None:
        if self.document.line_count <= _MEASURED or not self._longest:
            self._longest = self.document.get_size(self.indent_width).width
        else:
            row = self.cursor_location[0]
            width = len(self.document.get_line(row).expandtabs(self.indent_width))
            self._longest = max(self._longest, width)
        self.virtual_size = Size(self._longest + self.gutter_width + 1, self.document.line_count)
        self._refresh_scrollbars()
