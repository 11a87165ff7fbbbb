"""Parquet files, written by DuckDB: parts of some seconds, joined when their period is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from app.exporters.files.duck import connect, named
from app.exporters.files.options import Every
from app.exporters.files.parts import STAGED, clear, copy, join_parts
from app.exporters.files.table_files import Table, period_of, records_of, unique
from app.files import make_directory
from app.outputs.metrics import MetricOutput
from app.outputs.view import ColumnType, OutputColumn, OutputView, Part
from probes.flow.records import Array
from probes.snapshot import Item

PURPOSE = "the output parquet"
_TYPES = {
    ColumnType.INTEGER: "i8", ColumnType.UNSIGNED: "u8", ColumnType.FLOAT: "f8",
    ColumnType.TRUTH: "?",
}  # fmt: skip
_Column = tuple[str, ColumnType, Array]
"""Name, type and values."""
_LATE_S = 60
"""Rows of a period may come so long after its end."""
_PAUSE_S = 60.0
"""Between two looks for parts to join."""
_MEMORY = "256MB"


class ParquetFiles:
    """Writes Parquet files; another thread joins parts."""

    def __init__(self, directory: Path, every: Every, trouble: Callable[[str], None]) -> None:
        """`trouble` gets a sentence about parts that cannot be joined, in another thread.

        Raises UsageError if DuckDB is missing.
        """
        self._directory = directory
        self._every: Every = every
        self._trouble = trouble
        # With one thread DuckDB works in the caller's: it has the user's rights there.
        self._database = connect(PURPOSE, threads=1, memory_limit=_MEMORY)
        self._joiner = connect(PURPOSE, threads=1, memory_limit=_MEMORY)
        """The connection of the thread that joins parts."""
        self._joining: threading.Thread | None = None
        self._next_look = 0.0
        self._closing = False

    def begin(self) -> None:
        clear(self._directory)

    def write(self, table: Table, items: Sequence[Item], period: str, utc_ns: int) -> None:
        directory = self._directory / table.name / period
        make_directory(directory)
        name = f"{unique(utc_ns)}.parquet"
        query = self._offer(table, items)
        try:
            copy(self._database, query, self._directory / STAGED / name, directory / name)
        finally:
            self._database.unregister("offered")

    def _offer(self, table: Table, items: Sequence[Item]) -> str:
        """Make the rows of items a table of the database; return its query."""
        columns = _metric_columns if isinstance(table, MetricOutput) else _view_columns
        found: dict[str, Array] = {}
        typed = []
        for number, (name, type_, values) in enumerate(columns(table, items)):
            # Names in C may differ by case only, which DuckDB ignores.
            found[f"c{number}"] = values
            typed.append(f"try_cast(c{number} as {type_}) as {named(name)}")
        self._database.register("offered", found)
        return f"select {', '.join(typed)} from offered"

    def due(self) -> None:
        now = time.monotonic()
        if self._every == "window" or now < self._next_look:
            return
        if self._joining is None or not self._joining.is_alive():
            self._next_look = now + _PAUSE_S
            self._joining = threading.Thread(target=self._join, name="join parts", daemon=True)
            self._joining.start()

    def _join(self) -> None:
        current = period_of(self._every, time.time_ns() - _LATE_S * 10**9)
        for text in join_parts(self._directory, current, self._joiner):
            if not self._closing:
                self._trouble(text)

    def close(self) -> None:
        self._closing = True
        if self._joining is not None:
            # The next run joins what this one leaves.
            self._joiner.interrupt()
            self._joining.join()
        self._joiner.close()
        self._database.close()


def _view_columns(table: Table, items: Sequence[Item]) -> Iterator[_Column]:
    assert isinstance(table, OutputView)
    parts = [part for item in items for part in table.parts(item)]
    rows = sum(len(part.rows) for part in parts)
    yield "schema", ColumnType.TEXT, _objects([table.schema] * rows)
    for column in table.columns:
        yield column.name, column.type, array_of(column, parts)


def _metric_columns(table: Table, items: Sequence[Item]) -> Iterator[_Column]:
    assert isinstance(table, MetricOutput)
    rows = [tuple(row) for item in items for row in records_of(table, item, nested=False)]
    values = zip(*rows, strict=True) if rows else repeat(())
    for name, type_, each in zip(table.header, table.types, values, strict=False):
        yield name, type_, _typed(type_, each)


def array_of(column: OutputColumn, parts: Sequence[Part]) -> Array:
    """Return the values of a column; if some are empty, of dtype object."""
    if column.is_plain and parts:
        arrays = [part.rows[column.field or column.name] for part in parts]
        return np.concatenate([each.astype(each.dtype.newbyteorder("=")) for each in arrays])
    values = [value for part in parts for value in islice(column.of(part), len(part.rows))]
    return _typed(column.type, values)


def _typed(type_: ColumnType, values: Sequence[Any]) -> Array:
    """Return values as an array of their type; if some do not fit, of dtype object."""
    if type_ in _TYPES and None not in values:
        try:
            return np.array(values, _TYPES[type_])
        except (ValueError, OverflowError):
            pass  # such as an empty text for no number
    if type_ is ColumnType.TEXT:
        # An enumerator without a name is a number.
        values = [value if value is None else str(value) for value in values]
    return _objects(values)


def _objects(values: Sequence[Any]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found
