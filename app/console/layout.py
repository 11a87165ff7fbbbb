"""Layouts: what the screens show and how, kept in a file and restored from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from textual.screen import Screen

from app.config import layouts
from app.config.layouts import CONSOLE, USUAL, Layout
from app.console.protocol import Console
from app.console.tables.sorted_table import TableScreen


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
        if (theme := console.get("theme")) in ("dark", "light"):
            self._console.terminal.do_app_theme(theme)
        mode = console.get("screen", "")
        if mode in app.MODES and mode != app.current_mode:
            app.switch_mode(mode)
        else:
            self.restore(app.screen)
            self._console.refresh_view()

    def restore(self, screen: Screen[Any]) -> None:
        """Restore a screen, once after a layout was loaded."""
        mode = next((mode for mode, first in self._shown().items() if first is screen), "")
        # A screen that is not mounted yet has no tables; it is resumed when it is.
        if isinstance(screen, TableScreen) and screen.is_mounted and mode in self._waiting:
            screen.restore(self._waiting[mode])
            self._waiting = {name: of for name, of in self._waiting.items() if name != mode}

    def _shown(self) -> dict[str, Screen[Any]]:
        """The screen of each mode to which the user has turned."""
        shown = {}
        for mode in self._console.app.MODES:
            with suppress(KeyError, IndexError):
                shown[mode] = self._console.app.get_screen_stack(mode)[0]
        return shown

    def _now(self) -> Layout:
        app = self._console.app
        kept: dict[str, Mapping[str, str]] = {
            mode: screen.keep()
            for mode, screen in self._shown().items()
            if isinstance(screen, TableScreen)
        }
        console = {"screen": app.current_mode}
        if self._console.terminal.theme_chosen:
            console["theme"] = "dark" if app.current_theme.dark else "light"
        return {**kept, **self._waiting, CONSOLE: console}
