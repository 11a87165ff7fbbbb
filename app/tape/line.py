"""One line of a tape, read from left to right."""

from __future__ import annotations

import re
from typing import NoReturn

_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")
_QUOTES = "\"'`"
_PATTERN = re.compile(r"/((?:[^/\\]|\\.)*)/")
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ms|s|m|)", re.ASCII)
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0}
MOST_S = 24 * 3600.0
"""Of a duration."""


class TapeLineError(Exception):
    """A line is not understood from a column on."""

    def __init__(self, message: str, column: int, hint: str) -> None:
        super().__init__(message)
        self.message, self.column, self.hint = message, column, hint


class TapeLine:
    """The text of a line, and how far it is read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        """What was not read yet begins here."""
        self.skip()

    @property
    def over(self) -> bool:
        """Whether nothing is left but a comment."""
        return self.at >= len(self.text) or self.text[self.at] == "#"

    @property
    def quote_ahead(self) -> bool:
        return self.text[self.at : self.at + 1] in tuple(_QUOTES)

    def refuse(self, message: str, at: int | None = None, *, hint: str = "") -> NoReturn:
        """Raise a LineError, by default of what comes next."""
        raise TapeLineError(message, (self.at if at is None else at) + 1, hint)

    def skip(self) -> None:
        """Go on to what is not white."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What follows, where it is this; only then it is read."""
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return found

    def take(self, pattern: re.Pattern[str]) -> str:
        """Its text; empty where something else follows."""
        found = self.match(pattern)
        return found[0] if found else ""

    def word(self) -> str:
        """All until the next space; empty at the end."""
        return "" if self.over else self.take(_WORD)

    def string(self) -> str:
        """What is in quotes, as it is: nothing is escaped, but there are three kinds of them."""
        begin, quote = self.at, self.text[self.at]
        end = self.text.find(quote, begin + 1)
        if end < 0:
            self.refuse("this quotation has no end")
        self.at = end + 1
        self._apart("a quotation")
        return self.text[begin + 1 : end]

    def text_or_word(self, what: str) -> str:
        """What is in quotes, or a word. Refused where there is neither: `what` is missing."""
        if self.over:
            self.refuse(f"{what} is missing")
        return self.string() if self.quote_ahead else self.word()

    def pattern(self) -> re.Pattern[str]:
        r"""A regular expression between slashes; `\/` is a slash in it."""
        begin = self.at
        found = self.match(_PATTERN)
        if found is None:
            if self.text[begin : begin + 1] == "/":
                self.refuse("this regular expression has no end", hint="it ends with /")
            self.refuse("a regular expression is missing", hint="it is written /like this/")
        self._apart("a regular expression")
        try:
            return re.compile(found[1], re.MULTILINE)
        except (re.error, OverflowError) as error:
            at = begin + 1 + (getattr(error, "pos", None) or 0)
            words = getattr(error, "msg", "") or str(error)
            self.refuse(f"this regular expression is wrong: {words}", at)

    def count(self) -> int:
        """A whole number from 1, or 1 where nothing follows."""
        if self.over:
            return 1
        begin, word = self.at, self.word()
        if not (word.isascii() and word.isdigit() and len(word) < 5 and int(word)):
            self.refuse(f"{word!r} is no whole number from 1 to 9999", begin)
        return int(word)

    def duration(self, *, zero: bool = False) -> float:
        """Seconds: `500ms`, `5s`, `1m`, or a number of them."""
        return duration(self, self.at, self.word(), zero=zero)

    def end(self, what: str) -> None:
        """Refuse whatever follows."""
        self.skip()
        if not self.over:
            rest = self.text[self.at :].split(" #")[0].strip()
            self.refuse(f"{what} takes no {rest!r}")

    def _apart(self, what: str) -> None:
        if self.at < len(self.text) and not self.text[self.at].isspace():
            self.refuse(f"{self.text[self.at]!r} follows {what} without a space")


def duration(line: TapeLine, at: int, text: str, *, zero: bool = False) -> float:
    """Seconds of a duration that stands at a place of a line."""
    found = _DURATION.fullmatch(text)
    if found is None:
        line.refuse(f"{text!r} is no duration" if text else "a duration is missing", at,
                    hint="such as 500ms, 5s or 1m")  # fmt: skip
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > MOST_S:
        line.refuse(f"{text} is more than a day", at)
    if not (seconds or zero):
        line.refuse(f"{text} is not more than 0", at)
    return seconds
