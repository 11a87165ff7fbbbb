"""Where an operator's own files are, by the XDG rules, and how they are read and written.

Under sudo they are those of who called sudo. They are then opened with his rights and not with
root's: what he could not read or write himself, this does not read or write for him, wherever a
symbolic link of his leads; and what is made is his.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EPERM
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import BinaryIO

from bpf.errors import DeckError, UsageError

NAME = "probedeck"
_MOST = 1 << 20
"""Bytes of a file that is read: far more than any of an operator's has."""


@dataclass(frozen=True, slots=True)
class Invoker:
    """Who runs the program: under sudo who called that."""

    uid: int
    gid: int
    home: Path
    by_sudo: bool = False
    """Whether he is somebody else than whom the process runs as."""


def invoker() -> Invoker:
    """Who runs the program, and his home: $HOME; under sudo, which may set or keep HOME as it was
    configured to, the one in the user database."""
    uid = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and uid.isascii() and uid.isdigit() and int(uid):
        with suppress(KeyError, OverflowError):
            entry = pwd.getpwuid(int(uid))
            return Invoker(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), by_sudo=True)
    return Invoker(os.geteuid(), os.getegid(), Path(os.path.expanduser("~")))


def config_file() -> Path:
    """`$XDG_CONFIG_HOME/probedeck/config.toml`; it need not be there."""
    return _base("XDG_CONFIG_HOME", ".config") / NAME / "config.toml"


def state_dir() -> Path:
    """`$XDG_STATE_HOME/probedeck`, for what is remembered from one time to the next: history,
    registers, layouts. It need not be there."""
    return _base("XDG_STATE_HOME", ".local/state") / NAME


def data_dir() -> Path:
    """`$XDG_DATA_HOME/probedeck`, for what is kept: recordings. It need not be there."""
    return _base("XDG_DATA_HOME", ".local/share") / NAME


def _base(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "")
    # A relative one is to be ignored, says the XDG specification.
    return Path(given) if given.startswith("/") else invoker().home / usual


@contextmanager
def as_invoker() -> Iterator[None]:
    """Files are opened, made and renamed with the rights of who called sudo, by this thread only.

    Not to be left suspended: no `await` and no `yield` within.
    """
    who = invoker()
    if not who.by_sudo:
        yield
        return
    # Unlike seteuid these are of one thread; the others go on asking the kernel as root. Going
    # to another user's also lets go of root's right to pass over permissions.
    libc = ctypes.CDLL(None)
    group = libc.setfsgid(who.gid)
    user = libc.setfsuid(who.uid)
    try:
        yield
    finally:
        libc.setfsuid(user)
        libc.setfsgid(group)


def read_private(path: Path) -> str | None:
    """The text of an operator's own file; None where there is none.

    Raises DeckError for one that cannot be read, or that under sudo is not to be trusted, and
    UsageError for one that is no text.
    """
    try:
        with as_invoker(), open(path, "rb") as file:
            _trust(os.fstat(file.fileno()))
            return text_of(file, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DeckError(f"{path} cannot be read: {error.strerror}") from None


def text_of(file: BinaryIO, path: Path) -> str:
    """All that it holds. Raises UsageError for what is too much or no UTF-8, and OSError."""
    held = file.read(_MOST + 1)
    if len(held) > _MOST:
        raise UsageError(f"{path} is larger than {_MOST >> 20} MiB")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = held.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is no UTF-8 text") from None


def _trust(status: os.stat_result) -> None:
    """OSError where others than the invoker, or root, could have put that there."""
    who = invoker()
    if not who.by_sudo:
        return
    if status.st_uid not in (who.uid, 0):
        raise PermissionError(EPERM, "it belongs to somebody else than who called sudo")
    if status.st_mode & (S_IWGRP | S_IWOTH):
        raise PermissionError(EPERM, "others than its owner may write it")


def write_private(path: Path, text: str) -> None:
    """Put `text` in the place of an operator's own file, at once or not at all.

    It is of mode 0600, directories that are made for it of 0700. Raises DeckError where that is
    not possible.
    """
    import tempfile  # shutil, random and more, which the first paint does without

    try:
        with as_invoker():
            _make(path.parent)
            number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with open(number, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise DeckError(f"{path} cannot be written: {error.strerror}") from None


def _make(directory: Path) -> None:
    """Unlike mkdir(parents=True), which has that mode for the last one only."""
    if not directory.is_dir():
        _make(directory.parent)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
