"""TOML with the lines of its keys, and values in TOML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpf.errors import UsageError, printable

Keys = tuple[str, ...]
_KEY = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_MOST_NAMED = 80
"""Most characters of a key in an error."""
_ENTRY = re.compile(rf"\s*({_DOTTED})\s*=")


@dataclass(frozen=True, slots=True)
class TomlDocument:
    """A parsed file."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[Keys, int]

    @classmethod
    def of(cls, path: Path, text: str) -> TomlDocument:
        """Parse a text. Raises UsageError with the line, but without the text of the file."""
        import tomllib

        try:
            return cls(path, tomllib.loads(text), _lines(text))
        except RecursionError:
            raise UsageError(f"{path}: this is nested too deep") from None
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
            line = f":{place[1]}" if place and place[1] else ""
            column = f"at column {place[2]}" if place and place[2] else "at its end"
            what = f"{path}{line}: invalid TOML {column}"
            raise UsageError(what, hint=_reason(error)) from None

    def place(self, keys: Keys) -> str:
        """Return `FILE:LINE` of a key, or of the table around it."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.lines:
                return f"{self.path}:{self.lines[keys[:end]]}"
        return str(self.path)

    def wrong(self, keys: Keys, error: UsageError) -> UsageError:
        """Return the error with its place: `FILE:3: [ui] theme: is no text`."""
        section, key = ".".join(keys[:-1]), keys[-1]
        name = f"[{section}] {key}" if section else f"[{key}]"
        place = f"{self.place(keys)}: {printable(name)[:_MOST_NAMED]}"
        return UsageError(f"{place}: {error.message}", hint=error.hint)


def _reason(error: ValueError) -> str:
    """Return the parser's message without text of the file, which may be a secret."""
    words = str(error).split(" (at ")[0]
    if words.startswith(("Cannot declare", "Cannot overwrite", "Duplicate", "Cannot mutate")):
        return "it is defined twice"
    return words[:1].lower() + words[1:] if words.isascii() and words.isprintable() else ""


def _lines(text: str) -> Mapping[Keys, int]:
    """Return the first line of each key. Lines of a multi-line text can look like keys."""
    found: dict[Keys, int] = {}
    header: Keys = ()
    tables: Counter[Keys] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if begins := _HEADER.match(line):
            header = tuple(map(_bare, re.findall(_KEY, begins[1])))
            found.setdefault(header, number)
            if line.lstrip().startswith("[["):
                # Tables of an array are numbered from 1.
                tables[header] += 1
                header = (*header, str(tables[header]))
                found[header] = number
        elif entry := _ENTRY.match(line):
            keys = (*header, *map(_bare, re.findall(_KEY, entry[1])))
            for end in range(len(header) + 1, len(keys) + 1):
                found.setdefault(keys[:end], number)
    return found


def _bare(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    # Most keys in quotation marks are JSON texts. Another one gets no line.
    try:
        return str(json.loads(key)) if key.startswith('"') else key
    except ValueError:
        return key


def dumped(value: object) -> str:
    """Return a text, number, bool or list in TOML."""
    if isinstance(value, str):
        # As in JSON, but TOML also escapes DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dumped, value))}]"
    return str(value).lower()
