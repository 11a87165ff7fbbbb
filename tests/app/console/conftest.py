"""The console draws at once, and tests wait for its pending work."""

from __future__ import annotations

import pytest

from tests.support.console.idle import be_prompt


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    be_prompt(monkeypatch)
    monkeypatch.setattr("app.console.terminal.console_terminal.SHORTEST_INTERVAL", 0.01)
    # A busy machine is no probe that stands still.
    monkeypatch.setattr("app.console.status._STALE_AFTER", 60.0)
