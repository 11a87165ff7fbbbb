"""Writes down what an operator does with keys, as a tape that does it again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from textual import events

from app.commands.keys import key_name
from app.tape.keys import spelled
from bpf.errors import UsageError

_IDLE = 0.5
"""Seconds without a key from which on they are noted."""
_QUOTES = "\"'`"
_NOT = ("@", "macro.")
"""Tapes play no tapes, and do not end their own recording."""
_RECALLED = {"up", "down", "tab", "shift+tab"}
"""Keys whose meaning in a prompt depends on what was typed before, and on what there is."""
_TYPED = ("app.prompt", "app.palette")
"""Commands with which others are called by their names."""


@dataclass(slots=True)
class _Entry:
    """A key, and what it came to."""

    at: float
    """`time.monotonic()`."""
    key: str
    text: str = ""
    """What it writes; empty where it writes nothing."""
    event: events.Key | None = None
    lines: list[str] = field(default_factory=list)
    """The commands that it did, where it did some."""


class Recorder:
    """What has been done since the recording began."""

    def __init__(self, register: str, view: str) -> None:
        """`view` is the screen that it begins with."""
        self.register = register
        self._view = view
        self._entries: list[_Entry] = []

    @property
    def count(self) -> int:
        """Steps, but for the first, which turns to the screen that it began with."""
        return sum(not line.startswith("#") for line in self._lines())

    def key(self, event: events.Key) -> None:
        """A key has come; what it does is told later by `commands`, if it does one."""
        character = event.character if event.is_printable and event.character else ""
        if not character:
            try:
                key_name(event.key)
            except UsageError:
                return  # None that a tape could press.
        self._entries.append(_Entry(time.monotonic(), event.key, character, event))

    def paste(self, text: str) -> None:
        """A text was pasted."""
        at = time.monotonic()
        for number, line in enumerate(text.splitlines()):
            if number:
                self._entries.append(_Entry(at, "enter"))
            for c in line:
                if c == "\t":
                    self._entries.append(_Entry(at, "tab"))
                elif c.isprintable():
                    self._entries.append(_Entry(at, c, c))

    def commands(self, event: events.Key, lines: tuple[str, ...]) -> None:
        """Commands are done, for a key."""
        for entry in self._entries:
            if entry.event is event:
                entry.lines += lines

    def called(self, lines: tuple[str, ...]) -> None:
        """Commands are done that were called by their names: they stand in the place of what
        opened the line or the palette, and was typed there."""
        begin = self._asked()
        if begin and any(line in _TYPED for line in self._entries[begin - 1].lines):
            del self._entries[begin:]
            self._entries[begin - 1].lines = list(lines)

    def answered(self, text: str) -> None:
        """A prompt's answer is taken: it is typed where it came from elsewhere than the keys."""
        keys = [entry.key for entry in self._entries[self._asked() :]]
        if not _RECALLED.isdisjoint(keys):
            self.put(text)
            self._entries.append(_Entry(self._entries[-1].at, "enter"))

    def put(self, text: str, left: int = 0) -> None:
        """A prompt has this text now, with the cursor so many characters before its end; what was
        pressed there stands for nothing else."""
        if begin := self._asked():
            at = self._entries[-1].at
            keys = [_Entry(at, "ctrl+u"), *(_Entry(at, c, c) for c in text)]
            self._entries[begin:] = [*keys, *(_Entry(at, "left") for _ in range(left))]

    def _asked(self) -> int:
        """Where the keys begin that went into the prompt; 0 where that is not known."""
        places = [place for place, entry in enumerate(self._entries) if entry.lines]
        return places[-1] + 1 if places else 0

    def refused(self, event: events.Key) -> None:
        """What a key should have done was not done."""
        self._entries = [entry for entry in self._entries if entry.event is not event]

    def text(self) -> str:
        """The tape."""
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
                lines.append(f"# {pause:.1f} s")
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
    """Add a key, or count the one before once more."""
    word, _, count = lines[-1].rpartition(" ") if lines else ("", "", "")
    if lines and lines[-1] == line:
        lines[-1] = f"{line} 2"
    elif word == line and count.isdigit():
        lines[-1] = f"{line} {int(count) + 1}"
    else:
        lines.append(line)


def _typed(text: str) -> list[str]:
    """Lines that type it: in quotes that are not in it, in parts where it has all kinds of them."""
    lines = []
    while text:
        quote = max(_QUOTES, key=lambda quote: (text + quote).index(quote))
        part = text[: (text + quote).index(quote)]
        lines.append(f"Type {quote}{part}{quote}")
        text = text[len(part) :]
    return lines
