"""SQL over the tables of a directory, read only and with no other file in reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.exporters.files.parts import connect, named, quoted
from app.files import as_invoker, expand
from bpf.errors import UsageError

PURPOSE = "probedeck sql"
_READERS = {
    ".parquet": "read_parquet({}, union_by_name = true)",
    ".jsonl": "read_json({}, format = 'newline_delimited', union_by_name = true)",
    ".json": "read_json({}, format = 'array', union_by_name = true)",
    ".csv": "read_csv({}, header = true, union_by_name = true)",
}
"""Readers by the suffix of files; the first suffix of a table's files counts."""
_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query."""

    header: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    """Python's own values of DuckDB's types."""


@contextmanager
def asked(directory: str, query: str) -> Iterator[Answer]:
    """Run a query over the tables of a directory, until the block ends.

    Tables are the folders of the outputs `parquet:` and `jsonl:`, and the files of `run -o DIR`.
    Raises UsageError for a mistake in the query, for statements other than SELECT, and if the
    directory has no tables; also while rows are read.
    """
    with as_invoker():
        # DuckDB compares texts of paths.
        root = expand(directory).resolve()
        tables = _tables(root)
        # The threads of DuckDB inherit the user's rights here.
        database = connect(PURPOSE)
    import duckdb

    try:
        if not tables:
            hint = "give the DIR of --output parquet:DIR or jsonl:DIR, or of run -o DIR"
            raise UsageError(f"no tables in {directory}", hint=hint)
        with as_invoker():
            for name, source in tables.items():
                # A foreign file in the directory keeps nobody from the other tables.
                with suppress(duckdb.Error):
                    database.execute(f"create view {named(name)} as select * from {source}")
            for limit in (
                "TimeZone = 'UTC'",
                f"allowed_directories = [{quoted(root)}]",
                "enable_external_access = false",
                "lock_configuration = true",
            ):
                database.execute(f"set {limit}")
            statements = database.extract_statements(query)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise UsageError("a query is one SELECT", hint="tables are never changed")
            # This only binds the query; it runs below.
            bound = database.sql(query)
            names = tuple(bound.columns)
            database.execute(_without_zones(query, names, bound.types))
        yield Answer(names, _rows(database))
    except duckdb.Error as error:
        text = str(error).partition("\n")[0]
        raise UsageError(text, hint=f"tables: {', '.join(tables)}") from None
    finally:
        database.close()


def _tables(root: Path) -> dict[str, str]:
    """Return the source of each table in SQL, by the table's name. Raises UsageError."""
    if not root.is_dir():
        raise UsageError(f"no directory {root}")
    found: dict[str, str] = {}
    for suffix, reader in _READERS.items():
        patterns: dict[str, list[str]] = {}
        for each in sorted(root.iterdir()):
            if each.suffix == suffix and each.is_file():
                patterns[each.stem] = [str(each)]
            elif not each.name.startswith("."):
                inner = (f"{each.name}/*{suffix}", f"{each.name}/*/*{suffix}")
                patterns[each.name] = [f"{root}/{glob}" for glob in inner if any(root.glob(glob))]
        for name, files in patterns.items():
            if files and name not in found:
                found[name] = reader.format(f"[{', '.join(map(quoted, files))}]")
    return found


def _without_zones(query: str, names: Sequence[str], types: Sequence[object]) -> str:
    """Return a query whose times are UTC: Python's values of times with a zone need pytz."""
    if not any("TIME ZONE" in str(each) for each in types):
        return query
    columns = (
        f"#{number}{'::timestamp' if 'TIME ZONE' in str(kind) else ''} as {named(name)}"
        for number, (name, kind) in enumerate(zip(names, types, strict=True), 1)
    )
    return f"select {', '.join(columns)} from ({query.rstrip().rstrip(';')}\n)"


def _rows(database: Any) -> Iterator[tuple[Any, ...]]:
    while True:
        with as_invoker():
            rows = database.fetchmany(_AT_A_TIME)
        if not rows:
            return
        yield from rows
