"""Layouts of the console: kept from what the screens show, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.screen import Screen

from app.config import layouts
from app.config.layouts import CONSOLE, USUAL, Layout
from app.console.tables.sorted_table import TableScreen
from app.console.terminal_app import TerminalApp
from app.console.time_travel import MomentApp


class LayoutApp(MomentApp, TerminalApp):
    """An app whose screens can be put back to what they showed at another time."""

    _layout_name = ""
    """The layout that was loaded or saved last."""
    _waiting: Layout = {}
    """Of screens that have not been in front since it was loaded."""

    def take_layout(self, name: str) -> None:
        """Begin with this layout; none: with how things usually are. Raises ProbedeckError."""
        self._layout_name = name
        self._waiting = layouts.load(name) if name else {}

    def do_layout_save(self, name: str = "") -> None:
        self._layout_name = name or self._layout_name or USUAL
        layouts.save(self._layout_name, self._now())
        self.notify(f"layout {self._layout_name} is kept", timeout=2.0, markup=False)

    def do_layout_load(self, name: str = "") -> None:
        self.take_layout(name or self._layout_name or USUAL)
        self.begin_layout()

    def begin_layout(self) -> None:
        """Turn to the screen and the theme that the layout has, if there is one."""
        if not self._waiting:
            return
        console = self._waiting.get(CONSOLE, {})
        if (theme := console.get("theme")) in ("dark", "light"):
            self.do_app_theme(theme)
        mode = console.get("screen", "")
        if mode in self.MODES and mode != self.current_mode:
            self.switch_mode(mode)
        else:
            self.restore_screen(self.screen)
            self.refresh_view()

    def restore_screen(self, screen: Screen[Any]) -> None:
        """Put a screen back to what it showed, once after a layout was loaded."""
        mode = next((mode for mode, of in self._screen_stacks.items() if screen in of), "")
        # One that is not mounted yet has no tables; it will be resumed when it is.
        if isinstance(screen, TableScreen) and screen.is_mounted and mode in self._waiting:
            screen.restore(self._waiting[mode])
            self._waiting = {name: of for name, of in self._waiting.items() if name != mode}

    def _now(self) -> Layout:
        shown = {mode: of[0] for mode, of in self._screen_stacks.items() if of}
        kept: dict[str, Mapping[str, str]] = {
            mode: screen.keep() for mode, screen in shown.items() if isinstance(screen, TableScreen)
        }
        console = {"screen": self.current_mode}
        if self.theme_asked_for:
            console["theme"] = "dark" if self.current_theme.dark else "light"
        return {**kept, **self._waiting, CONSOLE: console}
