"""What was typed, by what a terminal sends: where Escape ends and another key begins.

Textual's parser takes what follows Escape within a tenth of a second for one key with it: so Escape
and 5, from fast fingers or from a link that brings them together, are `∞`, and Escape and / are /.
And it takes what follows Escape in what is pasted for keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.keys import _character_to_key
from textual.message import Message

_NO_SEQUENCE = r"[ -MQ-WYZ`ac-eg-~]"
"""What no sequence of a terminal has after Escape; b and f are steps of a word."""
_ALT = re.compile(f"\x1b({_NO_SEQUENCE})")
_ALONE = re.compile(_NO_SEQUENCE)
_PASTE = "\x1b[200~"
_MARKS = re.compile(r"(\x1b\[20[01]~)")
"""Before and after what is pasted."""
_MARK_BEGUN = re.compile(r"\x1b(?:\[(?:2(?:0(?:1)?)?)?)?\Z")


class Keyboard:
    """Textual's parser, but what comes after Escape by itself is another key, and what comes with
    it is that key with alt."""

    def __init__(self, *, debug: bool) -> None:
        """`debug` has the parser write down what it reads."""
        self._parser = XTermParser(debug)
        self._escape = self._pasting = False
        self._rest = ""
        """The end of what was pasted until now, which may be the begun mark of its end."""

    @property
    def waiting(self) -> bool:
        """Whether `tick` may come to more."""
        return self._parser._timeout_time is not None

    def feed(self, text: str) -> Iterator[Message]:
        """What `text`, which is not empty and was read at once, means; ValueError or OverflowError
        for numbers that no terminal sends."""
        text, self._rest = self._rest + text, ""
        for place, part in enumerate(_MARKS.split(text)):
            if place % 2:
                self._pasting = part == _PASTE
                self._escape = False
                yield from self._parser.feed(part)
            elif self._pasting:
                begun = _MARK_BEGUN.search(part)
                self._rest = begun.group() if begun is not None else ""
                yield from self._pasted(part.removesuffix(self._rest))
            else:
                yield from self._typed(part)

    def _pasted(self, text: str) -> Iterator[Message]:
        if plain := text.replace("\x1b", ""):
            yield from self._parser.feed(plain)

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
        """What it means that nothing more has come until now."""
        yield from self._parser.tick()
        self._escape = self._escape and self.waiting


def _name_of(character: str) -> str:
    return f"shift+{character.lower()}" if character.isupper() else _character_to_key(character)
