"""A plugin of pytest that appends the seconds of each test to a file, for the record of a run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

FILE = "TIMES_OF_TESTS"
"""Variable that names the file."""


class Times:
    """Set-up, call and end of each test are one time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        with self._path.open("a") as file:
            for name, seconds in self._seconds.items():
                file.write(f"{seconds:8.2f} {name}\n")
