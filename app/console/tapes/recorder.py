"""Records keys and their commands as a tape."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from textual import events

from app.commands.keys import key_name
from app.tape.line import spelled
from bpf.errors import UsageError
from bpf.quantities import duration

_IDLE = 0.5
"""Seconds without a key from which on a comment notes them."""
_QUOTES = "\"'`"
_NOT = ("@", "macro.", "app.count")
"""Beginnings of commands that a tape does not need: they play and record tapes, or begin a number
that the next command has."""
_RECALLED = {"up", "down", "tab", "shift+tab"}
"""Keys whose effect in a prompt depends on the history, or on names that exist now."""
_TYPED = {"app.prompt", "app.palette"}
"""Commands with which the user calls others by their names."""


@dataclass(slots=True)
class _Entry:
    """A key, and the commands that it ran."""

    at: float
    """`time.monotonic()`."""
    key: str
    text: str = ""
    """The character that it writes; empty for none."""
    event: events.Key | None = None
    lines: list[str] = field(default_factory=list)
    """The commands that it ran."""


class Recorder:
    """The keys since the recording began."""

    def __init__(self, register: str, view: str) -> None:
        """`view` is the screen in front at the beginning."""
        self.register = register
        self._view = view
        self._entries: list[_Entry] = []

    @property
    def count(self) -> int:
        """Number of steps, without the first, which turns to the screen."""
        return sum(not line.startswith("#") for line in self._lines())

    def key(self, event: events.Key) -> None:
        """Record a key; `called` follows if it runs a command."""
        character = event.character if event.is_printable and event.character else ""
        if not character:
            try:
                key_name(event.key)
            except UsageError:
                return  # A tape cannot press this key.
        self._entries.append(_Entry(time.monotonic(), event.key, character, event))

    def paste(self, text: str) -> None:
        at = time.monotonic()
        for number, line in enumerate(text.splitlines()):
            if number:
                self._entries.append(_Entry(at, "enter"))
            for c in line:
                if c == "\t":
                    self._entries.append(_Entry(at, "tab"))
                elif c.isprintable():
                    self._entries.append(_Entry(at, c, c))

    def called(self, lines: list[str], event: events.Key | None = None) -> None:
        """Record commands of a key, or commands that the user called by name. The latter replace
        the keys that opened the prompt or the palette, and the text."""
        if event is not None:
            for entry in self._entries:
                if entry.event is event:
                    entry.lines += lines
        elif (begin := self._asked()) and not _TYPED.isdisjoint(self._entries[begin - 1].lines):
            del self._entries[begin:]
            self._entries[begin - 1].lines = lines

    def reached(self, line: str, whole: str) -> None:
        """Record the last command `line` with the value that it chose."""
        for entry in reversed(self._entries):
            if line in entry.lines:
                entry.lines = [whole if each == line else each for each in entry.lines]
                return

    def answered(self, text: str) -> None:
        """Record an answer of the prompt, if completion or history changed it."""
        keys = [entry.key for entry in self._entries[self._asked() :]]
        if not _RECALLED.isdisjoint(keys):
            self.put(text)
            self._entries.append(_Entry(self._entries[-1].at, "enter"))

    def put(self, text: str, left: int = 0) -> None:
        """Replace the prompt's keys by its text, the cursor `left` characters before the end."""
        if begin := self._asked():
            at = self._entries[-1].at
            keys = [_Entry(at, "ctrl+u"), *(_Entry(at, c, c) for c in text)]
            self._entries[begin:] = [*keys, *(_Entry(at, "left") for _ in range(left))]

    def _asked(self) -> int:
        """Return the index of the first key that went into the prompt; 0 if it is unknown."""
        places = [place for place, entry in enumerate(self._entries) if entry.lines]
        return places[-1] + 1 if places else 0

    def refused(self, event: events.Key) -> None:
        """Drop a key whose command was refused."""
        self._entries = [entry for entry in self._entries if entry.event is not event]

    def text(self) -> str:
        return "\n".join([f"Action view.{self._view}", *self._lines(), ""])

    def _lines(self) -> list[str]:
        lines: list[str] = []
        typed = ""
        before = self._entries[0].at if self._entries else 0.0
        for entry, following in zip(self._entries, [*self._entries[1:], None], strict=False):
            done = [f"Action {line}" for line in entry.lines if not line.startswith(_NOT)]
            if entry.lines and not done:
                continue
            if (pause := entry.at - before) > _IDLE:
                lines.append(f"# {duration(pause)}")
            before = entry.at
            if entry.lines:
                lines += done
            elif entry.text:
                typed += entry.text
                goes_on = following is not None and following.text and not following.lines
                if not goes_on or following is None or following.at - entry.at > _IDLE:
                    lines += _typed(typed)
                    typed = ""
            else:
                _add(lines, spelled(entry.key))
        return lines


def _add(lines: list[str], line: str) -> None:
    word, _, count = lines[-1].rpartition(" ") if lines else ("", "", "")
    if lines and lines[-1] == line:
        lines[-1] = f"{line} 2"
    elif word == line and count.isdigit():
        lines[-1] = f"{line} {int(count) + 1}"
    else:
        lines.append(line)


def _typed(text: str) -> list[str]:
    """Return lines that type a text, in quotes that do not occur in it, or in parts."""
    lines = []
    while text:
        quote = max(_QUOTES, key=lambda quote: (text + quote).index(quote))
        part = text[: (text + quote).index(quote)]
        lines.append(f"Type {quote}{part}{quote}")
        text = text[len(part) :]
    return lines
