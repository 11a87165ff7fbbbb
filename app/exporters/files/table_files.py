"""Files of tables, and how rows get into them. DuckDB writes Parquet: parts of some seconds, which
become one file when their period is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from app.exporters.files.options import Every
from app.exporters.files.parts import STAGED, clear, connect, copy, join_parts, named
from app.files import make_directory, open_file, write_atomic
from app.outputs.formats import Record, json_lines
from app.outputs.view import ColumnType, MetricOutput, OutputColumn, OutputView, Part
from bpf.arrays import Array
from probes.snapshot import Item, Snapshot

_PERIODS = {"hour": "%Y%m%dT%H", "day": "%Y%m%d"}
_NUMBERS = count(1)

Table = OutputView | MetricOutput
"""A built-in table, or the table of a metric."""


def period_of(every: Every, utc_ns: int) -> str:
    """Return the name of the hour or day; empty if each window has its file."""
    return f"{_moment(utc_ns):{_PERIODS[every]}}" if every in _PERIODS else ""


def unique(utc_ns: int) -> str:
    """Return a name of a file that no other file of this run has."""
    return f"{_moment(utc_ns):%Y%m%dT%H%M%S.%fZ}-{next(_NUMBERS)}"


def _moment(utc_ns: int) -> datetime:
    return datetime.fromtimestamp(utc_ns // 1000 / 1e6, UTC)


def records_of(table: Table, item: Item, *, nested: bool) -> Iterator[Record]:
    """Return the rows that an item adds to a table."""
    if isinstance(table, OutputView):
        return table.records(item, nested=nested)
    assert isinstance(item, Snapshot)
    return table.records(item, nested=nested)


class TableFiles(Protocol):
    """Writes the rows of tables into files."""

    def begin(self) -> None:
        """Prepare the directory, which exists and belongs to this run."""

    def write(self, table: Table, items: Sequence[Item], period: str, utc_ns: int) -> None:
        """Write the rows of items, all or none. `period` is empty for a single file; `utc_ns`
        is the time of the first row. Raises OSError."""

    def due(self) -> None:
        """Do what is due by time."""

    def close(self) -> None:
        """Release all resources."""


class JsonLines:
    """Appends lines to the file of the period. A line that was cut off goes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._whole: set[Path] = set()
        """Files that end with a whole line."""

    def begin(self) -> None:
        """Files are prepared one by one."""

    def write(self, table: Table, items: Sequence[Item], period: str, utc_ns: int) -> None:
        directory = self._directory / table.name
        make_directory(directory)
        rows = chain.from_iterable(records_of(table, item, nested=True) for item in items)
        text = json_lines(rows)  # type: ignore[arg-type]
        if not period:
            write_atomic(directory / f"{unique(utc_ns)}.jsonl", [text])
            return
        path = directory / f"{period}.jsonl"
        file = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            if path not in self._whole:
                _cut_torn_line(file)
                self._whole.add(path)
            _append(file, text)
        finally:
            os.close(file)

    def due(self) -> None:
        """Nothing is due by time."""

    def close(self) -> None:
        """No file is open between two writes."""


def _append(file: int, text: bytes) -> None:
    """Append all of a text, or nothing. Raises OSError."""
    size = os.fstat(file).st_size
    try:
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def _cut_torn_line(file: int) -> None:
    """Cut off the line that a killed run has not finished."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - 65536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)


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
