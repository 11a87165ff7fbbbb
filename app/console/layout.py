"""Layouts: what the screens show and how, kept in a file and restored from it."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from app.config import layouts, theme_colors
from app.config.layouts import CONSOLE, USUAL, Layout
from app.console.protocol import Console
from app.console.screen import ConsoleScreen, screen_of


class Layouts:
    """Saves the layout of now, and restores a saved one."""

    def __init__(self, console: Console, name: str) -> None:
        """`name` is the layout to begin with; empty: as usual. Raises ProbedeckError."""
        self._console = console
        self._name = name
        """The layout that was loaded or saved last."""
        self._waiting: Layout = layouts.load(name) if name else {}
        """The part of screens that have not been in front since it was loaded."""

    def do_layout_save(self, name: str = "") -> None:
        self._name = name or self._name or USUAL
        layouts.save(self._name, self._now())
        self._console.app.notify(f"layout {self._name} is kept", timeout=2.0, markup=False)

    def do_layout_load(self, name: str = "") -> None:
        self._name = name or self._name or USUAL
        self._waiting = layouts.load(self._name)
        self.begin()

    def begin(self) -> None:
        """Turn to the screen and the theme of the layout, if there is one."""
        if not self._waiting:
            return
        console, app = self._waiting.get(CONSOLE, {}), self._console.app
        self._console.event_marks.restore(console)
        self._console.pins.restore(console)
        if (theme := console.get("theme")) in theme_colors.names():
            self._console.terminal.do_app_theme(theme)
        mode = console.get("screen", "")
        if mode in app.MODES and mode != app.current_mode:
            app.switch_mode(mode)
        else:
            self.restore(app.screen)
            self._console.refresh_view()

    def restore(self, screen: Screen[Any]) -> None:
        """Restore a screen, once after a layout was loaded."""
        # A screen that is not mounted yet has no tables; it is resumed when it is.
        if isinstance(screen, ConsoleScreen) and screen.is_mounted and screen.MODE in self._waiting:
            screen.restore(self._waiting[screen.MODE])
            self._waiting = {mode: of for mode, of in self._waiting.items() if mode != screen.MODE}

    def keep(self, layout: Layout) -> None:
        """Restore these screens when they come to the front."""
        self._waiting = {**self._waiting, **layout}

    def _now(self) -> Layout:
        app = self._console.app
        shown = {mode: screen_of(app, mode) for mode in app.MODES}
        kept = {mode: screen.keep() for mode, screen in shown.items() if screen is not None}
        marks = {**self._console.event_marks.keep(), **self._console.pins.keep()}
        console = {"screen": app.current_mode, **marks}
        if self._console.terminal.theme_chosen:
            console["theme"] = self._console.terminal.theme
        return {**kept, **self._waiting, CONSOLE: console}
