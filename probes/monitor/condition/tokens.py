"""The tokens of a condition: names, numbers with units, times and symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bpf.errors import TextError
from probes.monitor.condition import selection
from probes.monitor.condition.error import ConditionError, nearest, shown
from probes.monitor.condition.logic import OPERATORS
from probes.monitor.condition.terms import Number
from probes.monitor.condition.units import RATIO, SUFFIXES, TIMES

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
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>===|>=|<=|==|!=|<>|=>|=<|&&|\|\||\S)"
    r"|(?P<end>\Z))"
)
_UNIT = re.compile(r"(?P<space>\s*)(?P<name>%|[A-Za-z_][A-Za-z_0-9]*)?")
_PER_SECOND = re.compile(r"\s*/\s*s(?![A-Za-z_0-9(])")


class Token(NamedTuple):
    kind: str
    """number, time, name, symbol, end, or wrong."""
    text: str
    column: int
    value: Number | float | None = None
    problem: tuple[str, str] = ("", "")
    """Message and hint of a wrong token."""


class TokenReader:
    """Reads the tokens of a text in turn."""

    def __init__(self, text: str, saved: Mapping[str, str]) -> None:
        self._text = text
        self._saved = saved
        self._at = 0

    def read(self) -> Token:
        """Return the next token; at the end of the text always `end`."""
        text = self._text
        found = _TOKEN.match(text, self._at)
        assert found
        assert found.lastgroup
        kind, said = found.lastgroup, found[found.lastgroup]
        column, self._at = found.start(kind) + 1, found.end()
        if kind == "number":
            token, self._at = _number(text, said, column, self._at)
            return token
        if kind == "symbol" and said not in _SYMBOLS:
            hint = f"write {_INSTEAD[said]}" if said in _INSTEAD else ""
            if said == "%":
                hint = "it only follows a number: 80%"
            return Token("wrong", said, column, None, (f"{said!r} is not understood", hint))
        return Token(kind, said, len(text.rstrip()) + 1 if kind == "end" else column)

    def read_filter(self) -> str:
        """Return the filter that comes next, in its canonical text. Raises ConditionError."""
        text, begin, self._at = selection.read(self._text, self._at)
        if not text:
            hint = "such as packets on proto:udp"
            raise ConditionError("nothing follows 'on'", column=begin + 1, hint=hint)
        try:
            return selection.canonical(text, self._saved)
        except TextError as error:
            compared = re.compile(r"\w[<>=!]").match(self._text, self._at - 1)
            hint = "a filter with a comparison needs parentheses" if compared else error.hint
            raise ConditionError(error.problem, column=begin + error.column, hint=hint) from None


def _number(text: str, digits: str, column: int, at: int) -> tuple[Token, int]:
    """Return the token of a number with its unit, and its end."""
    found = _UNIT.match(text, at)
    assert found
    name = found["name"] or ""
    if name in TIMES:
        said = digits + name
        return Token("time", said, column, float(digits) * TIMES[name]), found.end()
    if name in SUFFIXES:
        at = found.end() if name else at
    elif name in WORDS or found["space"]:
        name = ""
    else:
        hint = nearest(name, filter(None, (*SUFFIXES, *TIMES)))
        if name.endswith(("bps", "pps")):
            hint = "bits are bit, per second is /s: 100Mbit/s, 10k/s"
        wrong = Token(
            "wrong", name, found.start("name") + 1, None, (f"{shown(name)} is no unit", hint)
        )
        return wrong, found.end()
    scale, unit = SUFFIXES[name]
    if unit != RATIO and (second := _PER_SECOND.match(text, at)):
        name, unit, at = f"{name}/s", unit._replace(seconds=-1), second.end()
    value = np.float64(float(digits) * scale)
    if np.isinf(value):
        return Token("wrong", digits, column, None, (f"{shown(digits)} is too large", "")), at
    number = Number(digits, name, scale, unit, value)
    return Token("number", str(number), column, number), at
