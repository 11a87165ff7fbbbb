"""Parsing of a typed command: a name, and values after it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from app.commands.model import Command, Parameter, ParameterKind, Saved
from app.commands.own import MARK, words_of
from app.commands.registry import REGISTRY, find
from bpf.errors import TextError, did_you_mean, placed
from bpf.quantities import moment

CommandValue = str | int
QUOTE = '"'
_DIGITS = 6
_ROWS = re.compile(r"([+-]?)(\d+)")
"""A row's number, or a number of rows: `10`, `+5`, `-5`."""
_MOVES = {"": "table.first", "+": "table.down", "-": "table.up"}


@dataclass(frozen=True, slots=True)
class Word:
    """A value of a line."""

    text: str
    column: int
    """Column of its start, from 1."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command with its values."""

    command: Command
    values: tuple[CommandValue, ...] = ()

    @property
    def line(self) -> str:
        pairs = zip(self.command.parameters, map(str, self.values), strict=False)
        words = (value if parameter.rest else quoted(value) for parameter, value in pairs)
        return " ".join((self.command.name, *words))

    @property
    def starts_program(self) -> bool:
        """Whether it runs an own command, or prepares one for a key or the prompt."""
        for parameter, value in zip(self.command.parameters, self.values, strict=False):
            if parameter.kind is ParameterKind.PROGRAM:
                return True
            if parameter.kind is ParameterKind.COMMAND:
                with suppress(TextError):
                    return parse(str(value)).starts_program
        return False

    @property
    def writes(self) -> bool:
        """Whether a tape needs `--allow-write` for it."""
        return self.command.writes or self.starts_program


def parse(line: str, saved: Saved | None = None) -> Invocation:
    """Read a line such as `flow.sort rate`, also as the prompt shows it: `:flow.sort rate`.

    Raises TextError, with the column. With `saved` filters, the parameters' checks run, too.
    """
    text = line.rstrip()
    begin = len(text) - len(text.lstrip().removeprefix(":").lstrip())
    name = text[begin:].split(maxsplit=1)[0] if begin < len(text) else ""
    if row := _ROWS.fullmatch(text[begin:]):
        return parse(f"{_MOVES[row[1]]} {row[2]}")
    if name.startswith(MARK):
        name = MARK
    if (command := find(name)) is None:
        problem = f"there is no command {name!r}" if name else "a command is missing"
        hint = did_you_mean(name, REGISTRY, "ctrl+p lists all")
        raise TextError(problem, line, begin + 1, hint=hint)
    values: list[CommandValue] = []
    at = begin + len(name)
    for parameter in command.parameters:
        word, at = _next(line, text, at, parameter)
        if word is None:
            break
        values.append(_value(line, word, parameter))
        if saved is not None and parameter.check:
            with placed(line, word.column - 1):
                parameter.check(word.text, saved)
    if (rest := text[at:].lstrip()) and len(values) == len(command.parameters):
        column = len(text) - len(rest) + 1
        raise TextError(f"{name} takes no {rest!r}", line, column, hint=f"usage: {command.usage}")
    missing = [each for each in command.parameters[len(values) :] if each.needed]
    if missing:
        problem = f"{name} needs a {missing[0].name}"
        raise TextError(problem, line, len(text) + 1, hint=f"usage: {command.usage}")
    return Invocation(command, tuple(values))


def answer(name: str, text: str) -> Invocation:
    """Return command `name` with its typed value, or a whole line if unnamed. Raises TextError."""
    if not name:
        return parse(text)
    command = REGISTRY[name]
    parameter, value = command.parameters[0], text.strip()
    if not value and parameter.kind is not ParameterKind.FILTER:
        raise TextError(f"{name} needs a {parameter.name}", text, 1)
    column = len(text) - len(text.lstrip()) + 1
    return Invocation(command, (_value(text, Word(value, column), parameter),))


def quoted(value: str) -> str:
    plain = value and not any(c.isspace() or c == QUOTE for c in value)
    return value if plain else QUOTE + value.replace("\\", "\\\\").replace(QUOTE, '\\"') + QUOTE


def _next(line: str, text: str, at: int, parameter: Parameter) -> tuple[Word | None, int]:
    """Return the next value from `at` on, and the start of the rest."""
    begin = at + len(text[at:]) - len(text[at:].lstrip())
    if begin == len(text):
        return None, begin
    if parameter.rest:
        return Word(text[begin:], begin + 1), len(text)
    if text[begin] != QUOTE:
        end = begin + len(text[begin:].split(maxsplit=1)[0])
        return Word(text[begin:end], begin + 1), end
    found, at = [], begin + 1
    while at < len(text) and text[at] != QUOTE:
        at += text[at] == "\\" and at + 1 < len(text)
        found.append(text[at])
        at += 1
    if at >= len(text):
        raise TextError("this quotation has no end", line, begin + 1)
    return Word("".join(found), begin + 1), at + 1


def _value(line: str, word: Word, parameter: Parameter) -> CommandValue:
    if parameter.kind is ParameterKind.COUNT:
        digits = word.text.isascii() and word.text.isdigit() and len(word.text) <= _DIGITS
        if not (digits and int(word.text)):
            problem = f"{word.text!r} is no whole number from 1 to {10**_DIGITS - 1}"
            raise TextError(problem, line, word.column)
        return int(word.text)
    if parameter.kind is ParameterKind.PROGRAM:
        with placed(line, word.column - 1):
            words_of(word.text)
    if parameter.kind is ParameterKind.MOMENT:
        with placed(line, word.column - 1):
            moment(word.text, 0)
    if parameter.words and word.text not in parameter.words:
        problem = f"there is no {parameter.name} {word.text!r}"
        hint = did_you_mean(word.text, parameter.words)
        raise TextError(problem, line, word.column, hint=hint)
    return word.text
