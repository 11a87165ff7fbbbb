"""The console on its terminal: theme, glyphs and colours, and when the screen is updated."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from textual.theme import Theme

from app.config.model import Ui
from app.config.theme_colors import BUILT_IN, ThemeColors, load
from app.console.terminal.capabilities import erases_in_color, has_shell
from bpf.errors import UsageError
from bpf.quantities import age
from widgets.status import StatusItem
from widgets.terminal.compositor import DiffApp, DiffScreen, TerminalCaps
from widgets.terminal.link import FIRST, LinkEstimator
from widgets.tones import Tone

CSS = """
.-low-bandwidth VirtualTable > .table--cursor { background: $surface; }
.-low-bandwidth VirtualTable:focus > .table--cursor { background: $surface; }
.-low-bandwidth ModalScreen { background: transparent; }
.-low-bandwidth .tone--muted, .-low-bandwidth .tone--accent,
.-low-bandwidth .tone--in-low, .-low-bandwidth .tone--in, .-low-bandwidth .tone--in-high,
.-low-bandwidth .tone--out-low, .-low-bandwidth .tone--out, .-low-bandwidth .tone--out-high,
.-low-bandwidth .tone--in-bar, .-low-bandwidth .tone--out-bar {
    color: $foreground; background: $surface; text-style: none;
}
.-plain .tone--warn { text-style: bold; }
.-plain .tone--active { background: $surface; text-style: underline; }
.-plain .tone--in-bar, .-plain .tone--out-bar { background: $surface; text-style: underline; }
Toast { width: auto; max-width: 100%; padding: 0 1; margin-top: 0; }
"""
"""On a slow link neither a whole row nor a whole screen changes its ground, and only warnings and
results have tones. Without colours a ground is drawn in reverse, and a high bar on it would be an
empty cell. Messages in the corner are as wide as their text."""
SHORTEST_INTERVAL = 0.24
"""Least seconds between two updates of the screen: less than the shortest window, a quarter."""
_BUSY = 0.05
"""Seconds until the terminal is asked again whether it has drawn the last update."""
_LATE, _LATE_FOR = 0.3, 10.0
"""Seconds that an update begins late on a busy machine, and seconds that this is shown."""
_SELDOM = 2.0
"""Seconds between two updates with `low_bandwidth`."""
_FIRST_OF_LITTLE = 512
"""Bytes that may be on their way with `low_bandwidth` before the link is measured."""
_SHOWN_FROM = 1.5
"""Seconds between two updates from which on the status strip shows them: windows are missed."""


class ConsoleTerminal:
    """Theme, glyphs and update rate of an app, by the settings and the terminal.

    It refreshes the screen soon after each change, but not too often.
    """

    def __init__(self, app: DiffApp[int], ui: Ui, refresh: Callable[[], None]) -> None:
        """`auto` in `ui` means the best glyphs there are, and the theme for the terminal.

        `refresh` brings the screen up to date. Raises ProbedeckError for a theme that does not
        exist, or has mistakes.
        """
        self._app, self.ui, self._refresh = app, ui, refresh
        self._wanted = self._resting = False
        self._began = 0.0
        """When the last update began, `time.monotonic()`."""
        self._late_at = -math.inf
        """When an update last began much later than it was due."""
        app.look = TerminalCaps(
            glyphs="braille" if ui.glyphs == "auto" else ui.glyphs,
            colors=ui.colors != "none",
            erases=erases_in_color(),
        )
        app.animation_level = "none"
        app.link = LinkEstimator(_FIRST_OF_LITTLE if ui.low_bandwidth else FIRST)
        self._apply_link()
        app.set_class(not app.look.colors, "-plain")
        self.theme = ""
        """Name of the present theme, as users call it."""
        self._by_shade = {True: "dark", False: "light"}
        """The last themes for a dark and for a light ground."""
        self._set_theme("dark" if ui.theme == "auto" else ui.theme)
        self.theme_chosen = ui.theme != "auto"
        """Whether somebody chose the theme; otherwise it is the one for the terminal."""

    def follow_ground(self, *, dark: bool) -> None:
        """Set the theme for the terminal's ground, unless somebody chose one."""
        if not self.theme_chosen:
            self._set_theme("dark" if dark else "light")

    def do_app_theme(self, theme: str = "") -> None:
        self._set_theme(theme or self._by_shade[not self._app.current_theme.dark])
        self.theme_chosen = True

    def change(self, ui: Ui) -> None:
        """Use other glyphs and another bandwidth."""
        self.ui = ui
        glyphs = "braille" if ui.glyphs == "auto" else ui.glyphs
        if glyphs != self._app.look.glyphs:
            self._app.look = replace(self._app.look, glyphs=glyphs)
            self.do_app_redraw()
        self._apply_link()

    def do_app_suspend(self) -> None:
        if not self._app.can_suspend or not has_shell():
            raise UsageError("there is no shell to go back to")
        # To all processes of the job, as the terminal itself would send it.
        os.kill(0, signal.SIGTSTP)

    def do_app_redraw(self) -> None:
        screen = self._app.screen
        if isinstance(screen, DiffScreen) and not screen.is_modal:
            screen.refresh_terminal()

    @property
    def slow(self) -> bool:
        """Whether to send little: by the settings, or because the link is slow."""
        return self.ui.low_bandwidth or self._app.link.slow

    def _apply_link(self) -> None:
        self._app.look = replace(self._app.look, slow=self.slow)
        self._app.set_class(self.slow, "-low-bandwidth")

    @property
    def _interval(self) -> float:
        """Seconds between two updates of the screen."""
        return max(_SELDOM if self.ui.low_bandwidth else SHORTEST_INTERVAL, self._app.link.pause)

    def show_soon(self) -> None:
        """Update the screen together with other changes of the same moment; from any thread."""
        if not self._wanted:
            self._wanted = True
            self._app.call_later(self._catch_up)

    def show_within(self, seconds: float) -> None:
        """Update the screen after so many seconds at most; never if infinite. From any thread."""
        if not seconds:
            self.show_soon()
        elif math.isfinite(seconds):
            self._app.call_later(self._show_later, seconds)

    def _show_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.show_soon)

    def _rested(self, due: float) -> None:
        self._resting = False
        if (now := time.monotonic()) - due > _LATE:
            self._late_at = now
        self._catch_up()

    def _catch_up(self) -> None:
        if not self._wanted or self._resting:
            return
        now = time.monotonic()
        # An update must not begin while the last one is on its way.
        rest = _BUSY if self._app.behind else self._began + self._interval - now
        if rest > 0:
            self._resting = True
            # A callback is much cheaper than one of Textual's timers.
            asyncio.get_running_loop().call_later(
                rest, self._app.call_later, self._rested, now + rest
            )
            return
        self._wanted, self._began = False, now
        self._app.begin_update()
        self._apply_link()
        self._refresh()

    def status_items(self) -> list[StatusItem]:
        """Items of the status strip about a slow link or a busy machine."""
        if self._interval < _SHOWN_FROM:
            return []
        text = f"every {age(self._interval)}"
        # A terminal answers late, too, if the machine is too busy to run it.
        busy = time.monotonic() - self._late_at < _LATE_FOR
        label = "busy machine" if busy else "slow link"
        return [StatusItem(text, Tone.WARN, priority=2, label=label)]

    def _set_theme(self, name: str) -> None:
        found = theme_of(name, self.ui.colors)
        self._app.register_theme(found)
        if self._app.theme == found.name:
            self._app.refresh_css(animate=False)  # its file may have changed
        else:
            self._app.theme = found.name
        self.theme = self._by_shade[found.dark] = name


def theme(name: str, of: ThemeColors) -> Theme:
    """Return Textual's theme. A bar of the ground's colour underlines its text instead."""
    c = of.colors
    text, muted, accent, special = c["text"], c["muted"], c["accent"], c["special"]
    ground, panel, line, blurred = c["ground"], c["panel"], c["line"], c["blurred"]
    traffic = {each.replace("_", "-"): c[each] for each in c if each.startswith(("in", "out"))}
    return Theme(
        name=name, dark=of.dark,
        primary=accent, secondary=special, accent=accent, warning=c["warn"], error=c["bad"],
        success=c["good"], foreground=text, background=ground, surface=ground, panel=panel,
        boost=panel,
        variables={
            "text": text, "text-muted": muted, "text-disabled": muted,
            "text-primary": accent, "text-secondary": special, "text-accent": special,
            "text-success": c["good"], "text-warning": c["warn"], "text-error": c["bad"],
            "primary-muted": line, "warning-muted": c["active"], "foreground-muted": muted,
            "block-cursor-background": c["cursor"], "block-cursor-foreground": text,
            "block-cursor-text-style": "none", "block-cursor-blurred-background": blurred,
            "block-cursor-blurred-foreground": text, "block-hover-background": blurred,
            "border": accent, "border-blurred": line, "surface-active": ground,
            "scrollbar": line, "scrollbar-hover": muted, "scrollbar-active": accent,
            "scrollbar-background": ground, "scrollbar-background-hover": ground,
            "scrollbar-background-active": ground, "scrollbar-corner-color": ground,
            "footer-key-foreground": accent, "footer-foreground": text,
            "footer-background": panel, "footer-description-foreground": text,
            "input-cursor-background": ground, "input-cursor-foreground": text,
            "input-cursor-text-style": "reverse",  # also visible without colours
            "input-selection-background": c["cursor"], "input-selection-foreground": text,
            **traffic, "bar-style": "underline" if c["in_bar"] == ground else "none",
        },
    )  # fmt: skip


_DARK_16 = ThemeColors(True, {
    "text": "#ffffff", "muted": "#aaaaaa", "accent": "#55ffff", "good": "#55ff55",
    "warn": "#ffff55", "bad": "#ff5555", "special": "#ff55ff", "ground": "#000000",
    "panel": "#000000", "cursor": "#0000aa", "blurred": "#555555", "active": "#555555",
    "line": "#5555ff", "in_bar": "#000000", "out_bar": "#000000",
    **dict.fromkeys(("in_low", "in", "in_high"), "#00aaaa"),
    **dict.fromkeys(("out_low", "out", "out_high"), "#ff55ff"),
})  # fmt: skip
_LIGHT_16 = ThemeColors(False, {
    "text": "#000000", "muted": "#555555", "accent": "#0000aa", "good": "#00aa00",
    "warn": "#aa00aa", "bad": "#aa0000", "special": "#0000aa", "ground": "#ffffff",
    "panel": "#ffffff", "cursor": "#ffff55", "blurred": "#ffffff", "active": "#55ffff",
    "line": "#555555", "in_bar": "#ffffff", "out_bar": "#ffffff",
    **dict.fromkeys(("in_low", "in", "in_high"), "#5555ff"),
    **dict.fromkeys(("out_low", "out", "out_high"), "#aa5500"),
})  # fmt: skip

_USUAL = {**BUILT_IN, "dark-16": _DARK_16, "light-16": _LIGHT_16}
THEMES = {f"probedeck-{name}": theme(f"probedeck-{name}", of) for name, of in _USUAL.items()}


def theme_of(name: str, colors: str) -> Theme:
    """Return a theme (by name) for a number of colours, as settings call that.

    Raises ProbedeckError if it does not exist, or its file has mistakes.
    """
    found = load(name)
    # Without colours, the grounds of the dark theme select the text to be reversed.
    shade = "dark" if found.dark or colors == "none" else "light"
    if colors == "16":
        return THEMES[f"probedeck-{shade}-16"]
    if name in BUILT_IN or colors == "none":
        return THEMES[f"probedeck-{shade}"]
    return theme(f"probedeck-own-{name}", found)
