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


def counted(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class DeckScreen(DiffScreen[None]):
    """A screen of the console; `show` is called when there is something new to be seen.

    It shows the app's `frame`, and nothing newer.
    """

    AUTO_FOCUS = "VirtualTable"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]

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

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def show(self) -> None:
        """Show the app's frame, and tell the app's `show_notes` about it."""

    def show_status(self, items: list[StatusItem]) -> None:
        self.query_one(StatusStrip).show(items)

    def on_screen_resume(self) -> None:
        self.deck.refresh_view()
