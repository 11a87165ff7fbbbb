"""A status strip: one line of labelled items, and lines of text in pieces, each with its tone.

A narrow strip drops the least important item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from bpf.errors import printable
from bpf.quantities import REPLACED
from widgets.table.rows import Pieces
from widgets.tones import Tone, tone_styles

_SEPARATOR = " │ "
_MARGIN = 1


@dataclass(frozen=True, slots=True)
class StatusItem:
    """One item of the strip."""

    text: str
    tone: Tone = Tone.NORMAL
    priority: int = 0
    """0 is the most important; the highest numbers go first."""
    label: str = ""
    """Drawn muted before the text."""
    badge: bool = False
    """Drawn in reverse: for the one item that must be seen first."""


class StatusStrip(Widget):
    """A one-line strip of status items; repainted only after a change."""

    COMPONENT_CLASSES = {"status--separator"}
    DEFAULT_CSS = """
    StatusStrip {
        background: $panel;
        height: 1;
        width: 1fr;
        & > .status--separator { color: $primary-muted; }
    }
    """

    def __init__(
        self,
        items: Sequence[StatusItem] = (),
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._items = tuple(items)
        self._tones: dict[Tone, Style] = {}

    def show(self, items: Sequence[StatusItem]) -> None:
        """Show `items` from left to right."""
        if self._items != tuple(items):
            self._items = tuple(items)
            self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._tones.clear()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self._tones:
            self._tones = tone_styles(self)
        normal = self._tones[Tone.NORMAL]
        if y:
            return Strip.blank(width, normal)
        separator = Segment(_SEPARATOR, self.get_component_rich_style("status--separator"))
        segments = [Segment(" " * _MARGIN, normal)]
        for number, item in enumerate(fitting(self._items, width)):
            if number:
                segments.append(separator)
            segments += self._drawn(item)
        return Strip(segments).adjust_cell_length(width, normal)

    def _drawn(self, item: StatusItem) -> list[Segment]:
        text, label = printable(item.text, REPLACED), printable(item.label, REPLACED)
        style = self._tones[item.tone]
        if item.badge:
            return [Segment(f" {text} ", style + Style(reverse=True, bold=True))]
        drawn = [Segment(text, style)]
        return [Segment(f"{label} ", self._tones[Tone.MUTED]), *drawn] if label else drawn


def fitting(items: Sequence[StatusItem], width: int) -> list[StatusItem]:
    """Return the items that fit in `width` cells, in their own order."""
    room = width - 2 * _MARGIN
    chosen: list[int] = []
    used = -len(_SEPARATOR)
    for place in sorted(range(len(items)), key=lambda i: (items[i].priority, i)):
        need = _cells(items[place]) + len(_SEPARATOR)
        if chosen and used + need > room:
            break
        chosen.append(place)
        used += need
    return [items[place] for place in sorted(chosen)]


def _cells(item: StatusItem) -> int:
    extra = 2 if item.badge else cell_len(printable(item.label, REPLACED)) + 1 if item.label else 0
    return cell_len(printable(item.text, REPLACED)) + extra


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
        segments = [
            Segment(printable(text, REPLACED), self._tones[tone]) for text, tone in self._pieces
        ]
        strip, width = Strip(segments if y == 0 else []), self.size.width
        if strip.cell_length > width > 0:
            cut = Segment("…", self._tones[self._pieces[-1][1]])
            strip = Strip([*strip.crop(0, width - 1), cut])
        return strip.adjust_cell_length(width, self._tones[Tone.NORMAL])
