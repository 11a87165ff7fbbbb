"""Screens that send the terminal only the cells that changed, and never wait for it.

Stock Textual repaints every span that a widget marked as dirty. Here `TerminalState` knows the
terminal's content, and each update writes the difference: a table whose numbers change costs a few
hundred bytes a second instead of tens of thousands.

Stock Textual also blocks its event loop while the terminal accepts nothing: the queue to the
writing thread is bounded. Here a frame waits while the last one is under way; dirty regions add up
meanwhile. A frame too large for the link goes out in parts, and the answer to a key goes before the
rest.

This package depends on private parts of Textual 8.2.8. PROBEDECK_DIFF=0 brings the stock back.
"""

from __future__ import annotations

import os
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
from textual.binding import BindingsMap
from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.query import NoMatches
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation
from textual.driver import Driver
from textual.geometry import Size
from textual.notifications import Notification
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip

from widgets.terminal.diff_writer import CellLine, DiffWriter
from widgets.terminal.driver import TerminalDriver
from widgets.terminal.link import LinkEstimator
from widgets.terminal.terminal_state import TerminalState, ascii_of, text_of
from widgets.tones import TONE_CLASSES, TONE_RULES, TONE_VARIABLES


@dataclass(frozen=True, slots=True)
class TerminalCaps:
    """Abilities of a terminal."""

    glyphs: Literal["braille", "block", "ascii"] = "braille"
    """Its finest characters."""
    colors: bool = True
    """Whether to use colours; Textual knows how many there are."""
    erases: bool = False
    """Whether erasing keeps the background colour."""
    slow: bool = False
    """Whether to send few bytes: 256 colours at most, and no rules."""


def caps_of(app: App[Any]) -> TerminalCaps:
    """Return the abilities of an app's terminal."""
    return app.look if isinstance(app, DiffApp) else TerminalCaps()


class DiffUpdate(CompositorUpdate):
    """An update that writes the difference to the terminal's state, and becomes that state."""

    def __init__(
        self, lines: Mapping[int, CellLine], stock: LayoutUpdate | ChopsUpdate | None = None
    ) -> None:
        self.lines = lines
        self._stock = stock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._stock is not None:
            yield from self._stock.__rich_console__(console, options)


class DiffApp(App[ReturnType]):
    """An app that writes differences, each in one piece, at the pace of its link."""

    COMPONENT_CLASSES = {*TONE_CLASSES}
    DEFAULT_CSS = f"DiffApp {{ {TONE_RULES} }}"
    least: ClassVar = Size(40, 8)
    """Least size of a usable terminal; a smaller one shows a message."""
    look = TerminalCaps()
    """Set it before the first screen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stylesheet = KeptStylesheet(variables=self.get_css_variables())
        self.link = LinkEstimator()
        self.shadow = TerminalState()
        """One state: all screens share the terminal."""

    def get_default_screen(self) -> Screen[Any]:
        return DiffScreen(id="_default")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TONE_VARIABLES

    def get_driver_class(self) -> type[Driver]:
        return TerminalDriver

    def update_node_styles(self, animate: bool = True) -> None:
        # After a change of its classes Textual updates the screens alone; the tones are the app's.
        self.stylesheet.apply(self, animate=False)
        super().update_node_styles(animate)

    def on_terminal_lost(self) -> None:
        """Exit as after a hang-up: the terminal is gone."""
        self.exit(return_code=0)

    def set_bindings(self, bindings: BindingsMap) -> None:
        self._bindings = bindings

    def show_title(self, text: str) -> None:
        """Make a printable text the title of the terminal's window; nothing without a terminal."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.show_title(text)

    @property
    def can_suspend(self) -> bool:
        """Whether the app can be stopped and continued by a shell."""
        return self._driver is not None and self._driver.can_suspend

    def drop_notifications(self, newest: Notification) -> None:
        """Remove all notifications but the newest and errors, which stay their time."""
        for old in list(self._notifications):
            if old is not newest and old.severity != "error":
                self._unnotify(old)

    @property
    def ending(self) -> bool:
        """Whether the app is about to exit, and mounts no widgets any longer."""
        return self._exit

    async def on_event(self, event: events.Event) -> None:
        """Run an action; drop keys that were typed after the exit began."""
        if not (self.ending and isinstance(event, events.InputEvent)):
            await super().on_event(event)

    def _handle_exception(self, error: Exception) -> None:
        # Running workers may query widgets that were never mounted.
        if not (self.ending and isinstance(error, NoMatches)):
            super()._handle_exception(error)

    @property
    def busy(self) -> bool:
        """Whether written bytes wait for the terminal."""
        return self.room == 0

    @property
    def behind(self) -> bool:
        """Whether the last update is still under way."""
        return self.busy or self.link.updating or bool(self.shadow.owed)

    @property
    def room(self) -> int:
        """Return the bytes that may be written now."""
        writer = getattr(self._driver, "_writer_thread", None)
        if writer is not None and writer._queue.qsize() > 0:
            return 0
        return self.link.room(time.monotonic())

    @property
    def fits(self) -> bool:
        return self.size.width >= self.least.width and self.size.height >= self.least.height

    def begin_update(self) -> None:
        """Measure the time until the next drawing arrives."""
        self.link.expect_update()

    def draw_owed(self) -> None:
        """Write more of a frame that was too large."""
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
                # The parts of a large frame gain nothing by haste.
                sync = self._sync_available and not self.link.slow
                text = f"{SYNC_START}{text}{SYNC_END}" if sync else text
                if isinstance(driver, TerminalDriver):
                    driver.write_piece(text, more=bool(self.shadow.owed))
                else:
                    driver.write(text)
            if self.shadow.owed:
                # The next period continues.
                screen._update_timer.resume()
        self.post_display_hook()

    def _differences(self, lines: Mapping[int, CellLine]) -> str:
        shadow = self.shadow
        colors = self.console._color_system or ColorSystem.TRUECOLOR
        if self.look.slow:
            colors = min(colors, ColorSystem.EIGHT_BIT)
        pen = DiffWriter(
            colors if self.look.colors else None,
            shadow.size.width, shadow.at, erases=self.look.erases,
        )  # fmt: skip
        # The user waits for the place of the cursor or the pointer first.
        at = getattr(self.screen.focused, "cursor_screen_offset", None)
        shadow.draw(pen, lines, self.room, near=at.y if at is not None else 0)
        pen.by_style()
        x, y = self.screen.outer_size.clamp_offset(self.cursor_position)
        if (x or y) and not shadow.owed:
            # The cursor is hidden, but an input method uses its place.
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
        """Return an update; a full one if the terminal's content is unknown."""
        shadow = self._current_shadow()
        stock = super().render_update(full or shadow.stale, screen_stack, simplify)
        if stock is not None and not self._app.fits and not simplify:
            return DiffUpdate(_refusal(shadow.size, self._app.least))
        return stock

    def render_full_update(self, simplify: bool = False) -> Any:
        stock = super().render_full_update(simplify)
        if simplify:
            return stock
        lines = {
            y: self._drawn([segment for strip in strips for segment in strip._segments])
            for y, strips in enumerate(stock.strips)
        }
        return DiffUpdate(lines, stock)

    def render_partial_update(self) -> Any:
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
        look = self._app.look
        if not (look.slow or look.glyphs == "ascii") or text_of(line).isascii():
            return line
        if look.slow:
            line = [Segment(text.replace("─", " "), style) for text, style, _ in line]
        if look.glyphs == "ascii":
            line = [Segment(ascii_of(text), style) for text, style, _ in line]
        return line


def _refusal(size: Size, least: Size) -> dict[int, CellLine]:
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
    """Replace the pieces of `shown` in cells x1 to x2 by pieces of a fresh rendering.

    Whole pieces are replaced, because a wide character may cross x1 or x2. All others stay: the
    fresh rendering may lack what covers them.
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
    """A screen that writes differences and delays frames while the terminal is busy."""

    BLANK = True  # its visible part is its background
    diff: ClassVar[bool] = os.environ.get("PROBEDECK_DIFF", "1") != "0"
    """Whether the screen writes differences; False: stock Textual."""

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

    def set_bindings(self, bindings: BindingsMap) -> None:
        self._bindings = bindings

    @property
    def text_lines(self) -> list[str]:
        return [strip.text for strip in self._compositor.render_strips()]

    def refresh_terminal(self) -> None:
        """Draw everything again, whatever the terminal shows."""
        self._diff_app.shadow.reset()
        self.refresh()

    async def made(self) -> None:
        """Wait until the widgets are mounted."""
        await self._mounted_event.wait()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Resize):
            # A layout leads to an event of its size: a late one and a newer one would
            # alternate for ever.
            event = events.Resize(self.app.size, self.app.size)
        await super().on_event(event)

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        if size:
            # A terminal that is too small shows a message: widgets never see such sizes.
            least = self._diff_app.least
            size = Size(max(size.width, least.width), max(size.height, least.height))
        super()._refresh_layout(size, scroll)

    @property
    def _diff_app(self) -> DiffApp[Any]:
        return cast("DiffApp[Any]", self.app)

    def on_mount(self) -> None:
        """Notice that another program had the terminal."""
        resumed = self.app.app_resume_signal
        resumed.subscribe(self, lambda _: self.refresh_terminal(), immediate=True)

    def on_screen_suspend(self) -> None:
        """Forget the terminal's content if a screen of another kind draws now."""
        top = self.app.screen_stack[-1:]
        if not all(isinstance(screen._compositor, DiffCompositor) for screen in top):
            self._diff_app.shadow.reset()

    def on_resize(self) -> None:
        """Forget the terminal's content after a change of its size."""
        # Also if the size is the old one, after a quick change there and back. The first event is
        # not the terminal's: it belongs to showing the screen.
        if self._was_sized:
            self.refresh_terminal()
        self._was_sized = True

    def _on_timer_update(self) -> None:
        if not self.diff:
            super()._on_timer_update()
        elif not self._diff_app.busy:  # else the next period tries again
            super()._on_timer_update()
            if self.is_current:
                self._diff_app.draw_owed()


class DiffModalScreen(ModalScreen[ScreenResultType], DiffScreen[ScreenResultType]):
    """A modal DiffScreen."""

    BLANK = False

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close the screen if it is in front: keys typed ahead may close it twice."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


_parsed: LRUCache[tuple[object, ...], list[RuleSet]] = LRUCache(512)
"""Rules by everything that decides them. Textual changes no rule once it is parsed."""

# The same identity, without a call of Python: each style of a widget looks up some hundred rules.
RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]


class KeptStylesheet(Stylesheet):
    """A style sheet that parses the same text with the same variables only once a process."""

    def _parse_rules(
        self, css: str, read_from: CSSLocation, is_default_rules: bool = False,
        tie_breaker: int = 0, scope: str = "",
    ) -> list[RuleSet]:  # fmt: skip
        variables = tuple(self._variables.items())
        key = variables, css, read_from, is_default_rules, tie_breaker, scope
        if (rules := _parsed.get(key)) is None:
            rules = super()._parse_rules(css, read_from, is_default_rules, tie_breaker, scope)
            _parsed[key] = rules
        return rules

    def reparse(self) -> None:
        """Apply new variables. Textual does so in a sheet that keeps nothing."""
        self.parse()
