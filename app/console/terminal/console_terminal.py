"""The console on its terminal: theme, glyphs and colours, and how often a slow link is drawn on."""

from __future__ import annotations

import os
import signal

from app.config.model import Ui
from app.console.terminal.capabilities import erases_in_color, has_shell
from app.console.terminal.themes import THEMES, name_of
from bpf.errors import UsageError
from widgets.status import StatusItem
from widgets.terminal.compositor import DiffApp, DiffScreen, TerminalCaps
from widgets.terminal.link import FIRST, LinkEstimator
from widgets.tones import Tone

CSS = """
.-low-bandwidth VirtualTable > .table--cursor { background: $surface; }
.-low-bandwidth VirtualTable:focus > .table--cursor { background: $surface; }
.-low-bandwidth ModalScreen { background: transparent; }
.-plain .tone--warn { text-style: bold; }
.-plain .tone--active { background: $surface; text-style: underline; }
Toast { width: auto; max-width: 100%; padding: 0 1; margin-top: 0; }
"""
"""On a slow link neither a whole row nor a whole screen changes its ground. Without colours a
ground is drawn in reverse, on which a high bar would be an empty cell. Messages in the corner are
no wider than their text."""
_SELDOM = 2.0
"""Seconds between two updates with `low_bandwidth`."""
_FIRST_OF_LITTLE = 512
"""Bytes that may be on their way with `low_bandwidth` before the link is measured."""
_SHOWN_FROM = 1.5
"""Seconds between two updates from which on the status strip shows them: windows are missed."""


class ConsoleTerminal:
    """Theme, glyphs and update rate of an app, by the settings and the terminal."""

    def __init__(self, app: DiffApp[int], ui: Ui) -> None:
        """`auto` in `ui` means the best glyphs there are, and the theme for the terminal."""
        self._app, self.ui = app, ui
        app.look = TerminalCaps(
            glyphs="braille" if ui.glyphs == "auto" else ui.glyphs,
            colors=ui.colors != "none",
            erases=erases_in_color(),
        )
        app.animation_level = "none"
        app.link = LinkEstimator(_FIRST_OF_LITTLE if ui.low_bandwidth else FIRST)
        app.set_class(ui.low_bandwidth, "-low-bandwidth")
        app.set_class(not app.look.colors, "-plain")
        for theme in THEMES.values():
            app.register_theme(theme)
        self._set_theme(dark=ui.theme != "light")
        self.theme_chosen = ui.theme != "auto"
        """Whether somebody chose the theme; otherwise it is the one for the terminal."""

    def follow_ground(self, *, dark: bool) -> None:
        """Set the theme for the terminal's ground, unless somebody chose one."""
        if not self.theme_chosen:
            self._set_theme(dark=dark)

    def do_app_theme(self, theme: str = "") -> None:
        wanted = theme or ("light" if self._app.current_theme.dark else "dark")
        self._set_theme(dark=wanted == "dark")
        self.theme_chosen = True

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

    def note_slowness(self) -> None:
        """Set the class of slow links, or remove it."""
        self._app.set_class(self.slow, "-low-bandwidth")

    def update_interval(self, usual: float) -> float:
        """Seconds between two updates of the screen; `usual` on a fast link."""
        least = _SELDOM if self.ui.low_bandwidth else usual
        return max(least, self._app.link.pause)

    def status_items(self, usual: float) -> list[StatusItem]:
        """Items of the status strip about a slow link; see `update_interval`."""
        every = self.update_interval(usual)
        if every < _SHOWN_FROM:
            return []
        return [StatusItem(f"every {every:.0f} s", Tone.WARN, priority=2, label="slow link")]

    def _set_theme(self, *, dark: bool) -> None:
        self._app.theme = name_of(dark=dark, colors=self.ui.colors)
