"""TOML as operators write it, with the lines of its keys; and texts as TOML has them."""

from __future__ import annotations

import json
import re
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
"""Characters of a key in an error."""
_ENTRY = re.compile(rf"\s*({_DOTTED})\s*=")


@dataclass(frozen=True, slots=True)
class TomlDocument:
    """A file that was read."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[Keys, int]

    @classmethod
    def of(cls, path: Path, text: str) -> TomlDocument:
        """Raises UsageError for what is no TOML, with the line and nothing of what is in it."""
        import tomllib

        try:
            return cls(path, tomllib.loads(text), _lines(text))
        except RecursionError:
            raise UsageError(f"{path}: this is nested too deep") from None
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
            line = f":{place[1]}" if place and place[1] else ""
            column = f", column {place[2]}" if place and place[2] else ", at its end"
            what = f"{path}{line}: this is no TOML{column}"
            raise UsageError(what, hint=_reason(error)) from None

    def place(self, keys: Keys) -> str:
        """`FILE:LINE` of a key, or of what it is in."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.lines:
                return f"{self.path}:{self.lines[keys[:end]]}"
        return str(self.path)

    def wrong(self, keys: Keys, error: UsageError) -> UsageError:
        """What is wrong, and where: `FILE:3: [ui] theme: is no text`."""
        section, key = ".".join(keys[:-1]), keys[-1]
        name = f"[{section}] {key}" if section else f"[{key}]"
        place = f"{self.place(keys)}: {printable(name)[:_MOST_NAMED]}"
        return UsageError(f"{place}: {error.message}", hint=error.hint)


def _reason(error: ValueError) -> str:
    """What the parser says, without what is in the file: that may be somebody's secret."""
    words = str(error).split(" (at ")[0]
    if words.startswith(("Cannot declare", "Cannot overwrite", "Duplicate", "Cannot mutate")):
        return "this is there twice"
    return words[:1].lower() + words[1:] if words.isascii() and words.isprintable() else ""


def _lines(text: str) -> Mapping[Keys, int]:
    """Where each key is first. What a text of several lines has in it may be taken for one."""
    found: dict[Keys, int] = {}
    header: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        if begins := _HEADER.match(line):
            header = _parts(begins[1])
            found.setdefault(header, number)
        elif entry := _ENTRY.match(line):
            keys = (*header, *_parts(entry[1]))
            for end in range(len(header) + 1, len(keys) + 1):
                found.setdefault(keys[:end], number)
    return found


def _parts(dotted: str) -> Keys:
    return tuple(_bare(part) for part in re.findall(_KEY, dotted))


def _bare(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    # A key in quotation marks is nearly always one as JSON has it; one that is not has no line.
    try:
        return str(json.loads(key)) if key.startswith('"') else key
    except ValueError:
        return key


def dumped(value: object) -> str:
    """A text, a number, a truth or a list of them as TOML has it."""
    if isinstance(value, str):
        # As JSON has it, but for DEL, which is to be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dumped, value))}]"
    return str(value).lower()
