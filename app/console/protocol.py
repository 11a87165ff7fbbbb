"""The console as its screens, dialogs and parts see it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol, cast

from textual.app import App
from textual.screen import Screen

if TYPE_CHECKING:
    from app.commands.export_target import Overwriting
    from app.commands.line import Invocation
    from app.config.keymap import Keymap
    from app.config.model import Settings
    from app.console.host_names import Names
    from app.console.live.state import ShownHosts
    from app.console.marks import EventMarks, Pins
    from app.console.prompt.command_line import CommandLine
    from app.console.tasks import Tasks
    from app.console.terminal.console_terminal import ConsoleTerminal
    from app.console.time_travel import TimeTravel
    from bpf.errors import ProbedeckError
    from probes.control_plane import ControlPlane


class Console(Protocol):
    """The part of the console that screens, dialogs and its other parts use."""

    settings: Settings
    keymap: Keymap
    plane: ControlPlane
    """The control plane that runs the probes; its calls may take long and belong into threads."""
    hosts: ShownHosts
    """The hosts that the console shows; a console without a fleet has one."""
    has_fleet: bool
    terminal: ConsoleTerminal
    time: TimeTravel
    tasks: Tasks
    names: Names
    """Host names of addresses, by the host's resolver."""
    event_marks: EventMarks
    """Groups of events that the user has acknowledged or muted."""
    pins: Pins
    command_line: CommandLine
    overwriting: Overwriting
    unsaved: tuple[str, ...]
    """Default file names of sources with unsaved edits."""
    failure: ProbedeckError | None
    """The error that ended the console."""

    @property
    def app(self) -> App[Any]:
        """Textual's application."""

    @property
    def writes_refused(self) -> str:
        """Why what runs may not be changed; empty if it may."""

    def complain(self, error: ProbedeckError) -> None:
        """Show an error to the user, and report it to the tape or API call that caused it."""

    def use_settings(self, settings: Settings, keymap: Keymap) -> None:
        """Take other settings and keys, which are right."""

    def fail(self, error: ProbedeckError) -> None:
        """End the console with an error."""

    def key_of(self, command: str) -> str:
        """Return the key of a command on its screen; `:NAME` without a key."""

    async def action_command(self, lines: str) -> None:
        """Run lines of a command and its values, until one fails: show its error."""

    async def run_command(self, asked: Invocation) -> None:
        """Run a command on its screen, or for the whole console. Raises ProbedeckError."""

    async def turn_to(self, mode: str, key: Hashable | None) -> None:
        """Turn to a screen, with its cursor on the row of `key`; None: do not move the cursor."""

    def screen_resumed(self, screen: Screen[Any]) -> None:
        """Bring a screen up to date that has come to the front."""

    async def choose_hosts(self) -> None:
        """Begin anew with the chosen hosts."""

    def refresh_view(self) -> None:
        """Take in the present, and bring the screen in front up to date."""

    def show_status(self) -> None:
        """Bring the status strip up to date."""


def with_hint(console: Console, text: str, hint: str, gap: str = "\n\n") -> str:
    """Return a text and a hint behind it; the text alone if the console may change nothing."""
    return f"{text}{gap}{hint}" if hint and not console.plane.read_only else text


def on_host(host: str) -> str:
    """` on ams1`, for titles and messages; empty without a name."""
    return f" on {host}" if host else ""


def console_of(app: App[Any]) -> Console:
    """Return the application of a screen or widget as the console that it is."""
    return cast("Console", app)
