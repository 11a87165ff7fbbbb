"""A line of text in pieces with tones."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from widgets.table.rows import Pieces
from widgets.tones import TONE_CLASSES, TONE_RULES, Tone, tone_styles


class PiecesLine(Widget):
    """One line; repainted only after a change."""

    COMPONENT_CLASSES = {*TONE_CLASSES}
    DEFAULT_CSS = f"""
    PiecesLine {{
        background: $surface;
        height: 1;
        {TONE_RULES}
    }}
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._pieces: Pieces = ()
        self._tones: dict[Tone, Style] = {}

    def show(self, pieces: Pieces) -> None:
        if self._pieces != pieces:
            self._pieces = pieces
            self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._tones.clear()

    def render_line(self, y: int) -> Strip:
        if not self._tones:
            self._tones = tone_styles(self.get_component_rich_style)
        normal = self._tones[Tone.NORMAL]
        segments = [Segment(text, self._tones[tone]) for text, tone in self._pieces if not y]
        return Strip(segments).adjust_cell_length(self.size.width, normal)
