"""Keys, commands, sizes, signals and windows at random: no exception, and the terminal given back.

`python -I -m bench.fuzz` does the same without a limit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.console import hostile
from tests.support.console.fuzz import fuzz


def test_on_a_terminal() -> None:
    fuzz(60, 2, shrink=False)


def test_with_windows_and_commands_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hostile.fuzz(30, 1, each=30, shrink=False)
