"""The history of typed lines, in a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock

from app.config.paths import read_private, write_private
from bpf.errors import ProbedeckError

MOST = 1000
"""Largest number of kept lines."""
_LONGEST = 1000
_NOT_KEPT = "output.add "


class PromptHistory:
    """Typed lines of all consoles of a user: each console adds its lines to the file.

    If the file cannot be read or written, lines last until the console ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        """Oldest first, each once."""
        self._lock = Lock()

    @property
    def lines(self) -> tuple[str, ...]:
        """Newest first."""
        return tuple(reversed(self._lines))

    def load(self) -> None:
        """Read the file. This may block."""
        with self._lock:
            self._lines = _merged(self._read(), *self._lines)

    def remember(self, line: str) -> None:
        """Add a line, without the file."""
        if line.isprintable() and len(line) <= _LONGEST:
            self._lines = _merged(self._lines, line)

    def save(self, line: str) -> None:
        """Add a line to the file. This may block."""
        # The URL of an output may hold a password.
        if line not in self._lines or line.startswith(_NOT_KEPT):
            return
        with self._lock, suppress(ProbedeckError):
            lines = _merged(self._read(), line)
            write_private(self._path, "".join(f"{each}\n" for each in lines))

    def _read(self) -> list[str]:
        try:
            text = read_private(self._path) or ""
        except ProbedeckError:
            return []
        return [line for line in text.splitlines() if line and line.isprintable()]


def _merged(lines: list[str], *added: str) -> list[str]:
    return list(dict.fromkeys(reversed([*lines, *added])))[:MOST][::-1]
