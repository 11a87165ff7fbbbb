"""Keys from a terminal's bytes: the end of Escape and the start of the next key.

Textual's parser joins Escape with bytes that follow within a tenth of a second: Escape and 5, from
fast fingers or a slow link, become `∞`, and Escape and / become /. It also takes Escape sequences
in pasted text for keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.keys import _character_to_key
from textual.message import Message

_NO_SEQUENCE = r"[ -MQ-WYZ`ac-eg-~]"
"""Characters that follow Escape in no terminal sequence; b and f are word steps."""
_ALT = re.compile(f"\x1b({_NO_SEQUENCE})")
_ALONE = re.compile(_NO_SEQUENCE)
_PASTE = "\x1b[200~"
_MARKS = re.compile(r"(\x1b\[20[01]~)")
"""Marks before and after pasted text."""
_MARK_BEGUN = re.compile(r"\x1b(?:\[(?:2(?:0(?:1)?)?)?)?\Z")


class Keyboard:
    """Textual's parser, but a character after Escape is a separate key, and a character together
    with Escape is that key with alt."""

    def __init__(self, *, debug: bool) -> None:
        self._parser = XTermParser(debug)
        self._escape = self._pasting = False
        self._rest = ""
        """End of the pasted text so far, which may be a part of the end mark."""

    @property
    def waiting(self) -> bool:
        """Whether `tick` may yield more events."""
        return self._parser._timeout_time is not None

    def feed(self, text: str) -> Iterator[Message]:
        """Yield the events of `text`, not empty and read at once.

        Raises ValueError or OverflowError for numbers that no terminal sends."""
        text, self._rest = self._rest + text, ""
        for place, part in enumerate(_MARKS.split(text)):
            if place % 2:
                self._pasting = part == _PASTE
                self._escape = False
                yield from self._parser.feed(part)
            elif self._pasting:
                begun = _MARK_BEGUN.search(part)
                self._rest = begun.group() if begun is not None else ""
                if plain := part.removesuffix(self._rest).replace("\x1b", ""):
                    yield from self._parser.feed(plain)
            else:
                yield from self._typed(part)

    def _typed(self, text: str) -> Iterator[Message]:
        for place, part in enumerate(_ALT.split(text)):
            if not part:
                continue
            if self._escape and (place % 2 or _ALONE.match(part)):
                self._parser._timeout_time = 0.0
                yield from self._parser.tick()
            if place % 2:
                yield Key(f"alt+{_name_of(part)}", part)
            else:
                yield from self._parser.feed(part)
            self._escape = not place % 2 and part.endswith("\x1b")

    def tick(self) -> Iterator[Message]:
        """Yield events that are complete because nothing followed in time."""
        yield from self._parser.tick()
        self._escape = self._escape and self.waiting


def _name_of(character: str) -> str:
    return f"shift+{character.lower()}" if character.isupper() else _character_to_key(character)
