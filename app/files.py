"""The user's files: opened with the user's rights, and never through somebody else's link.

Under sudo the user is the caller of sudo. Two rules hold for every file that a user names:

- Files are opened, made and renamed with the rights of the user, not with root's: files that the
  user may not read or write are refused, and new files belong to the user.
- Nothing is written through a symbolic link at the end of a path. On the way there, links of root
  and of the user are followed (`/home -> /data/home`); another account's link is refused, since it
  could lead anywhere.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENOTDIR
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

from bpf.errors import UsageError
from bpf.machine import LIBC, system_calls
from probes.config.trusted_file import Invoker as Invoker
from probes.config.trusted_file import invoker as invoker

_MOST_LINKS = 40
"""Links on the way to a file, as the kernel has it."""
_MODE = 0o666
"""Mode of a new file, less the umask."""
_DIRECTORY_MODE = 0o777
_KEPT = {"PATH": os.defpath, "TERM": "dumb", "LANG": "C.UTF-8"}
"""Variables that a program of the user inherits, with their usual values."""
_AT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def as_invoker() -> Iterator[None]:
    """Open, make and rename files with the rights of the user, in this thread only.

    The block must not be suspended: no `await` and no `yield` within.
    """
    who = invoker()
    if not who.by_sudo:
        yield
        return
    # Unlike seteuid these change one thread; the other threads stay root. The change to another
    # user's id also gives up root's capability to ignore permissions.
    groups = os.getgroups()
    _set_groups(_groups_of(who.uid))
    group = LIBC.setfsgid(who.gid)
    user = LIBC.setfsuid(who.uid)
    try:
        yield
    finally:
        LIBC.setfsuid(user)
        LIBC.setfsgid(group)
        _set_groups(groups)


@functools.cache
def _groups_of(uid: int) -> list[int]:
    account = pwd.getpwuid(uid)
    return os.getgrouplist(account.pw_name, account.pw_gid)


def _set_groups(groups: list[int]) -> None:
    given = (ctypes.c_uint32 * len(groups))(*groups)
    if LIBC.syscall(system_calls().setgroups, len(groups), given):
        raise OSError(ctypes.get_errno(), "the groups of the user cannot be set")


def expand(file: str | Path) -> Path:
    """Return the path with `~` as the user's home. Raises UsageError for `~NAME` of no account."""
    path = Path(file)
    if path.parts[:1] == ("~",):
        return invoker().home.joinpath(*path.parts[1:])
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(f"{file}: there is no such user") from None


def exists(path: Path) -> bool:
    """Whether the name is taken, also by a dangling link, as far as the user may know."""
    with as_invoker():
        return os.path.lexists(path)


def open_file(path: Path, flags: int, mode: int = _MODE) -> int:
    """Return a descriptor of a file. Raises OSError, also for a link."""
    with as_invoker():
        parent = _walk(path.parent, None)
        try:
            return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)
        except OSError as error:
            raise _explained(error, path) from None
        finally:
            os.close(parent)


def open_directory(path: Path, *, make: bool = False) -> int:
    """Return a descriptor of a directory. Missing ones are made if `make`. Raises OSError."""
    with as_invoker():
        found = _walk(path, _DIRECTORY_MODE if make else None)
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
        except OSError as error:
            raise _explained(error, path) from None
        finally:
            os.close(found)


def make_directory(path: Path) -> None:
    """Make a directory and the missing ones above it. Raises OSError."""
    with as_invoker():
        os.close(_walk(path, _DIRECTORY_MODE))


def write_atomic(
    path: Path,
    parts: Iterable[bytes],
    *,
    mode: int | None = None,
    directories: int | None = None,
    sync: bool = True,
) -> None:
    """Replace a file by `parts`, all or nothing. Raises OSError.

    A link of that name is replaced, and its target stays unchanged. Without `mode` a
    replaced file keeps its mode, and a new one gets the usual. `directories` is the mode of missing
    directories, which are made then. `sync`: whether the data reach the disk before the name does.
    """
    temporary = f".{path.name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with as_invoker():
        parent = _walk(path.parent, directories)
        try:
            number = os.open(temporary, flags, _MODE if mode is None else mode, dir_fd=parent)
        except BaseException:
            os.close(parent)
            raise
    try:
        with open(number, "wb") as file:
            if mode is None and (kept := _mode_of(path.name, parent)) is not None:
                os.fchmod(number, kept)
            file.writelines(parts)
            file.flush()
            if sync:
                os.fsync(number)
        with as_invoker():
            os.replace(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with as_invoker(), suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise
    finally:
        os.close(parent)


def _mode_of(name: str, parent: int) -> int | None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    return status.st_mode & 0o777 if S_ISREG(status.st_mode) else None


def _walk(path: Path, make: int | None) -> int:
    """Return an O_PATH descriptor; missing directories get mode `make`, if any. Raises OSError."""
    trusted = {0, os.geteuid(), invoker().uid}
    at = os.open("/" if path.is_absolute() else ".", _AT | os.O_DIRECTORY)
    names = [*reversed(path.parts)]
    links = 0
    try:
        while names:
            found = _enter(at, names.pop(), make)
            status = os.fstat(found)
            if S_ISLNK(status.st_mode):
                leads_to = Path(os.readlink("", dir_fd=found))
                os.close(found)
                links += 1
                if status.st_uid not in trusted or links > _MOST_LINKS:
                    words = "another account's symbolic link on the way is not followed"
                    raise OSError(ELOOP, words)
                names += reversed(leads_to.parts)
                continue
            os.close(at)
            at = found
            if not S_ISDIR(status.st_mode):
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
    except OSError as error:
        os.close(at)
        raise _explained(error, path) from None
    return at


def _enter(at: int, name: str, make: int | None) -> int:
    try:
        return os.open(name, _AT, dir_fd=at)
    except FileNotFoundError:
        if make is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, make, dir_fd=at)
    return os.open(name, _AT, dir_fd=at)


def _explained(error: OSError, path: Path) -> OSError:
    """Return the error with the whole path, and in plain words if a link is the cause."""
    words = error.strerror
    if error.errno == ELOOP and words == os.strerror(ELOOP):
        words = "it is a symbolic link, which is not followed"
    return OSError(error.errno, words, str(path))


def rights_of(who: Invoker) -> dict[str, Any]:
    """Return arguments of Popen for a program with the user's rights.

    Popen sets the groups first and the user last.
    """
    if not who.by_sudo:
        return {}
    groups = os.getgrouplist(pwd.getpwuid(who.uid).pw_name, who.gid)
    return {"user": who.uid, "group": who.gid, "extra_groups": groups}


def environment_of(who: Invoker) -> dict[str, str]:
    """Return the variables of such a program."""
    kept = {name: os.environ.get(name, usual) for name, usual in _KEPT.items()}
    try:
        user = pwd.getpwuid(who.uid).pw_name
    except KeyError:
        user = str(who.uid)
    return {**kept, "HOME": str(who.home), "USER": user}
