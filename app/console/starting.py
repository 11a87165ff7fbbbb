"""What is shown while the rest of the console is loaded: the frame that every screen has."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from app.console.commands.bindings import is_view
from widgets.status import StatusItem, StatusStrip
from widgets.terminal.compositor import DiffScreen
from widgets.terminal.keybar import KeyBar
from widgets.tones import Tone


class StartingScreen(DiffScreen[None]):
    """The status strip, nothing, and the keys."""

    CSS = "StartingScreen > Static { height: 1fr; background: $surface; }"

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def compose(self) -> ComposeResult:
        starting = StatusItem("STARTING", Tone.MUTED, badge=True)
        yield StatusStrip([starting, StatusItem(self._where, priority=1)], id="status")
        yield Static()
        yield KeyBar(is_view)
