"""TOML with the lines of its keys, and values in TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bpf.errors import UsageError, printable
from probes.config.positions import Keys, Position, positions

_MOST_NAMED = 80
"""Most characters of a key in an error."""


@dataclass(frozen=True)
class TomlDocument:
    """A parsed file."""

    path: Path
    data: Mapping[str, Any]
    text: str

    @classmethod
    def of(cls, path: Path, text: str) -> TomlDocument:
        """Parse a text. Raises UsageError with the line, but without the text of the file."""
        import tomllib

        try:
            return cls(path, tomllib.loads(text), text)
        except RecursionError:
            raise UsageError(f"{path}: this is nested too deep") from None
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
            line = f":{place[1]}" if place and place[1] else ""
            column = f"at column {place[2]}" if place and place[2] else "at its end"
            what = f"{path}{line}: invalid TOML {column}"
            raise UsageError(what, hint=_reason(error)) from None

    @cached_property
    def _places(self) -> Mapping[Keys, Position]:
        return positions(self.text, toml=True)

    def place(self, keys: Keys) -> str:
        """Return `FILE:LINE` of a key, or of the table around it."""
        for end in range(len(keys), 0, -1):
            if found := self._places.get(keys[:end]):
                line = self.text.count("\n", 0, found.key) + 1
                return f"{self.path}:{line}"
        return str(self.path)

    def wrong(self, keys: Keys, error: UsageError) -> UsageError:
        """Return the error with its place: `FILE:3: [ui] theme: is no text`.

        Tables of an array are numbered from 0 in `keys`, and from 1 in the message.
        """
        *above, key = (str(each + 1) if isinstance(each, int) else each for each in keys)
        section = ".".join(above)
        name = f"[{section}] {key}" if section else f"[{key}]"
        place = f"{self.place(keys)}: {printable(name)[:_MOST_NAMED]}"
        return UsageError(f"{place}: {error.message}", hint=error.hint)


def _reason(error: ValueError) -> str:
    """Return the parser's message without text of the file, which may be a secret."""
    words = str(error).split(" (at ")[0]
    if words.startswith(("Cannot declare", "Cannot overwrite", "Duplicate", "Cannot mutate")):
        return "it is defined twice"
    return words[:1].lower() + words[1:] if words.isascii() and words.isprintable() else ""


def dumped(value: object) -> str:
    """Return a text, number, bool or list in TOML."""
    if isinstance(value, str):
        # As in JSON, but TOML also escapes DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dumped, value))}]"
    return str(value).lower()
