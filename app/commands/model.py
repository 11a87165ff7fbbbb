"""What a command is: its name, its parameters, its keys, and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from app.commands.tables import sortable

if TYPE_CHECKING:
    from probes.control_plane import ControlPlane

Saved = Mapping[str, str]
"""Filters by name, for `@NAME`."""


class ParameterKind(StrEnum):
    """What a parameter's value is, and so how it is checked and completed."""

    CHOICE = "choice"
    """One of the parameter's `choices`."""
    COLUMN = "column"
    """A column of the screen's `tables`."""
    COUNT = "count"
    """A whole number from 1."""
    TEXT = "text"
    COMMAND = "command"
    """A command and its values."""
    FILTER = "filter"
    """Terms of the filter language."""
    FILE = "file"
    DESTINATION = "destination"
    """An address or a host name."""
    PROBE = "probe"
    """The name of a probe that runs."""
    POLICY = "policy"
    """The name of a policy that there is."""
    TAPE = "tape"
    """A tape's file, or the letter of a register."""
    LAYOUT = "layout"
    """The name of a saved layout."""
    MOMENT = "moment"
    """A time of day in UTC, `12:30:05`, or how long ago, `30s`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value that may follow a command's name; without it the command asks, or takes what is
    under the cursor."""

    name: str
    """As help calls it."""
    kind: ParameterKind = ParameterKind.TEXT
    choices: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """Tables whose columns it is one of."""
    rest: bool = False
    """Whether it is all the rest of the line, spaces included. Only the last one."""
    needed: bool = False
    """Whether the command means nothing without it."""
    check: Callable[[str, Saved], object] | None = None
    """Raise UsageError for a value that no run of the command could accept."""

    @property
    def words(self) -> tuple[str, ...]:
        """Possible values; empty if the registry does not know them."""
        return self.choices or sortable(*self.tables)

    @property
    def usage(self) -> str:
        """`[COLUMN]`, `FILE`, `[on|off]`."""
        short = self.kind is ParameterKind.CHOICE and len(self.choices) <= 4
        word = "|".join(self.choices) if short else self.name.upper()
        return word if self.needed else f"[{word}]"


@dataclass(frozen=True, slots=True)
class Command:
    """Something that an operator can have done.

    It is done by the method `do_NAME`, dots as underscores, of the screen or of the app; that gets
    the values which follow the name, in their order.
    """

    name: str
    """Dotted, such as `flow.sort`."""
    title: str
    """What it does, in a few words."""
    keys: str = ""
    """Its usual keys by comma, in Textual's names; empty for none."""
    screen: str = ""
    """The screen that has it, and that is turned to when it is done; empty for those that are
    everywhere."""
    footer: str = ""
    """Its word in the footer; empty where it is not shown there."""
    parameters: tuple[Parameter, ...] = ()
    help: str = ""
    """More about it, in whole sentences; empty where the title says all."""

    writes: bool = False
    """Whether it changes what runs, which a read-only console refuses, and a tape without
    `--allow-write`."""
    local: bool = False
    """Whether only the operator at the console may have it done, and the API refuses it: it takes
    the terminal or ends the process."""
    leaves: bool = False
    """Whether it is the way back on its screen. While work goes on that can be cancelled, it
    cancels that instead."""
    by_row: bool = False
    """Whether it is what choosing a row does on its screen; it then has the keys of
    `table.select` too."""
    asks: bool = False
    """Whether it opens a line to type into. Its key then acts at once, so that what is typed ahead
    goes into that line and is not taken for commands."""

    remote: Callable[[ControlPlane, str], object] | None = None
    """Run it on a control plane, with its first value; None: it needs a console."""

    @property
    def method(self) -> str:
        return "do_" + self.name.replace(".", "_")

    @property
    def usage(self) -> str:
        """`flow.sort [COLUMN]`."""
        return " ".join((self.name, *(parameter.usage for parameter in self.parameters)))
