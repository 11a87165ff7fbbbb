"""Positions of keys and values in a JSON or TOML text that its parser has accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Keys = tuple[int | str, ...]
"""A key's path: `("policy", 1, "run", 0)`."""
_SKIPPED = re.compile(r"(?:\s|#[^\n]*)*")
_KEY = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\w-]+")
_SIGN = re.compile(r"\s*[:=]")
_PLAIN = re.compile(r"[^,\]}#\n]+")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u....|u.{4}|U.{8}|(?P<joined>[ \t]*\r?\n\s*)|.)", re.DOTALL
)
_QUOTES = ('"""', "'''", '"', "'")


class Position(NamedTuple):
    """Offsets in the text."""

    key: int
    """Of the key, the item of a list, or the header of a table."""
    value: int
    characters: Sequence[int] = ()
    """Of each character of a text, and of its end."""


def positions(text: str, *, toml: bool) -> Mapping[Keys, Position]:
    """Return the position of each key and each item of a list."""
    scanner = _Scanner(text)
    if toml:
        scanner.document()
    else:
        scanner.skip()
        scanner.value((), scanner.at)
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.at = 0
        self.found: dict[Keys, Position] = {}
        self._text = text
        self._lengths: dict[Keys, int] = {}
        """Tables so far of each array of tables."""

    def document(self) -> None:
        """Scan a TOML document."""
        table: Keys = ()
        self.found[table] = Position(0, 0)
        while self.skip():
            begin = self.at
            if self._text[begin] != "[":
                self._entry(table)
                continue
            brackets = 2 if self._text.startswith("[[", begin) else 1
            self.at += brackets
            table = self._header(self._names())
            if brackets == 2:
                self.found.setdefault(table, Position(begin, begin))
                number = self._lengths[table] = self._lengths.get(table, -1) + 1
                table = (*table, number)
            self.found.setdefault(table, Position(begin, begin))
            self.at += brackets

    def _header(self, names: Sequence[str]) -> Keys:
        """The path of a table: its parent may be the last table of an array."""
        path: Keys = ()
        for name in names[:-1]:
            path = (*path, name)
            if path in self._lengths:
                path = (*path, self._lengths[path])
        return (*path, names[-1])

    def skip(self) -> bool:
        """Skip blanks and comments. Returns False at the end of the text."""
        found = _SKIPPED.match(self._text, self.at)
        assert found
        self.at = found.end()
        return self.at < len(self._text)

    def _names(self) -> list[str]:
        """The parts of a key such as `a."b c"`."""
        names = []
        while True:
            self.skip()
            found = _KEY.match(self._text, self.at)
            assert found
            self.at = found.end()
            names.append(_bare(found[0]))
            self.skip()
            if not self._text.startswith(".", self.at):
                return names
            self.at += 1

    def _entry(self, table: Keys) -> None:
        begin = self.at
        names = self._names()
        sign = _SIGN.match(self._text, self.at)
        assert sign
        self.at = sign.end()
        self.skip()
        for end in range(1, len(names)):
            self.found.setdefault((*table, *names[:end]), Position(begin, begin))
        self.value((*table, *names), begin)

    def value(self, keys: Keys, key: int) -> None:
        """Scan a value."""
        begin = self.at
        sign = self._text[begin : begin + 1]
        self.found[keys] = Position(key, begin)
        if sign in ("[", "{"):
            self._several(keys, "]" if sign == "[" else "}")
        elif sign in ('"', "'"):
            self.found[keys] = Position(key, begin, self._characters())
        else:
            plain = _PLAIN.match(self._text, begin)
            self.at = plain.end() if plain else begin + 1

    def _several(self, keys: Keys, end: str) -> None:
        self.at += 1
        number = 0
        while self.skip() and self._text[self.at] != end:
            if self._text[self.at] == ",":
                self.at += 1
            elif end == "}":
                self._entry(keys)
            else:
                self.value((*keys, number), self.at)
                number += 1
        self.at += 1

    def _characters(self) -> Sequence[int]:
        text = self._text
        quotes = next(each for each in _QUOTES if text.startswith(each, self.at))
        self.at += len(quotes)
        if len(quotes) == 3 and (line := re.compile(r"\r?\n").match(text, self.at)):
            self.at = line.end()
        found: list[int] = []
        # A text in three quotation marks may end with further ones.
        end = re.compile(rf"{quotes}(?!{quotes[0]})" if len(quotes) == 3 else quotes)
        while not end.match(text, self.at):
            escape = _ESCAPE.match(text, self.at) if quotes[0] == '"' else None
            if not (escape and escape["joined"]):
                found.append(self.at)
            self.at = escape.end() if escape else self.at + 1
        found.append(self.at)
        self.at += len(quotes)
        return found


def _bare(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    try:
        return str(json.loads(key)) if key.startswith('"') else key
    except ValueError:
        return key
