"""The outputs `parquet:DIR` and `jsonl:DIR`: the tables of a run as files of hours or days."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from app.exporters.backlog import NOT_WRITTEN
from app.exporters.exporter import DeliveryError
from app.exporters.files.options import FileOptions
from app.exporters.files.table_files import JsonLines, ParquetFiles, Table, TableFiles, period_of
from app.exporters.host import ExportHost
from app.files import expand
from app.outputs.table_output import locked_directory
from app.outputs.view import MetricOutput, OutputView
from app.outputs.views import VIEWS
from bpf.errors import UsageError
from probes.monitor.state import METRICS_TABLE
from probes.snapshot import Event, Item, Snapshot

_HOLD_S = 10.0
"""Rows of an hour or a day wait so long for others: each part of a file costs some kilobytes."""
_HOLD_ROWS = 100_000


@dataclass(slots=True)
class _Held:
    """Items of a table and a period that are in no file yet."""

    table: Table
    period: str
    utc_ns: int
    since_s: float
    items: list[Item] = field(default_factory=list)
    rows: int = 0


class FileExporter:
    """Collects the rows of each table for some seconds, and writes them at once.

    A row is a record; of a metric, an entry of its map. Rows that are collected count as delivered;
    those that no file takes until the end are taken back.
    """

    def __init__(self, host: ExportHost, files: Callable[[Path], TableFiles]) -> None:
        """Raises UsageError for an unknown table."""
        options = host.config.options
        assert isinstance(options, FileOptions)
        self._directory = expand(host.config.path)
        self._every = options.every
        self._views = _chosen(options.tables)
        self._takes_metrics = not options.tables or METRICS_TABLE in options.tables
        """Whether metrics of probes have tables, too."""
        self._files = files(self._directory)
        self._lost = host.lost
        self._locked: int | None = None
        self._held: dict[tuple[str, str], _Held] = {}
        """By schema and period."""
        self._behind = False
        """Whether rows that were due could not be written."""

    def records(self, item: Item) -> int:
        found = sum(_rows(item, view) for view in self._views if view.takes(item))
        return found + (len(item.rows) if self._has_metric(item) else 0)

    def open(self) -> None:
        if self._locked is None:
            try:
                self._locked = locked_directory(self._directory)
            except UsageError as error:
                raise DeliveryError(error.message) from None
            self._files.begin()

    def deliver(self, item: Item, skip: int) -> None:
        if self._behind:
            # Memory stays bounded: the queue holds the items meanwhile.
            self._write(lambda held: True)
        utc_ns = item.utc_ns if isinstance(item, Event) else item.start_utc_ns
        period = period_of(self._every, utc_ns)
        for table in self._tables_of(item):
            if rows := _rows(item, table):
                new = _Held(table, period, utc_ns, time.monotonic())
                held = self._held.setdefault((table.schema, period), new)
                held.items.append(item)
                held.rows += rows
        try:
            # A window's rows are one file; windows and events of a second share one.
            self._write(lambda h: h.rows >= _HOLD_ROWS or bool(not h.period and h.table.probe))
        except DeliveryError as error:
            raise DeliveryError(str(error), delivered=self.records(item)) from None

    def tick(self) -> None:
        now = time.monotonic()
        self._write(lambda held: self._behind or now - held.since_s >= _HOLD_S or not held.period)
        self._files.due()

    def close(self) -> None:
        try:
            if self._locked is not None:
                self._write(lambda held: True)
        finally:
            if lost := sum(held.rows for held in self._held.values()):
                self._lost(lost, NOT_WRITTEN)
            self._files.close()
            if self._locked is not None:
                os.close(self._locked)

    def _tables_of(self, item: Item) -> Iterator[Table]:
        yield from (view for view in self._views if view.takes(item))
        if self._has_metric(item):
            yield MetricOutput(item)

    def _has_metric(self, item: Item) -> TypeGuard[Snapshot]:
        return self._takes_metrics and isinstance(item, Snapshot) and item.is_metric

    def _write(self, is_due: Callable[[_Held], bool]) -> None:
        """Write what is due. Raises DeliveryError at the first file that cannot be written."""
        for key, held in list(self._held.items()):
            if not is_due(held):
                continue
            try:
                self._files.write(held.table, held.items, held.period, held.utc_ns)
            except OSError as error:
                self._behind = True
                raise DeliveryError(f"{held.table.name}: {error.strerror}") from None
            del self._held[key]
        self._behind = False


def _rows(item: Item, table: Table) -> int:
    return 1 if isinstance(item, Event) or not table.probe else len(item.rows)


def _chosen(names: tuple[str, ...]) -> tuple[OutputView, ...]:
    known = {name: view for name, view in VIEWS.items() if view.make is None}
    for name in names:
        if name not in known:
            raise UsageError(f"no table {name!r}", hint=f"there are {', '.join(known)}")
    return tuple(known[name] for name in (names or known))


def parquet(host: ExportHost) -> FileExporter:
    """Return the output of Parquet files. Raises UsageError if DuckDB is missing."""
    options = host.config.options
    assert isinstance(options, FileOptions)

    def trouble(text: str) -> None:
        host.plane.publish(Event.now("warning", "output", text, host.config.name))

    return FileExporter(host, lambda directory: ParquetFiles(directory, options.every, trouble))


def json_lines(host: ExportHost) -> FileExporter:
    """Return the output of JSON lines."""
    return FileExporter(host, JsonLines)
