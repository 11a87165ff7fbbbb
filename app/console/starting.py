"""The first screen: the frame of all screens, while the console imports the rest."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from app.console.commands.bindings import is_view
from widgets.status import StatusItem, StatusStrip
from widgets.terminal.compositor import DiffScreen
from widgets.terminal.keybar import KeyBar
from widgets.tones import Tone


class StartingScreen(DiffScreen[None]):
    """A status strip, an empty ground, and the keys."""

    CSS = "StartingScreen > Static { height: 1fr; background: $surface; }"

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def compose(self) -> ComposeResult:
        starting = StatusItem("STARTING", Tone.MUTED, badge=True)
        yield StatusStrip([starting, StatusItem(self._where, priority=1)], id="status")
        yield Static()
        yield KeyBar(is_view)
