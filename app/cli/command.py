"""Commands of the program: click's, with the options of a help text in groups."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bpf.errors import TextError
from bpf.quantities import duration, seconds

if TYPE_CHECKING:
    from app.api.client import Client
    from probes.operation import Operation
    from probes.reports import Compatibility, Replacement

F = TypeVar("F", bound=Callable[..., Any])
ALIASES = {"macro": "tape"}
"""Former names of commands."""
_LEFT = 24
"""Columns of the options in a help text."""


FILE = click.Path(readable=False)
"""A text that the shell completes as the name of a file."""
_URL = "unix:/run/probedeck/api.sock"


class _Seconds(click.ParamType["float"]):
    """A number of seconds, or a time with its unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> float:
        try:
            return seconds(value)
        except TextError as error:
            raise error.of(param.opts[0] if param else "") from None


class GroupedOption(click.Option):
    """An option that stands under a heading of the help text, with its default in words."""

    def __init__(
        self, declarations: tuple[str, ...], *, group: str = "Options", usual: str = "",
        **attributes: Any,
    ) -> None:  # fmt: skip
        super().__init__(declarations, **attributes)
        self.group = group
        self.usual = usual

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        # A flag that is on by default is shown as the option that turns it off.
        left = ", ".join(self.secondary_opts if self.default is True else self.opts)
        if not self.is_flag:
            left += f" {self.make_metavar(ctx)}"
        words = f"default: {self.usual}" if self.usual else ""
        words = "required" if self.required else "repeatable" if self.multiple else words
        return left, f"{self.help}  [{words}]" if words else self.help or ""


class GroupedCommand(click.Command):
    """A command whose help has a heading for each group of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                # --help, which click adds, stands in the first group.
                first = next(iter(groups), "Options")
                groups.setdefault(getattr(each, "group", first), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=_LEFT)


class CommandGroup(click.Group):
    """A group of commands, listed in the order of the source."""

    command_class = GroupedCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(name, name))


def option(*flags: str, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that gives a command an option; an option with a metavar is a text."""
    metavar = attributes.get("metavar")
    if metavar in ("FILE", "PATH", "DIR|-"):
        attributes["type"] = FILE
    if metavar == "SECONDS":
        attributes["type"] = _Seconds()
    if metavar and not attributes.keys() & {"required", "multiple"}:
        attributes.setdefault("default", "")
    return click.option(*flags, cls=GroupedOption, **attributes)


def argument(name: str, metavar: str, about: str, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that gives a command an argument."""
    type_ = FILE if "FILE" in metavar else None
    return click.argument(name, metavar=metavar, help=about, type=type_, **attributes)


def controller_options(command: F) -> F:
    """Give a command the options that name a controller: url, token and ca."""
    for each in (
        option("--ca", metavar="FILE", usual="the system's", help="Certificates to trust."),
        option("--token", metavar="FILE", help="File with the API's token."),
        option(
            "--connect", "url", metavar="URL", default=_URL, usual=_URL,
            help="The controller: unix:PATH, http://HOST:PORT or https://HOST:PORT.",
        ),
    ):  # fmt: skip
        command = each(command)
    return command


def controls(group: CommandGroup, name: str, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator: a command of `group` on a controller, which `controller_options` name.

    Its function gets a client of that controller before the values of its options.
    """

    def give(function: F) -> F:
        @functools.wraps(function)
        def run(*, url: str, token: str, ca: str, **values: Any) -> Any:
            from app.api.address import Remote
            from app.api.client import Client

            with closing(Client(Remote(url, token, ca))) as client:
                return function(client, **values)

        # Click takes the parameters from the last one on.
        own = run.__dict__.pop("__click_params__", [])
        controller_options(run).__dict__["__click_params__"] += own
        group.command(name, **attributes)(run)
        return function

    return give


def operations(group: CommandGroup) -> None:
    """Give a group the subcommands of the catalogue of operations."""
    from probes.control_plane import OPERATIONS

    for each in OPERATIONS.values():
        if each.subcommand and each.subcommand.name.split()[0] == group.name:
            _control(group, each)


def _control(group: CommandGroup, operation: Operation[..., Any]) -> None:
    assert operation.subcommand
    words, names = operation.subcommand, [each.name for each in operation.parameters]

    def run(client: Client, **values: Any) -> None:
        from app.commands.remote import typed

        for each in operation.parameters:
            if isinstance(values[each.name], str):
                values[each.name] = typed(each, values[each.name])
        answer = getattr(client, operation.name)(**values)
        if text := _answer_text(operation, answer):
            say(f"{values[names[0]]}: {text}" if operation.is_named else text)

    for each in reversed(operation.parameters):
        about = words.values.get(each.name, "")
        if each.default is each.empty:
            about = about or f"The {group.name}'s name."
            run = argument(each.name, each.name.removesuffix("_name").upper(), about)(run)
        elif each.name in words.values:
            shown = {"default": each.default, "metavar": each.name.upper()}
            if each.annotation == "bool":
                shown = {"is_flag": True}
            run = option(f"--{each.name}", help=about, **shown)(run)
    run.__doc__ = words.help or operation.about
    controls(group, words.name.split()[1])(run)


def _answer_text(operation: Operation[..., Any], answer: Any) -> str:
    """Print the values of an answer; return the message that stays."""
    from probes.monitor.info import PolicyInfo
    from probes.reports import Replacement

    if isinstance(answer, Replacement):
        tell_fates(answer.compatibility)
        return replaced(answer)
    if isinstance(answer, PolicyInfo):
        return answer.state.label
    if operation.verb == "DELETE" and operation.route.endswith("{name}"):
        return "removed"
    if isinstance(answer, list):
        for each in answer:
            print(json.dumps(each))
    elif not isinstance(answer, bool) and isinstance(answer, int | float | str):
        print(answer)
    return ""


def tell_fates(report: Compatibility) -> None:
    """Print the effects of a replacement on maps and metrics."""
    for fate in report.maps:
        reason = f" ({fate.reason})" if fate.reason else ""
        say(f"{fate.side}: map {fate.map}: {fate.fate}{reason}")
    for name in report.lost_metrics:
        say(f"metric {name} ends")
    for name in report.new_metrics:
        say(f"metric {name} is new")
    for warning in report.warnings:
        say(f"warning: {warning}")


def replaced(made: Replacement) -> str:
    """Return the outcome of a replacement in words."""
    return f"generation {made.generation} {made.state}, after {duration(made.seconds)}"


def print_json(of: Any, values: object) -> None:
    """Print a value of a type as JSON."""
    from pydantic import TypeAdapter

    print(json.dumps(TypeAdapter(of).dump_python(values, mode="json"), indent=2))


def say(text: str) -> None:
    """Print a message to standard error: standard output holds data."""
    print(text, file=sys.stderr)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
