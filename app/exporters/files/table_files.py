"""Files of tables, and how rows get into them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Protocol

from app.exporters.files.options import Every
from app.files import make_directory, open_file, write_atomic
from app.outputs.encoders import Record, json_lines
from app.outputs.metrics import MetricOutput
from app.outputs.view import OutputView
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
