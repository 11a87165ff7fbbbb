"""What every full screen has: the status strip above, the footer below, and the state between."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer

from widgets.screen import DiffScreen
from widgets.status import StatusItem, StatusStrip

if TYPE_CHECKING:
    from app.console.app import ConsoleApp


class DeckScreen(DiffScreen[None]):
    """A screen of the console; `show` is called when there is something new to be seen."""

    AUTO_FOCUS = "VirtualTable"

    @property
    def deck(self) -> ConsoleApp:
        """The app, as what it is."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        yield StatusStrip(id="status")
        yield from self.compose_body()
        yield Footer(show_command_palette=False)

    def compose_body(self) -> list[Widget]:
        """The widgets between strip and footer."""
        return []

    def show(self) -> None:
        """Show the state as it is now."""

    def show_status(self, items: list[StatusItem]) -> None:
        self.query_one(StatusStrip).show(items)

    def on_screen_resume(self) -> None:
        self.deck.refresh_view()
