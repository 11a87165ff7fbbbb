"""Where tables go: a directory with one file a table, or standard output."""

from __future__ import annotations

import contextlib
import io
import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from app.outputs.encoders import FORMATS, Encoder, Record
from app.outputs.metrics import MetricTable
from app.outputs.view import View
from bpf.errors import DeckError, UsageError
from probes.snapshot import Event, Item, Snapshot

_ROWS_AT_A_TIME = 8192
_LONGEST_ROW = 65536
"""Bytes; of most rows. A longer one takes longer to find."""
_STDOUT = 1


class Sink:
    """Writes every item at once, unbuffered, so that what was collected is there for readers.

    Files are appended to: every row says its schema, so a service may start again and again. The
    columns of a metric are known only when its first window comes, and may change with its program:
    then rows go on in a further file, `PROBE.SIDE.METRIC.gGENERATION.FORMAT`.
    """

    def __init__(
        self,
        target: str,
        format_name: str,
        views: Sequence[View],
        *,
        metrics: bool = False,
        formats: Mapping[str, str] | None = None,
        keep: Callable[[str, Item], Item | None] = lambda view, item: item,
    ) -> None:
        """`target` is a directory, made where there is none, or `-`. `metrics`: whether metrics are
        written too, in a format that `formats` names by probe, or else in `format_name`. `keep` is
        given the name of a view and an item, and says what of that is written.

        Raises UsageError where it can't be written, or holds files of another schema.
        """
        self._format = format_name
        self._formats = {} if formats is None else formats
        self._directory = None if target == "-" else Path(target)
        self._keep = keep
        self._views: list[tuple[View, _Output]] = []
        self._wants_metrics = metrics
        self._metrics: dict[str, tuple[str, _Output]] = {}
        """By the table's name: its schema, and where it goes."""
        if self._directory is None and len(views) + metrics != 1:
            count = f"{len(views)} and metrics" if metrics else len(views)
            raise UsageError(
                f"standard output takes one view, not {count}", hint="choose with --views"
            )
        with _refusals(target):
            if self._directory is not None:
                self._directory.mkdir(parents=True, exist_ok=True)
            for view in views:
                output = self._open(view.name, format_name, view.schema, view.header)
                self._views.append((view, output))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, item: Snapshot | Event) -> None:
        """Append what `item` adds to each table.

        Raises DeckError, or BrokenPipeError for a pipe; UsageError where a metric's file is another
        table's, or is not the only one for standard output.
        """
        for view, output in self._views:
            kept = self._keep(view.name, item)
            records = () if kept is None else view.records(kept, nested=output.encoder.nested)
            output.append(records)
        if self._wants_metrics and isinstance(item, Snapshot) and item.is_metric:
            table = MetricTable(item)
            output = self._metric(table, item)
            output.append(table.records(nested=output.encoder.nested))

    def close(self) -> None:
        for _, output in (*self._views, *self._metrics.values()):
            output.close()

    def _metric(self, table: MetricTable, item: Snapshot) -> _Output:
        """Where a metric's rows go."""
        schema, output = self._metrics.get(table.name, ("", None))
        if output is not None and schema == table.schema:
            return output
        if output is not None:
            output.close()
        elif self._directory is None and self._metrics:
            raise UsageError(
                f"standard output takes one table, and {table.name} is another",
                hint="write them into a directory with -o",
            )
        format_name = self._formats.get(item.probe, self._format)
        with _refusals(table.name):
            output = self._open_metric(table, format_name, item.generation)
        self._metrics[table.name] = table.schema, output
        return output

    def _open_metric(self, table: MetricTable, format_name: str, generation: int) -> _Output:
        try:
            return self._open(table.name, format_name, table.schema, table.header)
        except UsageError:
            further = f"{table.name}.g{generation}"
            return self._open(further, format_name, table.schema, table.header)

    def _open(self, name: str, format_name: str, schema: str, header: Sequence[str]) -> _Output:
        begin = FORMATS[format_name].begin(schema, header)
        if self._directory is None:
            return _Output(FORMATS[format_name], begin)
        path = self._directory / f"{name}.{format_name}"
        return _File(path, FORMATS[format_name], begin, schema)


@contextlib.contextmanager
def _refusals(target: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise UsageError(f"cannot write to {target}: it is not a directory") from None
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename or target}: {error.strerror}") from None


class _Output:
    """One table on standard output, which stays open."""

    def __init__(self, encoder: Encoder, begin: bytes) -> None:
        self.encoder = encoder
        self._begin = begin
        self._file = io.FileIO(_STDOUT, "w", closefd=False)
        self._name = "standard output"
        self._begun = self._has_rows = False

    def append(self, records: Iterable[Record]) -> None:
        """Write rows; before the first ones what the table begins with."""
        # It comes with the first item: a run that cannot begin leaves no header behind.
        if not self._begun:
            self._write(self._begin)
            self._begun = True
        rows = iter(records)
        while part := list(islice(rows, _ROWS_AT_A_TIME)):
            separator = self.encoder.separator if self._has_rows else b""
            self._write(separator + self.encoder.encode(part))
            self._has_rows = True

    def close(self) -> None:
        if self._begun:
            self._write(self.encoder.end)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = self._file.write(rest)
                if written is None:
                    # Somebody has made it non-blocking: a terminal or pipe shared with others.
                    select.select((), (self._file,), ())
                rest = rest[written or 0 :]
        except BrokenPipeError:
            raise
        except OSError as error:
            self._recover()
            raise DeckError(f"cannot write to {self._name}: {error.strerror}") from None

    def _recover(self) -> None:
        """Make the best of what could be written."""


class _File(_Output):
    """One table in a file, which is whole after each write."""

    def __init__(self, path: Path, encoder: Encoder, begin: bytes, schema: str) -> None:
        """Raises OSError, and UsageError where the file is no table of this schema."""
        self.encoder = encoder
        self._begin = begin
        self._name = str(path)
        self._file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
        try:
            self._check(schema)
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Iterable[Record]) -> None:
        if self._size() == 0:  # new, or somebody has emptied it to save space
            self._begun = self._has_rows = False
        super().append(records)

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        end = self.encoder.end
        self._file.seek(-len(end) if self._begun else 0, os.SEEK_END)
        super()._write(data + end)

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _check(self, schema: str) -> None:
        head = os.pread(self._file.fileno(), _LONGEST_ROW, 0)
        if self._begin.startswith(head):  # a run that was killed may not have come further
            return
        row = head[len(self._begin) :].partition(b"\n")[0]
        ours = head.startswith(self._begin) and (
            self.encoder.mark(schema) in row or row == self.encoder.end.rstrip()
        )
        if not ours:
            raise UsageError(
                f"{self._name} is not a {schema} table and is left alone",
                hint="choose another directory with -o",
            )

    def _recover(self) -> None:
        """Take off a last row that is not whole, of a full disk or of a run that was killed."""
        size, start, end = self._size(), len(self._begin), self.encoder.end
        self._begun = size >= start + len(end) and size > 0
        kept = self._last_row_end() if self._begun else 0
        self._has_rows = kept > start
        tail = os.pread(self._file.fileno(), len(end) + 1, kept)
        if tail != (end if self._begun else b""):
            self._file.truncate(kept)
            if self._begun:
                os.pwrite(self._file.fileno(), end, kept)

    def _last_row_end(self) -> int:
        """Where the last whole row ends, or else what the table begins with."""
        size, first = self._size(), len(self._begin)
        look = _LONGEST_ROW
        while True:
            start = max(first, size - look)
            found = os.pread(self._file.fileno(), size - start, start).rfind(self.encoder.row_end)
            if found >= 0:
                return start + found + len(self.encoder.row_end)
            if start == first:
                return first
            look *= 4
