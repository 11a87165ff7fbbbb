"""Opening files that the user names: regular ones, and for root none that others may write."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from dataclasses import dataclass
from errno import EINVAL, EPERM
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH

PROGRAM = Path(__file__).parents[2]
"""The folder of probedeck: whoever may write there is root's equal anyway."""


@dataclass(frozen=True, slots=True)
class Invoker:
    """The user of this process; under sudo the caller of sudo."""

    uid: int
    gid: int
    home: Path
    by_sudo: bool = False
    """The process runs as another account than the user's."""


def invoker() -> Invoker:
    """Return the user."""
    # Under sudo, the home directory comes from the user database: sudo may set or keep HOME.
    uid = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and uid.isascii() and uid.isdigit() and int(uid):
        with suppress(KeyError, OverflowError):
            entry = pwd.getpwuid(int(uid))
            return Invoker(entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), by_sudo=True)
    return Invoker(os.geteuid(), os.getegid(), Path(os.path.expanduser("~")))


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, as `opener` of `open`. Raises OSError for any other, without a wait.

    The open of a pipe would wait for its other end. `open` itself refuses a directory.
    """
    found = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(found).st_mode
    if S_ISREG(mode) or S_ISDIR(mode):
        return found
    os.close(found)
    raise OSError(EINVAL, "it is no regular file", path)


def check_regular(*paths: str) -> None:
    """Raise OSError for each file that OpenSSL would wait for; an empty path is no file."""
    for path in filter(None, paths):
        os.close(open_regular(path, os.O_RDONLY))


def open_trusted(path: str, flags: int) -> int:
    """Open a file whose content root obeys, as `opener` of `open`. Raises OSError.

    If this process is root's, other accounts than root and the user must not be able to write it.
    """
    found = open_regular(path, flags)
    status = os.fstat(found)
    foreign = status.st_uid not in (invoker().uid, 0)
    if (
        not (foreign or status.st_mode & (S_IWGRP | S_IWOTH))
        or os.geteuid()
        or Path(f"/proc/self/fd/{found}").resolve().is_relative_to(PROGRAM)
    ):
        return found
    os.close(found)
    why = f"others than its owner may write it; chmod go-w {path}"
    if foreign:
        why = f"it belongs to another account than root and the user; chown root {path}"
    raise PermissionError(EPERM, why, path)


def read_secret(path: str, hidden: int = 0o077) -> bytes:
    """Return a trusted file of 4096 bytes at most, whose mode has none of the bits `hidden`.

    Raises OSError.
    """
    with open(path, "rb", opener=open_trusted) as file:
        if os.fstat(file.fileno()).st_mode & hidden:
            raise PermissionError(EPERM, f"others can read it; chmod 600 {path}", path)
        return file.read(4096).strip()
