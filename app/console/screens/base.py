"""What every full screen has: the status strip above, the footer below, and the state between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from app.console.commands import is_view
from app.console.path_model import Choice
from app.console.tour import Tour, TourPanel
from bpf.errors import DeckError
from widgets.keybar import KeyBar
from widgets.screen import DiffScreen
from widgets.status import StatusItem, StatusStrip

if TYPE_CHECKING:
    from app.console.app import ConsoleApp

_T = TypeVar("_T")


def counted(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Told(Message):
    """A thread is done; what follows belongs into the event loop."""

    def __init__(self, follow: Callable[[], None]) -> None:
        super().__init__()
        self.follow = follow


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
        yield KeyBar(is_view)

    def compose_body(self) -> list[Widget]:
        """The widgets between strip and footer."""
        return []

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def show(self) -> None:
        """Show the app's frame, and tell the app's `show_notes` about it."""

    def show_tour(self, tour: Tour) -> None:
        """Show where an operator is on the tour."""
        panels = self.query(TourPanel)
        if panels:
            panels.first().show(tour)
        elif tour.step is not None:
            self.mount(TourPanel(tour), before=self.query_one(KeyBar))

    def show_status(self, items: list[StatusItem]) -> None:
        self.query_one(StatusStrip).show(items)

    def in_thread(
        self, ask: Callable[[], _T], done: Callable[[_T], None], failed: Callable[[DeckError], None]
    ) -> None:
        """Have something asked in a thread; `done` or `failed` is called in the event loop."""

        def work() -> None:
            try:
                follow = partial(done, ask())
            except Exception as error:
                if not isinstance(error, DeckError):
                    # A fault of ours must be seen, and must not keep the operator from going on.
                    error = DeckError(f"this failed: {type(error).__name__}: {error}")
                follow = partial(failed, error)
            self.post_message(Told(follow))

        self.run_worker(work, thread=True, exit_on_error=False)

    def trace(self, *choices: Choice) -> None:
        """Trace paths from now on, and turn to the first."""

        def ask() -> None:
            for choice in choices:
                self.deck.plane.trace(choice.destination, choice.flow)

        self.in_thread(ask, lambda _: self.deck.open_path(choices[0]), self.deck.complain)

    @on(Told)
    def _follow_up(self, event: Told) -> None:
        event.follow()

    def on_screen_resume(self) -> None:
        self.deck.refresh_view()
