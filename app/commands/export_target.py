"""Files that the console exports to: their suffix is the format, and one rule replaces files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from app.files import exists, expand
from app.outputs.formats import FORMATS
from bpf.errors import UsageError, did_you_mean

OVERWRITE = "overwrite"
"""The word after a file's name that allows to replace it."""
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


class Overwriting:
    """Decides whether a file may be replaced.

    A prompt asks the user: enter again replaces the file. A whole command, as keys and tapes give
    it, must say `overwrite`. A source replaces the file that it wrote last.
    """

    def __init__(self) -> None:
        self._asked: Path | None = None
        """The file about which a prompt asked last."""
        self._written: dict[Path, object] = {}
        """The source of each file that was written."""

    def check(self, path: Path, told: str, *, prompt: bool, source: object = None) -> None:
        """Raise UsageError if the file must not be replaced yet. `told` is the word after the
        file. `prompt` says whether the command comes from one. A table has the source None."""
        place, again = path.absolute(), self._asked
        self._asked = None
        own = source is not None and self._written.get(place) == source
        if told == OVERWRITE or own or not exists(path):
            return
        if not prompt:
            hint = f"{OVERWRITE} after the file's name replaces it"
            raise UsageError(f"{path} exists and is left alone", hint=hint)
        if again != place:
            self._asked = place
            raise UsageError(f"there is one already, which enter again overwrites: {path}")

    def wrote(self, path: Path, source: object) -> None:
        """Remember which source wrote a file."""
        self._written[path.absolute()] = source
