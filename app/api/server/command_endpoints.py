"""Requests that list and run commands of the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import Request

from app.api.models import ForbiddenError
from app.api.server.routing import Endpoints, Executor, route
from app.commands.line import Invocation, parse
from app.commands.model import Command, ParameterKind
from app.commands.registry import REGISTRY
from bpf.errors import ProbedeckError, TextError, UsageError
from probes.control_plane import ControlPlane
from probes.monitor.policy import Policy

_SETS_POLICIES = ("trigger.add", "trigger.change", "trigger.toggle")
CommandRunner = Callable[[Invocation], Sequence[str]]
"""Run a command in the console beside the API. Returns its complaints. Raises ProbedeckError."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command and its values."""

    line: str
    """`flow.sort rate`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that ran."""

    line: str
    """The command and its values, as parsed."""
    complaints: tuple[str, ...]
    """Errors that the console showed. Later failures of background work are events."""


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command of the registry."""

    name: str
    usage: str
    """`flow.sort [COLUMN]`."""
    title: str
    help: str
    keys: tuple[str, ...]
    """Its usual keys."""
    screen: str
    """The command's screen; empty for commands of all screens."""
    writes: bool
    """Whether it changes what runs."""
    here: bool
    """Whether this controller, which may have no console, can run it."""


class CommandEndpoints(Endpoints):
    """Requests that list and run commands."""

    def __init__(self, executor: Executor, console: CommandRunner | None) -> None:
        super().__init__(executor)
        self._console = console or partial(run_on_plane, executor.plane)
        self._has_console = console is not None

    @route("GET", "/v1/commands")
    async def commands(self) -> tuple[CommandInfo, ...]:
        """List all commands, grouped by screen."""
        return tuple(map(self._info, REGISTRY.values()))

    @route("POST", "/v1/commands", 403, 404, 409, 422)
    def command(self, line: CommandRequest, request: Request) -> CommandResult:
        """Run a command; on the console, if the controller has one. The effect is the same as
        typing it there: the console turns to the command's screen."""
        asked = parse(line.line)
        if asked.command.writes:
            self.may_change()
        if why := _only_at_the_console(asked.command) or (
            "is about a program of this host" if asked.starts_program else ""
        ):
            hint = "it is done at the console only"
            raise ForbiddenError(f"{asked.command.name} {why}", hint=hint)
        if asked.command.name in _SETS_POLICIES and not request.state.acts:
            self._may_set(str(asked.values[0]) if asked.values else "", request)
        return CommandResult(asked.line, tuple(self._console(asked)))

    def _may_set(self, value: str, request: Request) -> None:
        known = self.policies_by_name()
        if not value:
            raise ForbiddenError("the policy under the cursor may act", hint="name a policy")
        if value in known:
            self.may_act(known[value].policy, request)
        elif "->" in value:
            self.may_act(Policy.parse_short(value), request)

    def _info(self, command: Command) -> CommandInfo:
        here = self._has_console or command.remote is not None
        return CommandInfo(
            command.name, command.usage, command.title, command.help,
            tuple(filter(None, command.keys.split(","))), command.screen, command.writes,
            here and not _only_at_the_console(command),
        )  # fmt: skip


def _only_at_the_console(command: Command) -> str:
    """Return why the API may not have a command done; empty if it may."""
    if command.local:
        return "is about this terminal or process"
    # A client that may change probes must not reach root's files.
    files = {each.kind for each in command.parameters} & {ParameterKind.FILE, ParameterKind.TAPE}
    return "is about files of this host" if files and not command.remote else ""


def run_on_plane(plane: ControlPlane, asked: Invocation) -> Sequence[str]:
    """Run a command to its end. Raises ProbedeckError if it needs a console or fails."""
    command = asked.command
    if command.remote is None:
        raise ProbedeckError(f"{command.name} needs a console, and this controller has none")
    if missing := command.parameters[len(asked.values) : command.needs]:
        hint = f"usage: {command.usage}"
        raise UsageError(f"{command.name} needs a {missing[0].name}", hint=hint)
    try:
        command.remote(plane, *asked.values)
    except TextError as error:
        text = str(asked.values[-1]) if asked.values else ""
        if error.text != text:
            raise
        # The value is the last of the line.
        column = len(asked.line) - len(text) + error.column
        raise TextError(error.problem, asked.line, column, hint=error.hint) from None
    return ()
