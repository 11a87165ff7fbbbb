"""DuckDB, which is optional."""

from __future__ import annotations

import sys
from typing import Any

from bpf.errors import UsageError

REQUIREMENT = "duckdb>=2,<3"


def connect(purpose: str, **config: str | int | bool) -> Any:
    """Return a connection to a database in memory. Raises UsageError if DuckDB is missing."""
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            f"{purpose} needs DuckDB, which is not installed",
            hint=f"{sys.executable} -m pip install '{REQUIREMENT}'",
        ) from None
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    return duckdb.connect(":memory:", config={**offline, **config})


def quoted(text: object) -> str:
    """Return a text as a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def named(name: str) -> str:
    """Return a name of SQL."""
    return '"' + name.replace('"', '""') + '"'
