"""Tapes by name: from the settings, from registers, and from the library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.config.paths import state_dir, write_private
from app.files import exists, expand
from app.tape.load import STDIN, load, of_text, text_of
from app.tape.model import Tape
from bpf.errors import UsageError, did_you_mean

SUFFIX = ".tape"
_LIBRARY = Path(__file__).with_name("library")
_REGISTER = re.compile(r"[a-z]")


@dataclass(frozen=True, slots=True)
class TapeStore:
    """Tapes by name; `files` and `filters` are the settings', by name; `variables` are of --set."""

    files: Mapping[str, str]
    filters: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return all names but registers; names from the settings come first."""
        return tuple(dict.fromkeys((*self.files, *shipped())))

    def path(self, name: str) -> Path:
        """Return the file of a register's letter, a name or a path. Raises UsageError."""
        if _REGISTER.fullmatch(name):
            return register(name)
        if name in self.files:
            return expand(self.files[name])
        if name in (known := shipped()):
            return known[name]
        # A path; a missing file is an error of loading.
        if name.endswith(SUFFIX) or "/" in name or Path(name).is_file():
            return Path(name)
        raise UsageError(f"there is no tape {name!r}", hint=did_you_mean(name, self.names()))

    def load(self, name: str) -> Tape:
        """Return the tape of that name. Raises UsageError, and TapeError with its mistakes."""
        path = self.path(name)
        if _REGISTER.fullmatch(name) and not exists(path):
            raise UsageError(f"nothing is recorded in register {name}")
        return load(path, self.filters, self.variables)

    def given(self, name: str) -> Tape:
        """Load a tape from a command line, where `-` is standard input."""
        if name == "-":
            return of_text(text_of(STDIN), str(STDIN), self.filters, self.variables)
        return self.load(name)


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_LIBRARY.glob(f"*{SUFFIX}"))}


def registers() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_directory().glob(f"[a-z]{SUFFIX}"))}


def register(letter: str) -> Path:
    """Return the file of a register. Raises UsageError for an invalid letter."""
    if not _REGISTER.fullmatch(letter):
        raise UsageError(f"there is no register {letter!r}", hint="registers are a to z")
    return _directory() / f"{letter}{SUFFIX}"


def record(letter: str, text: str) -> Path:
    """Store a tape under a letter. Returns its file, private to the user. Raises ProbedeckError."""
    path = register(letter)
    write_private(path, text)
    return path


def _directory() -> Path:
    return state_dir() / "registers"
