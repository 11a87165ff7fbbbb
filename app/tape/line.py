"""Reading of one line of a tape, and its variables: `$NAME` and `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from app.commands.keys import CHARACTERS, key_name
from bpf.errors import UsageError, did_you_mean, placed
from bpf.quantities import TIMES, quantity
from probes.language import TextReader

_WORD = re.compile(r"\S+")
_QUOTES = "\"'`"
_PATTERN = re.compile(r"/((?:[^/\\]|\\.)*)/")
MOST_S = 24 * 3600.0


class TapeLine(TextReader):
    """Reads a line from left to right."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.skip()

    @property
    def over(self) -> bool:
        """Whether the rest is empty or a comment."""
        return self.at >= len(self.text) or self.text[self.at] == "#"

    @property
    def quote_ahead(self) -> bool:
        return self.text[self.at : self.at + 1] in tuple(_QUOTES)

    def word(self) -> str:
        """Read to the next space; empty at the end."""
        return "" if self.over else self.take(_WORD)

    def string(self) -> str:
        """Read a literal text in one of three kinds of quotes; there are no escapes."""
        begin, quote = self.at, self.text[self.at]
        end = self.text.find(quote, begin + 1)
        if end < 0:
            self.refuse("this quotation has no end")
        self.at = end + 1
        self._apart("a quotation")
        return self.text[begin + 1 : end]

    def text_or_word(self, what: str) -> str:
        """Read a text in quotes, or a word. Refuse the line if `what` is missing."""
        if self.over:
            self.refuse(f"{what} is missing")
        return self.string() if self.quote_ahead else self.word()

    def pattern(self) -> re.Pattern[str]:
        r"""Read a regular expression between slashes; `\/` is a slash."""
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
        """Read a whole number from 1; 1 at the end of the line."""
        if self.over:
            return 1
        begin, word = self.at, self.word()
        if not (word.isascii() and word.isdigit() and len(word) < 5 and int(word)):
            self.refuse(f"{word!r} is no whole number from 1 to 9999", begin)
        return int(word)

    def duration(self, *, zero: bool = False) -> float:
        """Read a duration: `500ms`, `5s`, `1m`, or a number of seconds."""
        return duration(self, self.at, self.word(), zero=zero)

    def end(self, what: str) -> None:
        self.skip()
        if not self.over:
            rest = self.text[self.at :].split(" #")[0].strip()
            self.refuse(f"{what} takes no {rest!r}")

    def _apart(self, what: str) -> None:
        if self.at < len(self.text) and not self.text[self.at].isspace():
            self.refuse(f"{self.text[self.at]!r} follows {what} without a space")


def duration(line: TapeLine, at: int, text: str, *, zero: bool = False) -> float:
    """Return the seconds of a duration at a column of a line."""
    if not text:
        line.refuse("a duration is missing", at, hint="such as 500ms, 5s or 1m")
    with placed(line.text, at):
        seconds = quantity(text, TIMES)
    if seconds > MOST_S:
        line.refuse(f"{text} is more than a day", at)
    if not (seconds or zero):
        line.refuse(f"{text} is not more than 0", at)
    return seconds


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_USE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([^}]*)\}?)", re.ASCII)


def variables_of(given: Iterable[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE`. Raises UsageError."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (sign and _NAME.fullmatch(name)):
            hint = "such as --set HOST=10.0.0.1"
            raise UsageError(f"--set {text!r} is no NAME=VALUE", hint=hint)
        found[name] = value
    return found


def expanded(line: TapeLine, variables: Mapping[str, str]) -> str:
    """Return a line with the values of its variables. Refuses unknown variables."""
    if line.over or "$" not in line.text:
        return line.text

    def value(use: re.Match[str]) -> str:
        if use[1]:
            return "$"
        name = use[2] or use[3] or ""
        if name not in variables:
            hint = did_you_mean(name, variables, f"--set {name or 'NAME'}=VALUE gives it a value")
            line.refuse(f"there is no variable {use[0]!r}", use.start(), hint=hint)
        return variables[name]

    return _USE.sub(value, line.text)


VERBS: Mapping[str, str] = {
    name: name.lower()
    for name in (
        "Enter", "Tab", "Up", "Down", "Left", "Right", "Escape", "Space", "Backspace", "Delete",
        "Insert", "Home", "End", "PageUp", "PageDown", *(f"F{number}" for number in range(1, 13)),
    )
}  # fmt: skip
"""The console's names of keys that are verbs."""
MODIFIERS = ("Ctrl", "Alt", "Shift")
_VERB_OF = {key: verb for verb, key in VERBS.items()}


def held(modifiers: Sequence[str], key: str) -> str:
    """Return the console's name of a tape's key. Raises UsageError if no terminal sends it."""
    if len(key) != 1 and key not in VERBS:
        hint = did_you_mean(key, VERBS, "such as P, Left or F5")
        raise UsageError(f"there is no key {key!r}", hint=hint)
    if len(key) == 1 and list(modifiers) == ["Shift"]:
        return key_name(key.upper())
    base = VERBS.get(key, key.lower())
    return key_name("+".join([*map(str.lower, dict.fromkeys(modifiers)), base]))


def character_of(key: str) -> str | None:
    """Return the character that a key types; None for other keys."""
    return key if len(key) == 1 else CHARACTERS.get(key)


def spelled(key: str) -> str:
    """Return the line that presses a key of the console: `Ctrl+P`, `Enter`, `Key "f13"`."""
    *modifiers, base = key.split("+")
    last = _VERB_OF.get(base) or CHARACTERS.get(base, base)
    words = [name for name in MODIFIERS if name.lower() in modifiers]
    if not modifiers and key in _VERB_OF:
        return last
    with suppress(UsageError):
        if modifiers and held(words, last) == key:
            return "+".join([*words, last.upper() if len(last) == 1 else last])
    return f'Key "{key}"'
