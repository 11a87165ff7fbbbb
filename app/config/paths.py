"""The user's own files, at the places of the XDG specification.

`app.files` opens them with the user's privileges.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from app.files import as_invoker, expand, invoker, write_atomic
from bpf.errors import ProbedeckError, UsageError, printable
from probes.config.trusted_file import open_trusted

_MOST = 1 << 20
"""Most bytes of a file."""


def config_file() -> Path:
    """Return `$XDG_CONFIG_HOME/probedeck/config.toml`, which need not exist."""
    return _base("XDG_CONFIG_HOME", ".config") / "config.toml"


def state_dir() -> Path:
    """Return `$XDG_STATE_HOME/probedeck` (history, tapes, layouts), which need not exist."""
    return _base("XDG_STATE_HOME", ".local/state")


def data_dir() -> Path:
    """Return `$XDG_DATA_HOME/probedeck`, for recordings. It need not exist."""
    return _base("XDG_DATA_HOME", ".local/share")


def _base(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "")
    # The XDG specification ignores relative paths.
    return (Path(given) if given.startswith("/") else invoker().home / usual) / "probedeck"


def check_file_name(name: str, kind: str) -> None:
    """Raise UsageError for a name that no file of a `kind`, such as layout, can have."""
    if not re.fullmatch(r"[\w-][\w.-]{0,63}", name, re.ASCII):
        hint = "letters, digits, _, - and . can be in one"
        raise UsageError(f"{printable(name)!r} cannot be the name of a {kind}", hint=hint)


def check_tape(path: str) -> None:
    """Raise UsageError if a tape is no file."""
    if not os.path.isfile(path):
        raise UsageError("there is no such file", hint=f"looked for {path}")


def beside(origin: Path, name: str) -> str:
    """Return the path of a file that `origin` names: `~` is the user's home, and a relative path
    begins beside `origin`. Raises UsageError for `~NAME` of no account."""
    return os.path.normpath(origin.absolute().parent / expand(name))


def read_private(path: Path) -> str | None:
    """Return the text of the user's own file; None if it does not exist.

    Raises ProbedeckError if the file is not readable or not trusted, UsageError if it is no text.
    """
    try:
        with as_invoker(), open(path, "rb", opener=open_trusted) as file:
            return text_of(file, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ProbedeckError(f"{path} cannot be read: {error.strerror}") from None


def text_of(file: BinaryIO, path: Path) -> str:
    """Return the whole text. Raises UsageError for a large file or no UTF-8, and OSError."""
    held = file.read(_MOST + 1)
    if len(held) > _MOST:
        raise UsageError(f"{path} is larger than {_MOST >> 20} MiB")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = held.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is no UTF-8 text") from None


def write_private(path: Path, text: str) -> None:
    """Replace the user's own file, mode 0600, all or nothing. Raises ProbedeckError."""
    try:
        write_atomic(path, [text.encode()], mode=0o600, directories=0o700, sync=False)
    except OSError as error:
        raise ProbedeckError(f"{path} cannot be written: {error.strerror}") from None
