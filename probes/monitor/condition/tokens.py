"""The tokens of a condition: names, numbers with units, times and symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bpf.errors import TextError
from bpf.quantities import NUMBER, TIMES, quantity, scale_of
from probes.language import TextReader
from probes.monitor.condition import selection
from probes.monitor.condition.logic import OPERATORS
from probes.monitor.condition.terms import Number
from probes.monitor.condition.units import RATIO, SUFFIXES, TIME

WORDS = ("and", "or", "not", "on")
"""Reserved names."""
_INSTEAD = {
    "=": "==", "===": "==", "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not",
    "<>": "!=", "=>": ">=", "=<": "<=", "\u2265": ">=", "\u2264": "<=", "\u2260": "!=",
    "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-",
}  # fmt: skip
"""Spellings of other languages, and the right ones."""
_SYMBOLS = frozenset("()+-*/,") | frozenset(OPERATORS)
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{NUMBER})"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>===|>=|<=|==|!=|<>|=>|=<|&&|\|\||\S)"
    r"|(?P<end>\Z))"
)
_UNIT = re.compile(r"(?P<space>\s*)(?P<name>%|[A-Za-z_][A-Za-z_0-9]*)?")
_SCALES = {name: suffix.scale for name, suffix in SUFFIXES.items()}
_PER_SECOND_HINT = "bits are bit, per second is /s: 100Mbit/s, 10k/s"
_PER_SECOND = re.compile(r"\s*/\s*s(?![A-Za-z_0-9(])")


class Token(NamedTuple):
    kind: str
    """number, time, name, symbol, end, or wrong."""
    text: str
    column: int
    value: Number | float | None = None
    problem: tuple[str, str] = ("", "")
    """Message and hint of a wrong token."""


class TokenReader(TextReader):
    """Reads the tokens of a text in turn."""

    def __init__(self, text: str, saved: Mapping[str, str]) -> None:
        super().__init__(text)
        self._saved = saved

    def read(self) -> Token:
        """Return the next token; at the end of the text always `end`."""
        text = self.text
        found = self.match(_TOKEN)
        assert found
        assert found.lastgroup
        kind, said = found.lastgroup, found[found.lastgroup]
        column = found.start(kind) + 1
        if kind == "number":
            token, self.at = _number(text, said, column, self.at)
            return token
        if kind == "symbol" and said not in _SYMBOLS:
            hint = f"write {_INSTEAD[said]}" if said in _INSTEAD else ""
            if said == "%":
                hint = "it only follows a number: 80%"
            return Token("wrong", said, column, None, (f"{said!r} is not understood", hint))
        return Token(kind, said, len(text.rstrip()) + 1 if kind == "end" else column)

    def read_filter(self) -> str:
        """Return the filter that comes next, in its canonical text. Raises TextError."""
        text, begin, self.at = selection.read(self.text, self.at)
        if not text:
            self.refuse("nothing follows 'on'", begin, hint="such as packets on proto:udp")
        try:
            return selection.canonical(text, self._saved)
        except TextError as error:
            compared = re.compile(r"\w[<>=!]").match(self.text, self.at - 1)
            hint = "a filter with a comparison needs parentheses" if compared else error.hint
            raise TextError(error.problem, "", begin + error.column, hint=hint) from None


def _number(text: str, digits: str, column: int, at: int) -> tuple[Token, int]:
    """Return the token of a number with its unit, and its end."""
    found = _UNIT.match(text, at)
    assert found
    name = found["name"] or ""
    suffix = scale_of(name, SUFFIXES)
    if name in WORDS or (found["space"] and suffix is None):
        name, suffix = "", SUFFIXES[""]
    at = found.end() if name else at
    said = digits + name
    try:
        value = quantity(said, _SCALES if suffix or name.isalpha() else TIMES)
    except TextError as error:
        begin = found.start("name") + 1 if name else column
        hint = _PER_SECOND_HINT if name.endswith("pps") else error.hint
        return Token("wrong", name or digits, begin, None, (error.problem, hint)), at
    if suffix is None or suffix.unit == TIME:
        return Token("time", said, column, value), at
    scale, unit = suffix
    if unit != RATIO and (second := _PER_SECOND.match(text, at)):
        name, unit, at = f"{name}/s", unit._replace(seconds=-1), second.end()
    number = Number(digits, name, scale, unit, np.float64(value))
    return Token("number", str(number), column, number), at
