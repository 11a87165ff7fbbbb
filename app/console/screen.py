"""Bases of full screens: status strip above, prompt and footer below, tasks, commands, polls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from app.commands.line import Invocation, answer
from app.commands.model import Command
from app.commands.registry import REGISTRY
from app.console.commands.keys import bindings, is_step_in_time, weight
from app.console.prompt.prompt import Prompt, place_of
from app.console.protocol import Console, console_of, on_host
from app.console.tables.screen import TableScreen
from app.console.tasks import Task
from bpf.errors import ProbedeckError, UsageError
from widgets.status import StatusItem, StatusStrip
from widgets.table.table import VirtualTable
from widgets.terminal.keybar import KeyBar

if TYPE_CHECKING:
    from app.console.prompt.command_line import Filtered
    from app.console.screens.paths.hop import PathKey
    from app.tape.named_state import StateValue
    from probes.filter import Filter

_T = TypeVar("_T")
_PREVIEW_S = 0.1
"""Pause of the typing after which a filter is shown."""


def front_screen(app: App[Any]) -> ConsoleScreen:
    """Close the dialogs that are open, and return the full screen below."""
    while isinstance(app.screen, ModalScreen):
        app.pop_screen()
    screen = app.screen
    assert isinstance(screen, ConsoleScreen)
    return screen


def screen_of(app: App[Any], mode: str) -> ConsoleScreen | None:
    """Return the screen of a mode, if the user has turned to it and it is mounted."""
    with suppress(KeyError, IndexError):
        screen = app.get_screen_stack(mode)[0]
        return screen if isinstance(screen, ConsoleScreen) and screen.is_mounted else None
    return None


class ConsoleScreen(TableScreen):
    """A screen of the console. It shows the console's `frame`, and nothing newer."""

    MODE: ClassVar[str]
    """Its name in the registry; Textual's mode."""
    AUTO_FOCUS = "VirtualTable"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]

    parts: tuple[object, ...] = ()
    """Objects whose `do_` methods are commands of the screen, too."""
    name_under_cursor: Callable[[], str] = str
    """Returns the probe or policy of the row under the cursor. Raises UsageError."""
    filter_example = ""
    _filter: Filter | None = None
    notes: tuple[StatusItem, ...] = ()
    """The last items of the status strip: about the content of the screen."""
    _was_paused = False
    """Whether the footer offers steps in time."""
    _answering = 0
    """Number of the prompt's question whose answer is being acted on; 0: none."""
    _blamed = 0
    """Number of the prompt's question whose answer failed in a worker; 0: none."""
    _preview: Timer | None = None
    """Shows the filter that the user types, after a pause."""
    _waiting = False
    """Whether a worker is still to check the prompt's answer."""

    @property
    def console(self) -> Console:
        return console_of(self.app)

    def compose(self) -> ComposeResult:
        self.set_bindings(bindings(self.console.keymap, self.MODE))
        yield StatusStrip(id="status")
        yield from self.compose_body()
        yield Prompt()
        # The footer offers steps in time while paused.
        yield KeyBar(weight, lambda act: is_step_in_time(act) and not self.console.time.paused)

    def compose_body(self) -> list[Widget]:
        """Return the widgets between strip and prompt."""
        return []

    def filtered(self) -> Filtered:
        """Return the domains of the screen's filters, and tables whose values complete a term."""
        return ()

    def states(self) -> dict[str, StateValue]:
        """Return the named state that the screen knows."""
        return {}

    def offers(self, command: str) -> bool:
        """Whether a command has a meaning here and now."""
        return True

    def do(self, asked: Invocation) -> None:
        """Run a command of this screen. Raises ProbedeckError.

        A command that leaves cancels a task instead, if the status strip shows one.
        """
        if not (asked.command.leaves and self.console.tasks.cancel()):
            self.execute(asked)

    def execute(self, asked: Invocation) -> None:
        """Run a command of this screen. Raises ProbedeckError."""
        method = asked.command.method
        owner = next((each for each in (self, *self.parts) if hasattr(each, method)), None)
        if owner is None:
            # Screens share the commands `sort`, `reverse`, `filter` and `leave`.
            owner, method = self, f"do_{asked.command.name.partition('.')[2]}"
        getattr(owner, method)(*asked.values)

    def do_leave(self) -> None:
        """Close the detail, else clear the filter, else end the comparison or the pause.

        The cursor lets go of its row.
        """
        if not (self.close_detail() or self.clear_filter()):
            self.console.time.leave()
        for table in self.tables:
            if not table.holds():
                table.action_move(0, pinned=False)

    def close_detail(self) -> bool:
        """Close the detail; False if none is open."""
        return False

    @property
    def filter(self) -> Filter | None:
        """The filter of the rows; None for a screen without one."""
        return self._filter

    def set_filter(self, text: str) -> None:
        """Filter the rows; `show` follows. Raises UsageError."""

    def do_filter(self, text: str | None = None) -> None:
        if text is None:
            name, before = f"{self.MODE.removesuffix('s')}.filter", self.filter
            self.prompt.ask(name, "Show only", self.filter_example, before.text if before else "")
        else:
            self.set_filter(text)
            self.show()

    def clear_filter(self) -> bool:
        """Clear the filter; False if it is empty."""
        if was_set := self.filter is not None and bool(self.filter.text):
            self.do_filter("")
        return was_set

    def keep(self) -> dict[str, str]:
        return super().keep() | ({} if self.filter is None else {"filter": self.filter.text})

    def restore(self, kept: Mapping[str, str]) -> None:
        with suppress(UsageError):
            self.set_filter(kept.get("filter", ""))
        super().restore(kept)

    def point_at(self, key: Hashable) -> None:
        """Put the cursor on the row of a key in the screen's first table."""
        table = self.query_one(VirtualTable)
        table.want(key)
        self.set_focus(table)

    def show(self) -> None:
        """Show the console's frame."""

    def show_notes(self, *notes: StatusItem) -> None:
        """Show items about the content of the screen at the end of the status strip."""
        self.notes = notes
        self.console.show_status()
        if self._was_paused != self.console.time.paused:
            self._was_paused = self.console.time.paused
            self.refresh_bindings()

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @on(Input.Submitted)
    async def _submitted(self, event: Input.Submitted) -> None:
        """Run the command that asked for the prompt's text, or the text as a command line."""
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

    @on(Prompt.Edited)
    def _answer_edited(self, event: Prompt.Edited) -> None:
        """Show the result of a filter while the user types it."""
        if event.command not in REGISTRY or not (command := REGISTRY[event.command]).previews:
            return
        if self._preview is not None:
            self._preview.stop()
        if event.left:
            self._filter_as(command, event.text)
        else:
            self._preview = self.set_timer(_PREVIEW_S, partial(self._show_preview, command))

    def _show_preview(self, command: Command) -> None:
        prompt = self.prompt
        if prompt.is_open and prompt.command == command.name and not prompt.mistaken:
            self._filter_as(command, prompt.text)

    def _filter_as(self, command: Command, text: str) -> None:
        # Half a filter keeps the last one that has a meaning.
        with suppress(UsageError):
            self.execute(Invocation(command, (text.strip(),)))

    def place_of(self, error: ProbedeckError, text: str) -> int | None:
        """Return the index of the character that an error is about; None if it is unknown."""
        return place_of(error, text)

    def takes_blame(self, error: ProbedeckError) -> bool:
        """Show an error in the prompt, if its answer led to the error; False otherwise."""
        number = self._answering or self._blamed
        return bool(number) and self.prompt.refuse(number, error, self.place_of)

    def run_in_worker(
        self, ask: Callable[[], _T], done: Callable[[_T], None],
        failed: Callable[[ProbedeckError], None], *, asked: bool = True, task: Task | None = None,
    ) -> None:  # fmt: skip
        """Call `ask` in a thread, then `done` or `failed` in the event loop.

        `asked` says whether a command needs it: then tapes wait for it, and the prompt shows its
        errors. The status strip shows `task`, if it has a title.
        """
        number = self._answering if asked else 0
        self._waiting = self._waiting or bool(number)

        def answered(answer: _T) -> None:
            self.prompt.close(number)
            done(answer)

        def refused(error: ProbedeckError) -> None:
            self._blamed = number
            failed(error)
            self._blamed = 0

        task = task or Task("", asked=False)
        self.console.tasks.run(self, task, ask, answered, refused, of_command=asked)

    def trace(self, *choices: PathKey) -> None:
        """Trace paths from now on, each on its host, and turn to the first."""

        def ask() -> None:
            for choice in choices:
                self.console.hosts.plane(choice.host).trace(choice.destination, choice.flow)

        def traced(_: None) -> None:
            self.app.call_later(self.console.turn_to, "paths", (choices[0], None))

        task = Task(f"tracing {choices[0].destination}{on_host(choices[0].host)}")
        self.run_in_worker(ask, traced, self.console.complain, task=task)

    def on_screen_resume(self) -> None:
        self.console.screen_resumed(self)


_Answer = TypeVar("_Answer")
_PERIOD = 1.0
"""Seconds between two polls."""


class PollingScreen(ConsoleScreen, Generic[_Answer]):
    """Polls while it is in front, one call at a time."""

    PAUSES: ClassVar = True
    """Whether it keeps its last answer while the console is paused."""

    def __init__(self) -> None:
        super().__init__()
        self._fetching = self._answered = False
        self._answer: _Answer | None = None
        self._trouble = ""
        """Why the last poll failed; empty if it succeeded."""
        self._busy = ""
        """The change that is being made."""

    def fetch(self) -> Callable[[], _Answer]:
        """Return the call of the next poll; it runs in a thread."""
        raise NotImplementedError

    def apply(self, answer: _Answer) -> None:
        """Keep an answer; `show` follows if it differs from the last one."""
        raise NotImplementedError

    def execute(self, asked: Invocation) -> None:
        if self._answered:
            super().execute(asked)
            return

        # A command may be about something that only the first poll finds.
        def fetched(answer: _Answer) -> None:
            self._fetched(answer)
            try:
                ConsoleScreen.execute(self, asked)
            except ProbedeckError as error:
                self.console.complain(error)

        self.run_in_worker(self.fetch(), fetched, self.console.complain)

    def change(self, what: str, ask: Callable[[], _T], done: Callable[[_T], None]) -> None:
        """Make a change in a thread, one at a time; then poll. `what` is its title."""
        if self._busy:
            self.console.complain(ProbedeckError(f"{self._busy} is not done yet"))
            return

        def ended(follow: Callable[[], None]) -> None:
            self._busy = ""
            follow()
            self.show_change()
            self._poll()

        self._busy = what
        self.show_change()
        self.run_in_worker(
            ask,
            lambda answer: ended(partial(done, answer)),
            lambda error: ended(partial(self.console.complain, error)),
            task=Task(what),
        )

    def show_change(self) -> None:
        """Show that a change begins or has ended."""

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._poll)

    def on_screen_resume(self) -> None:
        self._poll()

    @property
    def _stays(self) -> bool:
        paused = self.console.time.paused and not self.console.time.replays
        return self.PAUSES and paused and self._answered

    def _poll(self) -> None:
        if self.is_current and not self._fetching and not self._stays:
            self._fetching = True
            # A tape that turns here waits for the first answer.
            first = not self._answered

            def failed(error: ProbedeckError) -> None:
                self._fetching, self._trouble = False, str(error)
                self.show()

            self.run_in_worker(self.fetch(), self._fetched, failed, asked=first)

    def _fetched(self, answer: _Answer) -> None:
        before, first = (self._answer, self._trouble), not self._answered
        self._fetching, self._trouble = False, ""
        if self._stays:
            return
        self._answer, self._answered = answer, True
        self.apply(answer)
        if first:
            self.show()
        elif before != (answer, "") or self.console.time.since_window > _PERIOD:
            self.console.terminal.show_soon()
