"""Screens that send the terminal only the cells that changed, and never wait for it.

Stock Textual repaints every span that a widget marked as dirty. Here a shadow of what the terminal
shows is kept for each app, and an update is compared with it: a table whose numbers change costs a
few hundred bytes a second instead of tens of thousands.

Stock Textual also blocks its event loop when the terminal takes nothing in: the queue to the thread
that writes is bounded. Here a frame is put off while the last one is still on its way; dirty
regions add up meanwhile, so nothing is lost. A frame of more than the link carries within a moment
goes out in parts, and what the operator does in between goes before the rest.

This package depends on private parts of Textual 8.2.8. PROBEDECK_DIFF=0 in the
environment brings the stock behaviour back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from textual import events
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate, LayoutUpdate
from textual.app import App, ReturnType
from textual.await_complete import AwaitComplete
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.geometry import Size
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip

from widgets.glyphs import ascii_of
from widgets.terminal.diff_writer import CellLine, DiffWriter
from widgets.terminal.driver import TerminalDriver
from widgets.terminal.link import LinkEstimator
from widgets.terminal.terminal_state import TerminalState, text_of


@dataclass(frozen=True, slots=True)
class TerminalCaps:
    """What a terminal can draw."""

    glyphs: Literal["braille", "block", "ascii"] = "braille"
    """The finest characters it has."""
    colors: bool = True
    """Whether any are wanted; how many there are Textual knows."""
    erases: bool = False
    """Whether it erases in the colour of the ground."""


def caps_of(app: App[Any]) -> TerminalCaps:
    """What an app's terminal can draw."""
    return app.look if isinstance(app, DiffApp) else TerminalCaps()


class DiffUpdate(CompositorUpdate):
    """An update that writes what differs from the shadow, and then is the shadow."""

    def __init__(
        self, lines: Mapping[int, CellLine], stock: LayoutUpdate | ChopsUpdate | None = None
    ) -> None:
        self.lines = lines
        self._stock = stock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._stock is not None:
            yield from self._stock.__rich_console__(console, options)


class DiffApp(App[ReturnType]):
    """An app that writes differences, each in one piece, and no more than its link carries."""

    least: ClassVar = Size(40, 8)
    """What it takes to show anything; in less there is but a message."""
    look = TerminalCaps()
    """To be set before the first screen."""

    def __init__(self, **options: Any) -> None:
        """`options` are App's."""
        super().__init__(**options)
        self.link = LinkEstimator()
        self.shadow = TerminalState()
        """One, because all screens are drawn on the same terminal."""

    def get_default_screen(self) -> Screen[Any]:
        return DiffScreen(id="_default")

    def get_driver_class(self) -> type[Driver]:
        return TerminalDriver

    def on_terminal_lost(self) -> None:
        """Leave as after a hang-up: the terminal is gone."""
        self.exit(return_code=128 + signal.SIGHUP)

    @property
    def ending(self) -> bool:
        """Whether its end was asked for: then no widgets are made any more."""
        return self._exit

    async def on_event(self, event: events.Event) -> None:
        """Do what it asks for; nothing that was typed after the end was asked for."""
        if not (self.ending and isinstance(event, events.InputEvent)):
            await super().on_event(event)

    def _handle_exception(self, error: Exception) -> None:
        # Whoever is still at work does not find the widgets that were not made.
        if not (self.ending and isinstance(error, NoMatches)):
            super()._handle_exception(error)

    @property
    def busy(self) -> bool:
        """Whether the terminal still has to take in what was written."""
        return self.room == 0

    @property
    def behind(self) -> bool:
        """Whether the last update is still to be seen."""
        return self.busy or self.link.updating or bool(self.shadow.owed)

    @property
    def room(self) -> int:
        """Bytes that may be written now."""
        writer = getattr(self._driver, "_writer_thread", None)
        if writer is not None and writer._queue.qsize() > 0:
            return 0
        return self.link.room(time.monotonic())

    @property
    def fits(self) -> bool:
        """Whether the terminal is large enough."""
        return self.size.width >= self.least.width and self.size.height >= self.least.height

    def begin_update(self) -> None:
        """Measure how long it takes until what is drawn next can be seen."""
        self.link.expect_update()

    def draw_owed(self) -> None:
        """Write more of what there was no room for."""
        if self.shadow.owed:
            self._display(self.screen, DiffUpdate({}))

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        driver = self._driver
        if not isinstance(renderable, DiffUpdate) or driver is None or self.is_headless:
            super()._display(screen, renderable)
            return
        if self._running and not self._closed and not self._batch_count:
            text = self._differences(renderable.lines)
            if text:
                # In a frame of many parts nothing is seen the sooner for coming at once.
                sync = self._sync_available and not self.link.slow
                text = f"{SYNC_START}{text}{SYNC_END}" if sync else text
                if isinstance(driver, TerminalDriver):
                    driver.write_piece(text, more=bool(self.shadow.owed))
                else:
                    driver.write(text)
            if self.shadow.owed:
                # The next period is to go on.
                screen._update_timer.resume()
        self.post_display_hook()

    def _differences(self, lines: Mapping[int, CellLine]) -> str:
        shadow = self.shadow
        colors = self.console._color_system or ColorSystem.TRUECOLOR
        pen = DiffWriter(
            colors if self.look.colors else None,
            shadow.size.width, shadow.at, erases=self.look.erases,
        )  # fmt: skip
        # Where the operator types or points is what is waited for.
        at = getattr(self.screen.focused, "cursor_screen_offset", None)
        shadow.draw(pen, lines, self.room, near=at.y if at is not None else 0)
        x, y = self.screen.outer_size.clamp_offset(self.cursor_position)
        if (x or y) and not shadow.owed:
            # The cursor is not seen, but an input method stands there.
            pen.go(y, x)
        shadow.at = pen.at
        return pen.finished()


class DiffCompositor(Compositor):
    """A compositor whose updates are differences."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._screen = screen

    @property
    def _app(self) -> DiffApp[Any]:
        return cast("DiffApp[Any]", self._screen.app)

    def _current_shadow(self) -> TerminalState:
        shadow, app = self._app.shadow, self._app
        size = self.size if app.fits else app.size
        if shadow.size != size:
            shadow.reset(size)
        return shadow

    def render_update(
        self,
        full: bool = False,
        screen_stack: list[Screen[Any]] | None = None,
        simplify: bool = False,
    ) -> Any:
        """Give an update, a full one if the terminal's content is not known."""
        shadow = self._current_shadow()
        stock = super().render_update(full or shadow.stale, screen_stack, simplify)
        if stock is not None and not self._app.fits and not simplify:
            return DiffUpdate(_refusal(shadow.size, self._app.least))
        return stock

    def render_full_update(self, simplify: bool = False) -> Any:
        """Give an update of the whole screen."""
        stock = super().render_full_update(simplify)
        if simplify:
            return stock
        lines = {
            y: self._drawn([segment for strip in strips for segment in strip._segments])
            for y, strips in enumerate(stock.strips)
        }
        return DiffUpdate(lines, stock)

    def render_partial_update(self) -> Any:
        """Give an update of what is dirty."""
        stock = super().render_partial_update()
        if stock is None:
            return None
        shadow = self._current_shadow()
        lines: dict[int, CellLine] = {}
        for y, x1, x2 in stock.spans:
            if y < len(shadow.lines):
                shown = lines.get(y) or shadow.wanted(y)
                pieces = stock.chops[y].items()
                lines[y] = self._drawn(_spliced(shown, x1, x2, pieces, stock.chop_ends[y]))
        return DiffUpdate(lines, stock)

    def _drawn(self, line: CellLine) -> CellLine:
        """A line in the terminal's characters."""
        if self._app.look.glyphs != "ascii" or text_of(line).isascii():
            return line
        return [Segment(ascii_of(text), style) for text, style, _ in line]


def _refusal(size: Size, least: Size) -> dict[int, CellLine]:
    """The lines of a terminal in which nothing can be shown."""
    text = f"{size.width}x{size.height}: needs {least.width}x{least.height}"
    middle = (size.height - 1) // 2
    return {
        y: [Segment((text if y == middle else "").center(size.width)[: size.width])]
        for y in range(size.height)
    }


def _spliced(
    shown: CellLine,
    x1: int,
    x2: int,
    chops: Iterable[tuple[int, Strip | None]],
    ends: Sequence[int],
) -> CellLine:
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

    BLANK = True  # what is seen of it is its ground
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
        self._diff_app.shadow.reset()
        self.refresh()

    async def made(self) -> None:
        """Wait until its widgets are there."""
        await self._mounted_event.wait()

    async def on_event(self, event: events.Event) -> None:
        """Hear of what happened."""
        if isinstance(event, events.Resize):
            # A layout of a size leads to an event of that size: when this comes late, and another
            # size is on its way, the two would take turns for ever.
            event = events.Resize(self.app.size, self.app.size)
        await super().on_event(event)

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        if size:
            # Where nothing fits there is but a message, and no widget need know of such sizes.
            least = self._diff_app.least
            size = Size(max(size.width, least.width), max(size.height, least.height))
        super()._refresh_layout(size, scroll)

    @property
    def _diff_app(self) -> DiffApp[Any]:
        return cast("DiffApp[Any]", self.app)

    def on_mount(self) -> None:
        """Know when the terminal was another program's for a while."""
        self.app.app_resume_signal.subscribe(self, self._resumed, immediate=True)

    def _resumed(self, app: App[Any]) -> None:
        self.refresh_terminal()

    def on_screen_suspend(self) -> None:
        """Forget what the terminal shows if a screen of another kind draws from now on."""
        top = self.app.screen_stack[-1:]
        if not all(isinstance(screen._compositor, DiffCompositor) for screen in top):
            self._diff_app.shadow.reset()

    def on_resize(self) -> None:
        """Forget what the terminal shows when it took another size."""
        # Also when the size is the old one again, as it is after a quick change there and back. The
        # first event is not the terminal's: it is part of being shown.
        if self._was_sized:
            self.refresh_terminal()
        self._was_sized = True

    def _on_timer_update(self) -> None:
        if not self.diff:
            super()._on_timer_update()
        elif not self._diff_app.busy:  # else it is tried again one period later
            super()._on_timer_update()
            if self.is_current:
                self._diff_app.draw_owed()


class DiffModalScreen(ModalScreen[ScreenResultType], DiffScreen[ScreenResultType]):
    """A modal DiffScreen."""

    BLANK = False

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close, where it is in front: keys that were typed ahead may ask for that twice."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
