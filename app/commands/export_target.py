"""Files that the console exports to: their suffix is the format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from app.files import expand
from app.outputs.formats import FORMATS
from bpf.errors import UsageError, did_you_mean

DRAWN = ("svg", "png")
"""Suffixes of pictures."""
TEXT = "txt"
PICTURES = (*DRAWN, TEXT)
"""Suffixes of files with the whole screen."""
PICTURE_NAME = "probedeck-VIEW-TIME.svg"
VALUES = tuple(each.name for each in FORMATS.values() if each.in_console)
"""Suffixes of files with the values of a table."""
SUFFIXES = (*VALUES, *PICTURES)
"""Suffixes of files with a table, or a picture of it."""


def target(file: str, suffixes: Collection[str] = SUFFIXES) -> Path:
    """Return the path of a file to write. Raises UsageError for an unknown suffix."""
    path = expand(file)
    if suffix_of(path) not in suffixes:
        what = f"no format is called {path.suffix}" if path.suffix else "a suffix is missing"
        hint = did_you_mean(path.suffix.lower(), [f".{suffix}" for suffix in suffixes])
        raise UsageError(f"{file}: {what}", hint=hint)
    return path


def suffix_of(path: Path) -> str:
    """Return the suffix without its dot, in lower case."""
    return path.suffix.removeprefix(".").lower()
