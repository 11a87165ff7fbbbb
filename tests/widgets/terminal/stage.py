"""An application on a terminal that a test watches, and steps that change its screen."""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.command import CommandPalette
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Input, Static

from tests.support.console.emulator import Emulator, Paint
from tests.widgets.demo import COLUMNS, TABLE_KEYS, Flows
from widgets.status import StatusItem, StatusStrip
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffApp, DiffModalScreen, DiffScreen, TerminalCaps
from widgets.terminal.terminal_state import ascii_of
from widgets.tones import Tone

WORDS = ("plain", "größe", "漢字テスト", "é combining e\u0301", "→ braille ⣿⡇", "mixed 字 x")
KINDS = (
    *("table", "table", "strip", "log", "key", "type", "scroll"),
    *("modal", "pop", "toast", "resize", "theme", "palette", "focus", "toasts gone"),
)
SIZES = ((80, 24), (120, 40), (61, 17))


class CaptureDriver(HeadlessDriver):
    """Keeps what is written."""

    written: str = ""

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.written += data


class Dialog(DiffModalScreen[None]):
    CSS = """
    Dialog { align: center middle; }
    Dialog > Static { width: 30; height: 7; border: round $primary; background: $panel; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(self._text, markup=False)


class Stage(DiffApp[None]):
    """Panes side by side: a change in one does not render the other."""

    CSS = """
    #left { width: 1fr; border: round $primary; }
    #right { width: 34; }
    #right Static { width: 50; }
    Input { width: 1fr; }
    """
    BINDINGS: ClassVar = TABLE_KEYS

    def __init__(self, *, diff: bool = True, look: TerminalCaps | None = None) -> None:
        super().__init__(driver_class=CaptureDriver)
        self._diff = diff
        self.look = look or TerminalCaps()
        self.table = VirtualTable(COLUMNS)
        self.log_lines = Static("", markup=False)
        self.strip = StatusStrip()
        self.input = Input()

    def get_default_screen(self) -> Screen[None]:
        return DiffScreen(id="_default") if self._diff else Screen(id="_default")

    def compose(self) -> ComposeResult:
        yield self.strip
        with Horizontal():
            with Vertical(id="left"):
                yield self.table
            with VerticalScroll(id="right"):
                yield self.log_lines
        yield self.input


class Watch:
    """Replays what an app writes."""

    def __init__(self, pilot: Pilot[None], size: tuple[int, int]) -> None:
        self.pilot = pilot
        self.emulator = Emulator(*size)
        self.bytes = 0

    def replay(self) -> int:
        """Draw what was written since; its length."""
        driver = self.pilot.app._driver
        assert isinstance(driver, CaptureDriver)
        written, driver.written = driver.written, ""
        self.bytes += len(written)
        self.emulator.feed(written)
        return len(written)

    def expected(self) -> list[list[tuple[str, Paint]]]:
        lines = []
        app = self.pilot.app
        assert isinstance(app, DiffApp)
        for strip in self.pilot.app.screen._compositor.render_strips():
            line = Emulator(self.emulator.columns, 1)
            if app.look.glyphs == "ascii":
                strip = Strip([Segment(ascii_of(text), style) for text, style, _ in strip])
            line.feed("\x1b[1;1H" + strip.render(self.pilot.app.console))
            lines.append(line.seen[0])
        return lines

    async def matches(self) -> bool:
        quiet = 0
        for _ in range(60):
            await self.pilot.pause()
            quiet = 0 if self.replay() else quiet + 1
            # While a layout is due, reading the picture would make Textual miss the layout.
            if quiet >= 2 and self.emulator.seen == self.expected():
                return True
        return False

    def difference(self) -> str:
        pairs = zip(self.emulator.seen, self.expected(), strict=True)
        wrong = (
            f"line {y}, column {x}: {got}, expected {want}"
            for y, line in enumerate(pairs)
            for x, (got, want) in enumerate(zip(*line, strict=True))
            if got != want
        )
        return "\n".join(itertools.islice(wrong, 20))


async def step(watch: Watch, app: Stage, dice: random.Random) -> str:
    """Do one thing at random; its name."""
    kind = dice.choice(KINDS)
    pilot = watch.pilot
    match kind:
        case "table":
            app.table.show(Flows(dice.randrange(100), dice.choice([0, 3, 300, 3000])))
        case "strip":
            app.strip.show([StatusItem(dice.choice(WORDS), dice.choice(list(Tone)))] * 2)
        case "log":
            lines = (dice.choice(WORDS) * dice.randrange(1, 4) for _ in range(dice.randrange(60)))
            app.log_lines.update("\n".join(lines))
        case "key":
            await pilot.press(dice.choice(["down", "up", "pagedown", "end", "home"]))
        case "type":
            app.screen.set_focus(None if len(app.screen_stack) > 1 else app.input)
            await pilot.press(*dice.choice(["ab", "x", "qq"]))
        case "scroll":
            app.table.scroll_to(y=dice.randrange(200), animate=False)
            app.query_one("#right").scroll_to(y=dice.randrange(20), animate=False)
        case "modal" if len(app.screen_stack) < 3:
            await app.push_screen(Dialog(dice.choice(WORDS)))
        case "pop" if len(app.screen_stack) > 1:
            await app.pop_screen()
        case "toast":
            app.notify(dice.choice(WORDS), timeout=60, markup=False)
        case "toasts gone":
            app.clear_notifications()
        case "resize":
            size = dice.choice([size for size in SIZES if size != tuple(app.size)])
            watch.replay()
            watch.emulator.resize(*size)
            await pilot.resize_terminal(*size)
        case "theme":
            app.theme = dice.choice(["textual-dark", "textual-light", "nord"])
        case "palette" if len(app.screen_stack) == 1:
            await app.push_screen(CommandPalette())
        case "focus":
            await pilot.press("tab")
    return kind
