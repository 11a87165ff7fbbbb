"""What every full screen has: the status strip above, the footer below, and the state between."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from app.commands import Invocation
from app.commands.line import answer
from app.console.bindings import bindings, is_view
from app.console.prompt.prompt import Prompt, place_of
from app.console.tables.sorted_table import TableScreen
from app.console.tasks import Task, run_aside
from app.console.tour import Tour, TourPanel
from bpf.cancel import CancelError, cancelled_by
from bpf.errors import ProbedeckError
from widgets.status import StatusItem, StatusStrip
from widgets.terminal.keybar import KeyBar

if TYPE_CHECKING:
    from app.console.app import ConsoleApp
    from app.console.screens.paths.model import PathKey
    from app.console.tapes.state import Values
    from probes.filter import Domain, RowTable

_T = TypeVar("_T")


def counted(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class TaskDone(Message):
    """A thread is done; what follows belongs into the event loop."""

    def __init__(
        self, follow: Callable[[], None], task: Task | None = None, *, asked: bool
    ) -> None:
        """`asked` is whether somebody asked for it, and it is among the app's `pending`."""
        super().__init__()
        self.follow, self.task, self.asked = follow, task, asked


class ConsoleScreen(TableScreen):
    """A screen of the console; `show` is called when there is something new to be seen.

    It shows the app's `frame`, and nothing newer.
    """

    MODE: ClassVar[str]
    """What the app and the registry call it."""
    AUTO_FOCUS = "VirtualTable"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]

    _answering = 0
    """The number of the prompt's question whose answer is being acted on; 0: none."""
    _blamed = 0
    """That whose answer did not do, in a thread."""
    _waiting = False
    """Whether a thread is to tell whether an answer does."""

    @property
    def console(self) -> ConsoleApp:
        """The app, as what it is."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        self._bindings = bindings(self.console.keymap, self.MODE)
        yield StatusStrip(id="status")
        yield from self.compose_body()
        yield Prompt()
        yield KeyBar(is_view)

    def filtered(self) -> tuple[tuple[Domain, RowTable | None], ...]:
        """The kinds of rows that its filters are of, and rows whose values are offered."""
        return ()

    def compose_body(self) -> list[Widget]:
        """The widgets between strip and footer."""
        return []

    def states(self) -> Values:
        """What it knows of named state, by name."""
        return {}

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def do(self, asked: Invocation) -> None:
        """Do a command of this screen, or cancel what the strip says. Raises ProbedeckError."""
        if not (asked.command.leaves and self.console.cancel_task()):
            self.execute(asked)

    def execute(self, asked: Invocation) -> None:
        """Do a command of this screen. Raises ProbedeckError."""
        getattr(self, asked.command.method)(*asked.values)

    def execute_after(
        self, ask: Callable[[], _T], take: Callable[[_T], None], asked: Invocation
    ) -> None:
        """Do a command as soon as what it may be about is asked for, and taken."""

        def known(answer: _T) -> None:
            take(answer)
            try:
                ConsoleScreen.execute(self, asked)
            except ProbedeckError as error:
                self.console.complain(error)

        self.run_in_worker(ask, known, self.console.complain)

    def point_at(self, key: Hashable) -> None:
        """Put the cursor on what has this key in the screen's table, if it is there."""

    def show(self) -> None:
        """Show the app's frame, and tell the app's `show_notes` about it."""

    def show_tour(self, tour: Tour) -> None:
        """Show where an operator is on the tour."""
        panels = self.query(TourPanel)
        if panels:
            panels.first().show(tour)
        elif tour.step is not None:
            self.mount(TourPanel(tour), before=self.query_one(KeyBar))

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @on(Input.Submitted)
    async def _submitted(self, event: Input.Submitted) -> None:
        """Do the command that asked, with what was typed; or what the line says."""
        prompt = self.prompt
        self._answering = number = prompt.sent()
        self._waiting = False
        try:
            asked = answer(prompt.command, event.value)
            if event.value.strip():
                self.console.command_line.remember(asked.line)
            await self.console.run_command(asked)
        except ProbedeckError as error:
            self.console.complain(error)
        else:
            if not (self._waiting or prompt.mistaken):
                prompt.close(number)
        finally:
            self._answering = 0

    def place_of(self, error: ProbedeckError, text: str) -> int | None:
        """Which character of a prompt's text an error is about, from 0; None: not known."""
        return place_of(error, text)

    def takes_blame(self, error: ProbedeckError) -> bool:
        """Whether the prompt shows an error, because the answer to its question led to it."""
        number = self._answering or self._blamed
        return bool(number) and self.prompt.refuse(number, error, self.place_of)

    def show_status(self, items: list[StatusItem]) -> None:
        self.query_one(StatusStrip).show(items)

    def run_in_worker(
        self, ask: Callable[[], _T], done: Callable[[_T], None],
        failed: Callable[[ProbedeckError], None], *, asked: bool = True, task: Task | None = None,
    ) -> None:  # fmt: skip
        """Have something asked in a thread; `done` or `failed` is called in the event loop.

        `asked` is whether it is for a command: tapes wait until that is done. `task` says to an
        operator what it is, and can cancel it, which `failed` is told.
        """
        told = task or Task("", asked=False)
        number = self._answering if asked else 0
        self._waiting = self._waiting or bool(number)

        def answered(answer: _T) -> None:
            self.prompt.close(number)
            done(answer)

        def refused(error: ProbedeckError) -> None:
            self._blamed = number
            failed(error)
            self._blamed = 0

        def run() -> None:
            try:
                with cancelled_by(told.cancel):
                    follow = partial(answered, ask())
            except CancelError:
                follow = partial(refused, CancelError(f"{told.title} is cancelled"))
            except Exception as error:
                if not isinstance(error, ProbedeckError):
                    # A fault of ours must be seen, and must not keep the operator from going on.
                    error = ProbedeckError(f"this failed: {type(error).__name__}: {error}")
                follow = partial(refused, error)
            self.post_message(TaskDone(follow, told, asked=asked))

        self.console.pending += asked
        self.console.begin_task(told)
        self.run_worker(run_aside(run), exit_on_error=False)

    def trace(self, *choices: PathKey) -> None:
        """Trace paths from now on, and turn to the first."""

        def ask() -> None:
            for choice in choices:
                self.console.plane.trace(choice.destination, choice.flow)

        self.run_in_worker(
            ask, lambda _: self.console.open_path(choices[0]), self.console.complain,
            task=Task(f"tracing {choices[0].destination}"),
        )  # fmt: skip

    @on(TaskDone)
    def _follow_up(self, event: TaskDone) -> None:
        try:
            # While the console ends there is nothing any more that could be shown.
            if self.is_attached:
                event.follow()
        finally:
            self.console.pending -= event.asked
            if event.task is not None:
                self.console.end_task(event.task)

    def on_screen_resume(self) -> None:
        self.console.restore_screen(self)
        self.console.refresh_view()
