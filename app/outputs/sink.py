"""Where tables go: a directory with one file a view, or standard output."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from app.outputs.views import Row, View
from bpf.errors import DeckError, UsageError
from probes.snapshot import Event, Snapshot


def _csv(header: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _jsonl(header: Sequence[str], rows: Iterable[Row]) -> bytes:
    lines = [json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows]
    return "".join(lines).encode()


FORMATS: dict[str, Callable[[Sequence[str], Iterable[Row]], bytes]] = {"csv": _csv, "jsonl": _jsonl}
"""Encoders of rows, by the format's name, which is the files' ending."""


class Sink:
    """Writes every item at once and flushes, so that what was collected is on disk.

    Files are appended to: every row says its schema, so a service may start again and again.
    """

    def __init__(self, target: str, format_name: str, views: Sequence[View]) -> None:
        """`target` is a directory, made where there is none, or `-`.

        Raises UsageError where it can't be written, or holds files of another schema.
        """
        self._encode = FORMATS[format_name]
        self._files: list[tuple[View, BinaryIO, str]] = []
        if target == "-":
            if len(views) != 1:
                raise UsageError(
                    f"standard output takes one view, not {len(views)}", hint="choose with --views"
                )
            self._add(views[0], sys.stdout.buffer, "standard output", empty=True)
            return
        directory = Path(target)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for view in views:
                path = directory / f"{view.name}.{format_name}"
                file = path.open("ab", buffering=0)
                size = os.fstat(file.fileno()).st_size
                if size:
                    _check_schema(path, format_name, view)
                self._add(view, file, str(path), empty=not size)
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename or target}: {error.strerror}"
            ) from None

    def _add(self, view: View, file: BinaryIO, name: str, *, empty: bool) -> None:
        self._files.append((view, file, name))
        if empty and self._encode is _csv:
            self._write(file, name, _csv((), [view.header]))

    def write(self, item: Snapshot | Event) -> None:
        """Append what `item` adds to each view. Raises DeckError, or BrokenPipeError for a pipe."""
        for view, file, name in self._files:
            rows = [(view.schema, *row) for row in view.rows(item)]
            if rows:
                self._write(file, name, self._encode(view.header, rows))

    def _write(self, file: BinaryIO, name: str, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DeckError(f"cannot write to {name}: {error.strerror}") from None

    def close(self) -> None:
        for _, file, _ in self._files:
            if file is not sys.stdout.buffer:
                file.close()


def _check_schema(path: Path, format_name: str, view: View) -> None:
    """Refuse to append to a file whose first line isn't this view's."""
    with path.open("rb") as file:
        first = file.readline().decode(errors="replace").rstrip("\n")
    if format_name == "csv":
        ours = first == ",".join(view.header)
    else:
        ours = f'"schema": "{view.schema}"' in first
    if not ours:
        raise UsageError(
            f"{path} is not a {view.schema} table and is left alone",
            hint="choose another directory with -o",
        )
