"""Outputs of one table: a file that is whole after each write, or standard output."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from app.files import open_directory, open_file
from app.outputs.formats import Format, Record
from bpf.errors import UsageError

_LONGEST_ROW = 65536
"""Bytes; of most rows. A longer one takes longer to find."""
_STDOUT = 1


class RowsLostError(Exception):
    """Rows of one `append` could not be written."""

    def __init__(self, lost: int, reason: str) -> None:
        super().__init__(reason)
        self.lost = lost


class ForeignFileError(UsageError):
    """The file of this name is no table of this schema."""


class Output(Protocol):
    """Takes the rows of one table."""

    def append(self, rows: Sequence[Record]) -> None:
        """Write rows; before the first ones the table's head. `rows` may be empty: then only that.

        Raises RowsLostError, and BrokenPipeError for a pipe without a reader.
        """

    def is_current(self) -> bool:
        """Whether rows still reach their place; not if the file was removed."""

    def close(self) -> int:
        """End the table. Returns how many of the rows that were taken are not whole."""


class StandardOutput:
    """One table on standard output, which stays open."""

    def __init__(self, written: Format, begin: bytes) -> None:
        self._format = written
        self._begin = begin
        self._begun = self._has_rows = False
        self._torn = b""
        """The rest of a row that was written in part, as on a full disk."""
        self._torn_row = False

    def append(self, rows: Sequence[Record]) -> None:
        # The head comes with the first item: a run that cannot begin leaves none behind.
        head = b"" if self._begun else self._begin
        if rows and self._has_rows:
            head += self._format.separator
        self._finish_torn(len(rows))
        data = head + self._format.encode(rows)
        sent, reason = send(data)
        whole = len(rows)
        if reason:
            whole, used = _fitting(self._format, rows, sent - len(head))
            size = len(head) + used
            lone_separator = self._has_rows and sent == len(head) > 0
            if sent > size or lone_separator:
                # The next write continues the row where it was cut.
                size += len(self._format.separator) if whole else 0
                size += len(self._format.encode(rows[whole : whole + 1]))
                self._torn_row = True
                whole += 1
            self._torn = data[sent:size] if sent else b""
        self._begun = self._begun or sent > 0
        self._has_rows = self._has_rows or whole > 0
        if reason:
            raise RowsLostError(len(rows) - whole, f"standard output: {reason}")

    def is_current(self) -> bool:
        return True

    def close(self) -> int:
        try:
            self._finish_torn(0)
            if self._begun:
                send(self._format.end)
        except RowsLostError:
            return int(self._torn_row)
        return 0

    def _finish_torn(self, rows: int) -> None:
        sent, reason = send(self._torn)
        self._torn = self._torn[sent:]
        if reason:
            raise RowsLostError(rows, f"standard output: {reason}")
        self._torn_row = False


def send(data: bytes) -> tuple[int, str]:
    """Return how many bytes standard output took, and why not all. Raises BrokenPipeError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(_STDOUT, rest) :]
        except BlockingIOError:
            # Another process made it non-blocking: a shared terminal or pipe.
            select.select((), (_STDOUT,), ())
        except BrokenPipeError:
            raise
        except OSError as error:
            return len(data) - len(rest), error.strerror or "error"
    return len(data), ""


def _fitting(written: Format, rows: Iterable[Record], size: int) -> tuple[int, int]:
    """Return how many whole rows are in the first `size` bytes of `rows`, and their bytes."""
    count = used = 0
    for row in rows:
        more = len(written.encode([row])) + (len(written.separator) if count else 0)
        if used + more > size:
            break
        used += more
        count += 1
    return count, used


class TableFile:
    """One table in a file, which is whole after each write, and locked while it is open."""

    def __init__(self, path: Path, written: Format, begin: bytes, schema: str) -> None:
        """Raises OSError, ForeignFileError, and UsageError if another run writes the file."""
        self._broken = False
        """Whether an error has left the end of the file in doubt."""
        self._format = written
        self._begin = begin
        self._path = path
        self._begun = self._has_rows = False
        self._fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            lock(self._fd, path)
            self._check(schema)
            self._recover()
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, rows: Sequence[Record]) -> None:
        try:
            if self._broken:
                self._recover()
                self._broken = False
            self._append(rows)
        except OSError as error:
            self._broken = True
            raise RowsLostError(len(rows), f"{self._path}: {error.strerror}") from None

    def is_current(self) -> bool:
        return os.fstat(self._fd).st_nlink > 0

    def close(self) -> int:
        os.close(self._fd)
        return 0

    def _append(self, rows: Sequence[Record]) -> None:
        size = self._size()
        if size == 0:  # a new file, or one that was emptied to save space
            self._begun = self._has_rows = False
        if self._begun and not rows:
            return
        end = self._format.end
        start = size - len(end) if self._begun else 0
        head = b"" if self._begun else self._begin
        if rows and self._has_rows:
            head += self._format.separator
        data = head + self._format.encode(rows) + end
        written, reason = self._write(data, start)
        if reason:
            room = max(written, size - start) - len(end)
            count, used = _fitting(self._format, rows, room - len(head))
            headed = count > 0 or (not self._begun and room >= len(head))
            self._cut(start, size, len(head) + used if headed else -1)
            self._begun = self._begun or headed
            self._has_rows = self._has_rows or count > 0
            raise RowsLostError(len(rows) - count, f"{self._path}: {reason}")
        self._begun = True
        self._has_rows = self._has_rows or bool(rows)

    def _write(self, data: bytes, at: int) -> tuple[int, str]:
        written = 0
        while written < len(data):
            try:
                written += os.pwrite(self._fd, memoryview(data)[written:], at + written)
            except OSError as error:
                return written, error.strerror or "error"
        return written, ""

    def _cut(self, start: int, size: int, kept: int) -> None:
        """Keep `kept` bytes from `start` on; -1: restore the file as it was, `size` bytes long."""
        end = self._format.end
        whole = start + kept + len(end) if kept >= 0 else size
        # First the end, into space that the file has already: a full disk has no other.
        if whole:
            os.pwrite(self._fd, end, whole - len(end))
        os.ftruncate(self._fd, whole)

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _check(self, schema: str) -> None:
        head = os.pread(self._fd, _LONGEST_ROW, 0)
        if self._begin.startswith(head):  # a run that was killed may not have come further
            return
        row = head[len(self._begin) :].partition(b"\n")[0]
        ours = head.startswith(self._begin) and (
            self._format.mark(schema) in row or row == self._format.end.rstrip()
        )
        if not ours:
            raise ForeignFileError(
                f"{self._path} is not a {schema} table and is left alone",
                hint="choose another directory with -o",
            )

    def _recover(self) -> None:
        """Take off a last row that is not whole, of a full disk or of a run that was killed."""
        size, start, end = self._size(), len(self._begin), self._format.end
        self._begun = size >= start + len(end) and size > 0
        kept = self._last_row_end() if self._begun else 0
        self._has_rows = kept > start
        tail = os.pread(self._fd, len(end) + 1, kept)
        if tail != (end if self._begun else b""):
            self._cut(kept, 0, 0 if self._begun else -1)

    def _last_row_end(self) -> int:
        size, first = self._size(), len(self._begin)
        look = _LONGEST_ROW
        while True:
            start = max(first, size - look)
            found = os.pread(self._fd, size - start, start).rfind(self._format.row_end)
            if found >= 0:
                return start + found + len(self._format.row_end)
            if start == first:
                return first
            look *= 4


def locked_directory(path: Path) -> int:
    """Make a directory if it is missing, and lock it as `lock` does. Returns its descriptor.

    Raises UsageError as `lock`, and OSError.
    """
    found = open_directory(path, make=True)
    try:
        lock(found, path)
    except UsageError:
        os.close(found)
        raise
    return found


def lock(fd: int, path: Path) -> None:
    """Lock a file or directory until it is closed. Raises UsageError if another run has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"another run writes to {path}", hint="choose another directory with -o"
        ) from None
    except OSError:
        return  # some network file systems have no locks
