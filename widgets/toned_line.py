"""A line of text in pieces, each with its tone."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from widgets.format import REPLACED, safe
from widgets.table.rows import Pieces
from widgets.tones import Tone, tone_styles


class TonedLine(Widget):
    """One line; repainted only after a change."""

    DEFAULT_CSS = "TonedLine { background: $surface; height: 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._pieces: Pieces = ()
        self._tones: dict[Tone, Style] = {}

    def show(self, pieces: Pieces) -> None:
        """Show `pieces` from left to right."""
        if self._pieces != pieces:
            self._pieces = pieces
            self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._tones.clear()

    def render_line(self, y: int) -> Strip:
        if not self._tones:
            self._tones = tone_styles(self)
        segments = [Segment(safe(text, REPLACED), self._tones[tone]) for text, tone in self._pieces]
        strip, width = Strip(segments if y == 0 else []), self.size.width
        if strip.cell_length > width > 0:
            cut = Segment("…", self._tones[self._pieces[-1][1]])
            strip = Strip([*strip.crop(0, width - 1), cut])
        return strip.adjust_cell_length(width, self._tones[Tone.NORMAL])
