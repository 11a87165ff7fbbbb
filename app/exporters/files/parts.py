"""Parquet files that appear whole, and the parts of a period as one file, by DuckDB (optional).

A period's folder, `TABLE/20260131T12/`, has parts of some seconds, and later one file. Files are
made in `.staged/` beside the tables. Each becomes visible by one rename, and the joined file takes
the place of its parts by an exchange of folders, so a reader sees each row once.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.files import as_invoker
from bpf.errors import UsageError
from bpf.machine import LIBC, checked

REQUIREMENT = "duckdb>=2,<3"


def connect(purpose: str, **config: str | int | bool) -> Any:
    """Return a connection to a database in memory. Raises UsageError if DuckDB is missing."""
    try:
        import duckdb
    except ImportError:
        # The environments of a deb and of uv have no pip.
        pip = f"{sys.executable} -m pip" if find_spec("pip") else f"pip --python {sys.executable}"
        raise UsageError(
            f"{purpose} needs DuckDB, which is not installed",
            hint=f"{pip} install '{REQUIREMENT}'",
        ) from None
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    return duckdb.connect(":memory:", config={**offline, **config})


def quoted(text: object) -> str:
    """Return a text as a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def named(name: str) -> str:
    """Return a name of SQL."""
    return '"' + name.replace('"', '""') + '"'


STAGED = ".staged"
_SUFFIX = ".parquet"
_AT_FDCWD = -100
_EXCHANGE = 2
"""RENAME_EXCHANGE of <linux/fs.h>."""


def clear(directory: Path) -> None:
    """Remove what a killed run has left behind."""
    with as_invoker():
        shutil.rmtree(directory / STAGED, ignore_errors=True)


def copy(database: Any, query: str, staged: Path, place: Path) -> None:
    """Write the rows of a query into a Parquet file at `place`, by way of `staged`.

    Raises OSError.
    """
    with as_invoker():
        staged.parent.mkdir(parents=True, exist_ok=True)
        try:
            database.execute(
                f"copy ({query}) to {quoted(staged)} (format parquet, compression zstd)"
            )
            with open(staged, "rb") as file:
                os.fsync(file.fileno())
            os.rename(staged, place)
        except Exception as error:
            staged.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise
            raise OSError(0, str(error).partition("\n")[0], str(place)) from None


def join_parts(directory: Path, current: str, database: Any) -> Iterator[str]:
    """Join the parts of all periods before `current`; yield a sentence about each failure."""
    with as_invoker():
        folders = sorted(each for each in directory.glob("[!.]*/*") if each.is_dir())
    for folder in folders:
        if folder.name < current:
            try:
                _join(folder, directory / STAGED, database)
            except OSError as error:
                table = folder.parent.name
                yield f"the parts of {table} {folder.name} stay apart: {error.strerror}"


def _join(folder: Path, staging: Path, database: Any) -> None:
    with as_invoker():
        parts = sorted(folder.glob(f"*{_SUFFIX}"))
        if len(parts) < 2:
            return
        joined = staging / f"{folder.parent.name}-{folder.name}"
        shutil.rmtree(joined, ignore_errors=True)
        joined.mkdir(parents=True)
    names = ", ".join(map(quoted, parts))
    name = f"{folder.name}{_SUFFIX}"
    query = f"select * from read_parquet([{names}], union_by_name = true)"
    copy(database, query, staging / f"{joined.name}{_SUFFIX}", joined / name)
    with as_invoker():
        _exchange(joined, folder)
        # From here on the parts are in `joined`, perhaps with one that has come meanwhile.
        for late in set(joined.glob(f"*{_SUFFIX}")) - {joined / part.name for part in parts}:
            os.rename(late, folder / late.name)
        shutil.rmtree(joined)


def _exchange(one: Path, other: Path) -> None:
    """Give two folders each other's names at once. Raises OSError where that is impossible."""
    done = LIBC.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _EXCHANGE)
    checked(done, "folders cannot be exchanged", str(other))
