"""Where tables go: a directory with one file a view, or standard output."""

from __future__ import annotations

import csv
import io
import json
import os
import select
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from app.outputs.views import Row, View
from bpf.errors import DeckError, UsageError
from probes.snapshot import Event, Snapshot

_ROWS_AT_A_TIME = 8192
_LONGEST_ROW = 65536
"""Bytes."""
_to_json = json.JSONEncoder(check_circular=False).encode


def _csv(header: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _jsonl(header: Sequence[str], rows: Iterable[Row]) -> bytes:
    lines = [_to_json(dict(zip(header, row, strict=True))) + "\n" for row in rows]
    return "".join(lines).encode()


FORMATS: dict[str, Callable[[Sequence[str], Iterable[Row]], bytes]] = {"csv": _csv, "jsonl": _jsonl}
"""Encoders of rows, by the format's name, which is the files' ending."""


class Sink:
    """Writes every item at once, unbuffered, so that what was collected is there for readers.

    Files are appended to: every row says its schema, so a service may start again and again.
    """

    def __init__(self, target: str, format_name: str, views: Sequence[View]) -> None:
        """`target` is a directory, made where there is none, or `-`.

        Raises UsageError where it can't be written, or holds files of another schema.
        """
        self._tables: list[_Table] = []
        if target == "-":
            if len(views) != 1:
                raise UsageError(
                    f"standard output takes one view, not {len(views)}", hint="choose with --views"
                )
            self._open(views[0], format_name, 1, "standard output")
            return
        directory = Path(target)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for view in views:
                path = directory / f"{view.name}.{format_name}"
                self._open(view, format_name, path, str(path))
        except FileExistsError:
            raise UsageError(f"cannot write to {target}: it is not a directory") from None
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename or target}: {error.strerror}"
            ) from None

    def _open(self, view: View, format_name: str, path: Path | int, name: str) -> None:
        self._tables.append(_Table(view, format_name, path, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, item: Snapshot | Event) -> None:
        """Append what `item` adds to each view. Raises DeckError, or BrokenPipeError for a pipe."""
        for table in self._tables:
            table.write(item)

    def close(self) -> None:
        for table in self._tables:
            table.close()


class _Table:
    """One view, and the file that it goes into."""

    def __init__(self, view: View, format_name: str, path: Path | int, name: str) -> None:
        """`path` may be a descriptor, which stays open. Raises OSError and UsageError."""
        self._view = view
        self._encode = FORMATS[format_name]
        self._name = name
        if isinstance(path, int):
            self._file = io.FileIO(path, "w", closefd=False)
            is_new = True
        else:
            self._file = io.FileIO(path, "a+")
            is_new = os.fstat(self._file.fileno()).st_size == 0
            if not is_new:
                self._check_schema()
                self._trim()
        # It comes with the first item: a run that cannot begin leaves no header behind.
        self._wants_header = is_new and format_name == "csv"

    def write(self, item: Snapshot | Event) -> None:
        if self._wants_header:
            self._wants_header = False
            self._append(self._encode(self._view.header, [self._view.header]))
        rows = ((self._view.schema, *row) for row in self._view.rows(item))
        while part := list(islice(rows, _ROWS_AT_A_TIME)):
            self._append(self._encode(self._view.header, part))

    def close(self) -> None:
        self._file.close()

    def _append(self, data: bytes) -> None:
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
            if self._file.readable():
                self._trim()
            raise DeckError(f"cannot write to {self._name}: {error.strerror}") from None

    def _trim(self) -> None:
        """Take off a last row that is not whole, of a full disk or of a run that was killed."""
        size = self._file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_ROW)
        tail = os.pread(self._file.fileno(), _LONGEST_ROW, start)
        self._file.truncate(start + tail.rfind(b"\n") + 1)

    def _check_schema(self) -> None:
        """Refuse to append to a file whose first line isn't this view's."""
        first = os.pread(self._file.fileno(), _LONGEST_ROW, 0).partition(b"\n")[0]
        if self._encode is _csv:
            ours = first.decode(errors="replace") == ",".join(self._view.header)
        else:
            ours = f'"schema": "{self._view.schema}"'.encode() in first
        if not ours:
            raise UsageError(
                f"{self._name} is not a {self._view.schema} table and is left alone",
                hint="choose another directory with -o",
            )
