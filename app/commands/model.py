"""The declaration of a command: name, parameters, keys and rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.console.screens import TABLES
from bpf.errors import UsageError, did_you_mean

Saved = Mapping[str, str]
"""Filters by name, for `@NAME`."""


Remote = Callable[..., object]
"""Called with a control plane and typed values."""


class ParameterKind(StrEnum):
    """Kind of a parameter's value, for completion."""

    CHOICE = "choice"
    """One of the parameter's `choices`."""
    COLUMN = "column"
    """A column of the screen's `tables`."""
    COUNT = "count"
    """A whole number from 1."""
    TEXT = "text"
    COMMAND = "command"
    PROGRAM = "program"
    """An own command: a program and its arguments, with fields."""
    FILTER = "filter"
    FILE = "file"
    DESTINATION = "destination"
    """An address or a host name."""
    PROBE = "probe"
    POLICY = "policy"
    NEW_POLICY = "new policy"
    """A ready policy or a group of them by name, or a policy in its short form."""
    TAPE = "tape"
    """A tape's file, or the letter of a register."""
    LAYOUT = "layout"
    THEME = "theme"
    TRACING = "tracing"
    """Options of path tracing, `guarded=all`."""
    MOMENT = "moment"
    """A time of day, `12:30:05`, or how long ago, `30s`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value after a command's name; without it the command asks, or takes the cursor's row."""

    name: str
    kind: ParameterKind = ParameterKind.TEXT
    choices: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """Tables whose columns it is one of."""
    rest: bool = False
    """It takes the rest of the line, with spaces. Only for the last parameter."""
    needed: bool = False
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
    """A command of the console.

    The method `do_NAME`, with underscores for dots, of its screen or of the console runs it, with
    the values in their order.
    """

    name: str
    """Dotted, such as `flow.sort`."""
    title: str
    """Its effect, in a few words."""
    keys: str = ""
    """Default keys, separated by commas, in Textual's names."""
    screen: str = ""
    """Its screen, which comes to the front; empty for commands of all screens."""
    footer: str = ""
    """Its word in the footer; empty: not in the footer."""
    parameters: tuple[Parameter, ...] = ()
    help: str = ""
    alias: str = ""
    """A short name for the prompt, such as `q`."""

    writes: bool = False
    """It changes what runs: a read-only console refuses it, and a tape without `--allow-write`."""
    local: bool = False
    """The API refuses it: it takes the terminal or ends the process."""
    leaves: bool = False
    """The way back on its screen. While cancellable work runs, it cancels the work instead."""
    by_row: bool = False
    """It is the effect of choosing a row on its screen, and has the keys of `table.select`, too."""
    anywhere: bool = False
    """Its keys work on every screen, and turn to its own."""
    asks: bool = False
    """It opens a prompt. Its key acts at once, so that text typed ahead goes to the prompt."""

    remote: Remote | None = None
    """Run it on a control plane, with its values; None: it needs a console."""
    needs: int = 1
    """The number of values that it needs without a console."""
    task: str = ""
    """The name of its running work. Then a console, too, only runs `remote`, and it needs no
    method."""

    @property
    def method(self) -> str:
        return "do_" + self.name.replace(".", "_")

    @property
    def previews(self) -> bool:
        """Whether its effect shows while the user types: it filters what is shown."""
        filters = (each.kind is ParameterKind.FILTER for each in self.parameters[:1])
        return not self.writes and any(filters)

    @property
    def usage(self) -> str:
        """`flow.sort [COLUMN]`."""
        return " ".join((self.name, *(parameter.usage for parameter in self.parameters)))


USUAL = "usual"
"""In place of columns: those that a table usually has."""


def columns_of(text: str) -> tuple[str, ...]:
    """Split typed columns at spaces and commas."""
    return tuple(text.replace(",", " ").split())


def check_columns(text: str) -> None:
    """Raise UsageError if the columns are not of one table, each once."""
    names = columns_of(text)
    if names == (USUAL,):
        return
    fitting = [table for table in TABLES.values() if set(names) <= set(table.names)]
    if not fitting:
        known = {name for table in TABLES.values() for name in table.names}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, sorted(known), "")
                raise UsageError(f"no table has a column {name!r}", hint=hint)
        raise UsageError(f"no table has all of {', '.join(names)}")
    fitting[0].check(names)


def sortable(*tables: str) -> tuple[str, ...]:
    """Return the columns that one of these tables can be sorted by, each once."""
    return tuple(dict.fromkeys(name for table in tables for name in TABLES[table].sortable))
