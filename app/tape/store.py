"""Where tapes are found by name: the operator's settings, his registers, those that are shipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.config.paths import state_dir, write_private
from app.files import exists, expand
from app.tape.load import load, of_text, text_of
from app.tape.model import Tape
from bpf.errors import UsageError, did_you_mean

SUFFIX = ".tape"
_LIBRARY = Path(__file__).with_name("library")
_STDIN = Path("/dev/stdin")
_REGISTER = re.compile(r"[a-z]")


@dataclass(frozen=True, slots=True)
class TapeStore:
    """Tapes by name."""

    macros: Mapping[str, str]
    """Those of the settings: files by name."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """Those of the settings, that tapes may use."""

    def names(self) -> tuple[str, ...]:
        """All but registers: the operator's first."""
        return tuple(dict.fromkeys((*self.macros, *shipped())))

    def path(self, name: str) -> Path:
        """The file of a register's letter, of a name, or of a path. Raises UsageError."""
        if _REGISTER.fullmatch(name):
            return register(name)
        if name in self.macros:
            return expand(self.macros[name])
        if name in (known := shipped()):
            return known[name]
        # What looks like a path is one; its errors are those of a file.
        if name.endswith(SUFFIX) or "/" in name or Path(name).is_file():
            return Path(name)
        raise UsageError(f"there is no tape {name!r}", hint=did_you_mean(name, self.names()))

    def load(self, name: str) -> Tape:
        """Return the tape of that name. Raises UsageError, and TapeError with its mistakes."""
        path = self.path(name)
        if _REGISTER.fullmatch(name) and not exists(path):
            raise UsageError(f"nothing is recorded in register {name}")
        return load(path, self.filters)

    def given(self, name: str) -> Tape:
        """As `load`, for a command line, where `-` is standard input."""
        if name == "-":
            return of_text(text_of(_STDIN), str(_STDIN), self.filters)
        return self.load(name)


def shipped() -> dict[str, Path]:
    """The files of the tapes that come with probedeck, by name."""
    return {path.stem: path for path in sorted(_LIBRARY.glob(f"*{SUFFIX}"))}


def registers() -> dict[str, Path]:
    """The files of the registers that something is recorded in, by letter."""
    found = sorted(_directory().glob(f"[a-z]{SUFFIX}"))
    return {path.stem: path for path in found}


def register(letter: str) -> Path:
    """The file of a register. Raises UsageError for what is none."""
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
