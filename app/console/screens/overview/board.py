"""The part of screen 1 below its first sentences."""

from __future__ import annotations

from typing import cast

from textual.containers import Container

from app.console.screen import ConsoleScreen


class Board(Container):
    """The blocks below the strips."""

    def on_resize(self) -> None:
        self.call_after_refresh(cast("ConsoleScreen", self.screen).show)
