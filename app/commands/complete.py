"""Completion of commands and their values, and the history of typed lines in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from app.commands.line import quoted
from app.commands.model import Command, Parameter, ParameterKind
from app.commands.registry import REGISTRY, find
from app.config.paths import read_private, write_private
from app.files import as_invoker, expand
from bpf.errors import ProbedeckError, UsageError

_MOST_FILES = 2000
"""Largest number of files of a directory that are candidates."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Candidates for a part of a text."""

    begin: int
    """Start of the part, from 0; it ends at the cursor."""
    candidates: tuple[str, ...] = ()

    def applied(self, text: str, position: int, candidate: str) -> tuple[str, int]:
        """Return the text with a candidate, and the new position of the cursor."""
        made = text[: self.begin] + candidate
        return made + text[position:], len(made)

    @property
    def common(self) -> str:
        """The common beginning of all candidates."""
        first, last = min(self.candidates), max(self.candidates)
        pairs = enumerate(zip(first, last, strict=False))
        return first[: next((n for n, (one, other) in pairs if one != other), len(first))]


KnownNames = Callable[[], Iterable[str]]
"""Returns the names that exist now."""
Filters = Callable[[str, int], Completion]
"""Completes a filter at a position."""


class Completer:
    """Completes lines, and values that a command asks for."""

    def __init__(
        self, names: Mapping[ParameterKind, KnownNames], filters: Filters,
        policies: Filters = lambda _, position: Completion(position),
    ) -> None:  # fmt: skip
        """`names` returns the names of probes, policies and so on, by kind; `policies` completes a
        policy at a position."""
        self._names = names
        self._languages = {
            ParameterKind.FILTER: filters,
            ParameterKind.NEW_POLICY: policies,
        }

    def complete(self, name: str, text: str, position: int, screen: str = "") -> Completion:
        """Complete a value of command `name`, or a line; commands of `screen` come first."""
        if name:
            return self._value(REGISTRY[name].parameters[0], text, 0, position, asked=True)
        begin = len(text) - len(text.lstrip())
        words = text[begin:position].split(maxsplit=1)
        if not words or begin + len(words[0]) >= position:
            ranked = sorted(REGISTRY.values(), key=lambda command: command.screen != screen)
            names = fitting(text[begin:position], [command.name for command in ranked])
            return Completion(begin, tuple(names))
        command = find(words[0])
        found = _parameter_at(command, text, begin + len(words[0]), position) if command else None
        return self._value(*found, position) if found else Completion(position)

    def _value(
        self, parameter: Parameter, text: str, begin: int, position: int, *, asked: bool = False
    ) -> Completion:
        """`asked`: the whole text is the value, without quotes."""
        if (complete := self._languages.get(parameter.kind)) is not None:
            found = complete(text[begin:], position - begin)
            return Completion(begin + found.begin, found.candidates)
        typed = text[begin:position]
        as_it_is = asked or parameter.rest
        value = typed if as_it_is else typed.lstrip('"')
        if parameter.kind is ParameterKind.FILE:
            known: Iterable[str] = _files(value)
        else:
            known = parameter.words or self._names.get(parameter.kind, tuple)()
        names = fitting(value, known)
        plain = (each if as_it_is or each.endswith("/") else quoted(each) for each in names)
        return Completion(begin, tuple(plain))


def fitting(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with `typed`, or else in another case, or else contain it."""
    every, small = list(names), typed.lower()
    return (
        [name for name in every if name.startswith(typed)]
        or [name for name in every if name.lower().startswith(small)]
        or [name for name in every if small in name.lower()]
    )


def _parameter_at(
    command: Command, text: str, at: int, position: int
) -> tuple[Parameter, str, int] | None:
    """Return the parameter at `position`, the text, and the start of its value."""
    for parameter in command.parameters:
        begin = at + len(text[at:position]) - len(text[at:position].lstrip())
        if begin == position or parameter.rest:
            return parameter, text, begin
        word = text[begin:].split(maxsplit=1)[0]
        end = text.find('"', begin + 1) + 1 if word[0] == '"' else begin + len(word)
        if not end or end >= position:
            return parameter, text, begin
        at = end
    return None


def _files(typed: str) -> list[str]:
    """Return files and directories for a typed path; hidden ones only after a dot."""
    head, last = os.path.split(typed)
    found = []
    try:
        with as_invoker(), os.scandir(expand(head)) as entries:
            for entry, _ in zip(entries, range(_MOST_FILES), strict=False):
                if entry.name.startswith(".") <= last.startswith("."):
                    path = os.path.join(head, entry.name)
                    found.append(path + "/" if entry.is_dir() else path)
    except (OSError, ValueError, UsageError):
        return []
    return sorted(name for name in found if name.isprintable())


def usage(text: str) -> str:
    """Return the usage and the title of a line's command; empty for an unknown command."""
    command = find(text.split(maxsplit=1)[0]) if text.strip() else None
    return f"{command.usage}: {command.title}" if command else ""


MOST = 1000
"""Largest number of kept lines."""
_LONGEST = 1000
_NOT_KEPT = "output.add "


class PromptHistory:
    """Typed lines of all consoles of a user: each console adds its lines to the file.

    If the file cannot be read or written, lines last until the console ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        """Oldest first, each once."""
        self._lock = Lock()

    @property
    def lines(self) -> tuple[str, ...]:
        """Newest first."""
        return tuple(reversed(self._lines))

    def load(self) -> None:
        """Read the file. This may block."""
        with self._lock:
            self._lines = _merged(self._read(), *self._lines)

    def remember(self, line: str) -> None:
        """Add a line, without the file."""
        if line.isprintable() and len(line) <= _LONGEST:
            self._lines = _merged(self._lines, line)

    def save(self, line: str) -> None:
        """Add a line to the file. This may block."""
        # The URL of an output may hold a password.
        if line not in self._lines or line.startswith(_NOT_KEPT):
            return
        with self._lock, suppress(ProbedeckError):
            lines = _merged(self._read(), line)
            write_private(self._path, "".join(f"{each}\n" for each in lines))

    def _read(self) -> list[str]:
        try:
            text = read_private(self._path) or ""
        except ProbedeckError:
            return []
        return [line for line in text.splitlines() if line and line.isprintable()]


def _merged(lines: list[str], *added: str) -> list[str]:
    return list(dict.fromkeys(reversed([*lines, *added])))[:MOST][::-1]
