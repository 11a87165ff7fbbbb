"""The console is drawn as soon as there is something, and waited for by what it has to do."""

from __future__ import annotations

import pytest

from tests.support.idle import be_prompt


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    be_prompt(monkeypatch)
    monkeypatch.setattr("app.console.updates.SHORTEST_INTERVAL", 0.01)
