"""Lines that were typed, kept in a file from one time to the next."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from app.config.paths import read_private, write_private
from bpf.errors import ProbedeckError

MOST = 1000
"""Lines that are kept."""
_LONGEST = 1000


class PromptHistory:
    """Of all consoles of an operator: each adds its lines to what the file has.

    Where the file cannot be read or written, lines are known only until the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        """The latest last, none twice."""
        self._lock = Lock()

    @property
    def lines(self) -> tuple[str, ...]:
        """The latest first."""
        return tuple(reversed(self._lines))

    def load(self) -> None:
        """Read the file; this may take its time."""
        with self._lock:
            self._lines = _merged(self._read(), *self._lines)

    def remember(self, line: str) -> None:
        """Add a line to those that are known."""
        if line.isprintable() and len(line) <= _LONGEST:
            self._lines = _merged(self._lines, line)

    def save(self, line: str) -> None:
        """Add a line to the file; this may take its time."""
        if line not in self._lines:
            return
        with self._lock:
            lines = _merged(self._read(), line)
            try:
                write_private(self._path, "".join(f"{each}\n" for each in lines))
            except ProbedeckError:
                return

    def _read(self) -> list[str]:
        try:
            text = read_private(self._path) or ""
        except ProbedeckError:
            return []
        return [line for line in text.splitlines() if line and line.isprintable()]


def _merged(lines: list[str], *added: str) -> list[str]:
    """Without what is there again later, and no more than are kept."""
    return list(dict.fromkeys(reversed([*lines, *added])))[:MOST][::-1]
