"""The tables of a run: a directory with one file a table, or standard output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from app.files import exists, expand, invoker
from app.outputs.formats import FORMATS, Record
from app.outputs.table_output import (
    ForeignFileError,
    Output,
    RowsLostError,
    StandardOutput,
    TableFile,
    locked_directory,
)
from app.outputs.view import Exported, MetricOutput, OutputView
from bpf.errors import Closing, UsageError
from probes.snapshot import Event, Item, Snapshot

SOURCE = "export"
"""The source of a sink's events."""
_ROWS_AT_A_TIME = 8192
_QUIET_S = 10.0
"""A table that fails again and again is reported once in this time: a disk may be full for some
rows and not for others."""
_WINDOWS = "windows"
"""The view that says of each table how many rows of it were lost."""

Report = Callable[[Event], None]


class OutputTable:
    """One table of a run. Rows that cannot be written are counted, and the next ones tried again.

    `report` gets an event when rows begin to be lost, and when rows are written again.
    """

    def __init__(self, name: str, opening: Callable[[], Output], report: Report) -> None:
        self._name = name
        self._opening = opening
        self._report = report
        self._output: Output | None = None
        self._reason = ""
        """Why rows are lost now; empty while they are written."""
        self._lost = 0
        """Rows that were lost since the last report of written rows."""
        self._reported = False
        """Whether an event has told that rows are lost now."""
        self._quiet_until = 0.0
        """Time of time.monotonic() before which no further failure is reported."""

    def open(self) -> None:
        """Raises OSError or UsageError."""
        self._output = self._opening()

    def append(self, records: Iterable[Record]) -> int:
        """Write rows. Returns how many could not be written. Raises BrokenPipeError for a pipe."""
        rows = iter(records)
        written = lost = 0
        reason = ""
        try:
            output = self._current()
            for part in _parts(rows):
                output.append(part)
                written += len(part)
        except BrokenPipeError:
            raise
        except RowsLostError as error:
            lost, reason = error.lost, str(error)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except UsageError as error:
            reason = str(error)
        if reason:
            lost += sum(1 for _ in rows)
            self._failed(reason, lost)
        elif written and self._reason:
            self._reason = ""
            if self._reported:
                text = f"{self._name} is written again; {_rows(self._lost)} lost"
                self._reported, self._lost = False, 0
                self._report(Event.now("info", SOURCE, text, f"writing {self._name}", "end"))
        return lost

    @property
    def is_failing(self) -> bool:
        return bool(self._reason)

    def close(self) -> int:
        """Close the output. Returns how many rows were lost by that."""
        output, self._output = self._output, None
        return output.close() if output is not None else 0

    def _current(self) -> Output:
        if self._output is not None and not self._output.is_current():
            self.close()
        if self._output is None:
            self.open()
        assert self._output is not None
        return self._output

    def _failed(self, reason: str, lost: int) -> None:
        self._lost += lost
        self._reason = reason
        now = time.monotonic()
        if not self._reported and now >= self._quiet_until:
            self._reported, self._quiet_until = True, now + _QUIET_S
            text = f"{self._name} is not written, its rows are lost: {reason}"
            self._report(Event.now("error", SOURCE, text, f"writing {self._name}", "begin"))


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _parts(rows: Iterator[Record]) -> Iterator[list[Record]]:
    """Rows, some at a time; without rows one empty part, for the table's head."""
    yield list(islice(rows, _ROWS_AT_A_TIME))
    while part := list(islice(rows, _ROWS_AT_A_TIME)):
        yield part


class _Metric(NamedTuple):
    """The output of a metric."""

    probe: str
    schema: str
    table: OutputTable


class Sink(Closing):
    """Writes every item at once, unbuffered, so that readers have every row collected so far.

    A table that cannot be written ends nothing: its rows are counted in `lost` and reported, while
    other tables go on. Files are appended to: every row has its schema, so a service may start
    again and again. The columns of a metric are known only when its first window comes, and may
    change with its program: then rows go on in a further file, see `_open_metric`.
    """

    def __init__(
        self,
        target: str,
        format_name: str,
        views: Sequence[OutputView],
        *,
        metrics: bool = False,
        formats: Mapping[str, str] | None = None,
        keep: Callable[[str, Item], Item | None] = lambda view, item: item,
        report: Report = lambda event: None,
    ) -> None:
        """`target` is a directory, which is made if it is missing, or `-`. `metrics`: whether
        metrics are written too, in a format that `formats` names by probe, or else in
        `format_name`. `keep` gets the name of a view and an item, and returns the part that is
        written. `report` gets the events of tables that fail and recover.

        Raises UsageError if the target cannot be written, holds files of another schema, or is
        another run's.
        """
        self.lost: dict[str, int] = {}
        """Rows that could not be written, by table; replaced by another mapping as it changes."""
        self._format = format_name
        self._nested = FORMATS[format_name].nested
        # The caller adds the formats of later probes to its dictionary, which may be empty now.
        self._formats = {} if formats is None else formats
        self._directory = None if target == "-" else expand(target)
        self._keep = keep
        self._report = report
        self._views: list[tuple[OutputView, OutputTable]] = []
        self._wants_metrics = metrics
        self._metrics: dict[str, _Metric] = {}
        """By the table's name."""
        self._on_stdout = ""
        """The metric that has standard output."""
        if self._directory is None and len(views) + metrics > 1:
            count = f"{len(views)} and metrics" if metrics else len(views)
            raise UsageError(
                f"standard output takes one view, not {count}", hint="choose with --views"
            )
        with ExitStack() as opened, _refusals(target):
            if self._directory is not None:
                opened.callback(os.close, locked_directory(self._directory))
            # Open `windows` last: its rows count the rows that other tables have lost.
            for view in sorted(views, key=lambda view: view.name == _WINDOWS):
                opening = partial(self._open, view.name, format_name, view.schema, view.header)
                table = OutputTable(view.name, opening, report)
                table.open()
                opened.callback(table.close)
                self._views.append((view, table))
            self._opened = opened.pop_all()

    def write(self, item: Item) -> None:
        """Append the rows of `item` to each table. Raises BrokenPipeError for a pipe."""
        lost = 0
        if self._wants_metrics and isinstance(item, Snapshot) and item.is_metric:
            lost += self._write_metric(item)
        for view, table in self._views:
            if lost and view.name == _WINDOWS and isinstance(item, Snapshot):
                item = Exported.of(item, lost)
            kept = self._keep(view.name, item)
            records = () if kept is None else view.records(kept, nested=self._nested)
            lost += self._counted(view.name, table.append(records))

    def end_probe(self, probe: str) -> None:
        """Close the files of a probe's metrics. Standard output stays with its metric."""
        if self._directory is None:
            return
        for name in [name for name, metric in self._metrics.items() if metric.probe == probe]:
            self._counted(name, self._metrics.pop(name).table.close())

    def close(self) -> None:
        """Close all files. Rows that are lost by that are counted in `lost`."""
        for view, table in self._views:
            self._counted(view.name, table.close())
        for name, metric in self._metrics.items():
            self._counted(name, metric.table.close())
        self._opened.close()

    def incomplete(self) -> list[str]:
        """Return what is missing, in words: `12 rows of flows`, or a table that has not begun."""
        failing = [view.name for view, table in self._views if table.is_failing]
        return [
            f"{_rows(self.lost[name])} of {name}" if name in self.lost else name
            for name in dict.fromkeys((*failing, *self.lost))
        ]

    def _counted(self, name: str, lost: int) -> int:
        if lost:
            self.lost = {**self.lost, name: self.lost.get(name, 0) + lost}
        return lost

    def _write_metric(self, item: Snapshot) -> int:
        rows = MetricOutput(item)
        metric = self._metrics.get(rows.name)
        format_name = self._formats.get(item.probe, self._format)
        if not FORMATS[format_name].appends:
            format_name = self._format
        if metric is None or metric.schema != rows.schema:
            if metric is not None:
                self._counted(rows.name, metric.table.close())
            opening = partial(self._open_metric, rows, format_name, item.generation)
            metric = _Metric(item.probe, rows.schema, OutputTable(rows.name, opening, self._report))
            self._metrics[rows.name] = metric
        records = rows.records(item, nested=FORMATS[format_name].nested)
        return self._counted(rows.name, metric.table.append(records))

    def _open_metric(self, table: MetricOutput, format_name: str, generation: int) -> Output:
        """Open the first of a table's files that is new or has its columns.

        Other columns go on in `PROBE.SIDE.METRIC.gGENERATION.FORMAT`, and if that is taken too, in
        a file named after the checksum of the columns: a later run finds it again.
        """
        if self._directory is None:
            if self._on_stdout not in ("", table.name):
                raise UsageError(
                    f"standard output takes one table, and {table.name} is another",
                    hint="write them into a directory with -o",
                )
            self._on_stdout = table.name
        for name in (table.name, f"{table.name}.g{generation}"):
            with suppress(ForeignFileError):
                return self._open(name, format_name, table.schema, table.header)
        further = f"{table.name}.{table.schema.rpartition('/')[2]}"
        return self._open(further, format_name, table.schema, table.header)

    def _open(self, name: str, format_name: str, schema: str, header: Sequence[str]) -> Output:
        written = FORMATS[format_name]
        begin = written.begin(schema, header)
        if self._directory is None:
            return StandardOutput(written, begin)
        return TableFile(self._directory / f"{name}.{format_name}", written, begin, schema)


@contextmanager
def _refusals(target: str) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as error:
        words = "it is not a directory" if exists(expand(target)) else error.strerror
        raise UsageError(f"cannot write to {target}: {words}") from None
    except OSError as error:
        hint = ""
        if isinstance(error, PermissionError) and invoker().by_sudo:
            hint = "under sudo tables are written with the rights of the caller of sudo"
        problem = f"cannot write to {error.filename or target}: {error.strerror}"
        raise UsageError(problem, hint=hint) from None
