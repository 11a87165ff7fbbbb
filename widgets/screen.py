"""Screens that send the terminal only the cells that changed, and never wait for it.

Stock Textual repaints every span that a widget marked as dirty. Here a shadow of what the terminal
shows is kept for each app, and an update is compared with it: a table whose numbers change costs a
few hundred bytes a second instead of tens of thousands.

Stock Textual also blocks its event loop when the terminal takes nothing in: the queue to the thread
that writes is bounded. Here a frame is put off while the last one is still on its way; dirty
regions add up meanwhile, so nothing is lost.

Everything in probedeck that leans on Textual's private parts is in this module; it was written for
Textual 8.2.8. With PROBEDECK_DIFF=0 in the environment the stock behaviour is back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate, LayoutUpdate
from textual.app import App
from textual.geometry import Size
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip

_Line: TypeAlias = "list[Segment]"
_Paint: TypeAlias = "tuple[str, str | None]"
"""How a cell looks: its SGR parameters, and its hyperlink."""


class Shadow:
    """What a terminal of a size shows."""

    __slots__ = ("lines", "size")

    def __init__(self) -> None:
        self.size = Size(0, 0)
        self.lines: list[_Line | None] = []
        """Segments of each line; None where it is not known what the line shows."""

    def reset(self, size: Size | None = None) -> None:
        """Know nothing."""
        self.size = self.size if size is None else size
        self.lines = [None] * self.size.height

    @property
    def stale(self) -> bool:
        """Whether there is a line of which nothing is known."""
        return None in self.lines


_SHADOWS: WeakKeyDictionary[App[Any], Shadow] = WeakKeyDictionary()
"""One for each app, because all its screens are drawn on the same terminal."""


def _shadow(app: App[Any]) -> Shadow:
    return _SHADOWS.setdefault(app, Shadow())


class DiffUpdate(CompositorUpdate):
    """An update that writes what differs from the shadow, and then is the shadow."""

    def __init__(
        self,
        stock: LayoutUpdate | ChopsUpdate,
        shadow: Shadow,
        lines: Sequence[tuple[int, _Line]],
    ) -> None:
        self._stock = stock
        self._shadow = shadow
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._stock.__rich_console__(console, options)

    def render_segments(self, console: Console) -> str:
        """Give the bytes that bring the terminal up to date."""
        pen = _Pen(console._color_system or ColorSystem.TRUECOLOR)
        for y, line in self._lines:
            old = self._shadow.lines[y]
            self._shadow.lines[y] = line
            if old is None or not (_narrow(old) and _narrow(line)):
                if old != line:
                    pen.whole_line(y, line)
            elif old != line:
                pen.changes(y, old, line)
        return pen.finished()


class _Pen:
    """Writes runs of cells and keeps track of where the terminal's cursor is and how it paints."""

    def __init__(self, colors: ColorSystem) -> None:
        self._colors = colors
        self._out: list[str] = []
        self._at = (-1, -1)
        self._sgr = ""

    def whole_line(self, y: int, line: _Line) -> None:
        x = 0
        for segment in line:
            # Terminals differ about the width of some characters: do not rely on where they
            # left the cursor.
            self._write(y, x, segment.text, segment.style, moves=not _plain(segment.text))
            x += segment.cell_length

    def changes(self, y: int, old: _Line, new: _Line) -> None:
        """Write the cells of `new` that differ; every character of both is one cell wide."""
        rest = iter(old)
        was_text, was_at = "", 0
        was_paint: _Paint = ("", None)
        x = 0
        for text, style, _ in new:
            paint = self._paint(style)
            at = 0
            while at < len(text):
                while was_at >= len(was_text):
                    segment = next(rest, None)
                    if segment is None:
                        self._write(y, x + at, text[at:], style)
                        return
                    was_text, was_paint, was_at = segment.text, self._paint(segment.style), 0
                count = min(len(text) - at, len(was_text) - was_at)
                cells, was = text[at : at + count], was_text[was_at : was_at + count]
                if paint != was_paint:
                    self._write(y, x + at, cells, style)
                elif cells != was:
                    first = next(i for i in range(count) if cells[i] != was[i])
                    last = next(i for i in range(count - 1, -1, -1) if cells[i] != was[i])
                    self._write(y, x + at + first, cells[first : last + 1], style)
                at += count
                was_at += count
            x += len(text)

    def finished(self) -> str:
        if self._sgr:
            self._out.append("\x1b[0m")
        return "".join(self._out)

    def _write(
        self, y: int, x: int, text: str, style: Style | None, *, moves: bool = False
    ) -> None:
        line, column = self._at
        if line != y or column > x or column < 0:
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        elif column < x:
            self._out.append(f"\x1b[{x - column}C")
        sgr, link = self._paint(style)
        self._out.append(sgr_change(self._sgr, sgr))
        self._sgr = sgr
        self._out.append(f"\x1b]8;;{link}\x1b\\{text}\x1b]8;;\x1b\\" if link else text)
        self._at = (y, -1 if moves else x + len(text))

    def _paint(self, style: Style | None) -> _Paint:
        if style is None:
            return "", None
        sgr = style._ansi
        return Strip.render_ansi(style, self._colors) if sgr is None else sgr, style._link


@lru_cache(maxsize=4096)
def sgr_change(before: str, after: str) -> str:
    """The escape sequence from one set of SGR parameters to another."""
    if before == after:
        return ""
    if not after:
        return "\x1b[0m"
    old_attributes, old_fore, old_back = _sgr_parts(before)
    attributes, fore, back = _sgr_parts(after)
    if attributes != old_attributes:
        return f"\x1b[0;{after}m"
    changed = [fore or "39"] if fore != old_fore else []
    changed += [back or "49"] if back != old_back else []
    return f"\x1b[{';'.join(changed)}m"


def _sgr_parts(parameters: str) -> tuple[frozenset[str], str, str]:
    """SGR parameters as attributes, foreground and background."""
    attributes: set[str] = set()
    fore = back = ""
    rest = iter(parameters.split(";") if parameters else ())
    for code in rest:
        number = int(code)
        whole = code
        if number in (38, 48):
            mode = next(rest)
            whole = ";".join((code, mode, *(next(rest) for _ in range(3 if mode == "2" else 1))))
        if 30 <= number <= 39 or 90 <= number <= 97:
            fore = whole
        elif 40 <= number <= 49 or 100 <= number <= 107:
            back = whole
        else:
            attributes.add(code)
    return frozenset(attributes), fore, back


@lru_cache(maxsize=16384)
def _one_cell_each(text: str) -> bool:
    return all(get_character_cell_size(character) == 1 for character in text)


def _plain(text: str) -> bool:
    return text.isascii() or _one_cell_each(text)


def _narrow(line: _Line) -> bool:
    """Whether every character of the line takes one cell, so that cells can be counted."""
    return all(_plain(segment.text) for segment in line)


class DiffCompositor(Compositor):
    """A compositor whose updates are differences."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._screen = screen

    def _current_shadow(self) -> Shadow:
        shadow = _shadow(self._screen.app)
        if shadow.size != self.size:
            shadow.reset(self.size)
        return shadow

    def render_update(
        self,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> Any:
        """Give an update, a full one if the terminal's content is not known."""
        full = full or self._current_shadow().stale
        return super().render_update(full, screen_stack, simplify)

    def render_full_update(self, simplify: bool = False) -> Any:
        """Give an update of the whole screen."""
        stock = super().render_full_update(simplify)
        if simplify:
            return stock
        lines = [
            (y, [segment for strip in strips for segment in strip._segments])
            for y, strips in enumerate(stock.strips)
        ]
        return DiffUpdate(stock, self._current_shadow(), lines)

    def render_partial_update(self) -> Any:
        """Give an update of what is dirty."""
        stock = super().render_partial_update()
        if stock is None:
            return None
        shadow = self._current_shadow()
        lines: dict[int, _Line] = {}
        for y, x1, x2 in stock.spans:
            if y < len(shadow.lines):
                shown = lines.get(y) or shadow.lines[y] or []
                lines[y] = _spliced(shown, x1, x2, stock.chops[y].items(), stock.chop_ends[y])
        return DiffUpdate(stock, shadow, list(lines.items()))


def _spliced(
    shown: _Line, x1: int, x2: int, chops: Iterable[tuple[int, Strip | None]], ends: Sequence[int]
) -> _Line:
    """`shown` with the pieces that reach into its cells x1 to x2 taken from a fresh rendering.

    Those pieces are taken whole, because a wide character may stand across x1 or x2. No other can
    be relied on: what lies in front there may not have been rendered.
    """
    pieces: list[Segment] = []
    first, last = x2, x1
    for (x, strip), end in zip(chops, ends, strict=True):
        if strip is not None and x < x2 and end > x1:
            pieces += strip._segments
            first, last = min(first, x), max(last, end)
    left = Strip(shown).crop(0, first)._segments if first else []
    right = Strip(shown).crop(last)._segments if last < ends[-1] else []
    return [*left, *pieces, *right]


class DiffScreen(Screen[ScreenResultType]):
    """A screen that writes differences and puts frames off while the terminal is busy."""

    diff: ClassVar[bool] = os.environ.get("PROBEDECK_DIFF", "1") != "0"
    """Whether it does; False is stock Textual."""

    def __init__(
        self,
        name: str | None = None,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(name, id, classes)
        self._was_sized = False
        if self.diff:
            self._compositor = DiffCompositor(self)

    def refresh_terminal(self) -> None:
        """Draw everything again, whatever the terminal shows."""
        _shadow(self.app).reset()
        self.refresh()

    def on_mount(self) -> None:
        """Know when the terminal was another program's for a while."""
        self.app.app_resume_signal.subscribe(self, self._resumed, immediate=True)

    def _resumed(self, app: App[Any]) -> None:
        self.refresh_terminal()

    def on_screen_suspend(self) -> None:
        """Forget what the terminal shows if a screen of another kind draws from now on."""
        top = self.app.screen_stack[-1:]
        if not all(isinstance(screen._compositor, DiffCompositor) for screen in top):
            _shadow(self.app).reset()

    def on_resize(self) -> None:
        """Forget what the terminal shows when it took another size."""
        # Also when the size is the old one again, as it is after a quick change there and back. The
        # first event is not the terminal's: it is part of being shown.
        if self._was_sized:
            self.refresh_terminal()
        self._was_sized = True

    def _on_timer_update(self) -> None:
        # The timer is left running, so the frame is tried again one period later.
        if not (self.diff and self._terminal_busy()):
            super()._on_timer_update()

    def _terminal_busy(self) -> bool:
        writer = getattr(self.app._driver, "_writer_thread", None)
        return writer is not None and writer._queue.qsize() > 0


class DiffModalScreen(ModalScreen[ScreenResultType], DiffScreen[ScreenResultType]):
    """A modal DiffScreen."""
