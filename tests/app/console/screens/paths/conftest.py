"""The paths screen polls often, so that no test waits for it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll traced paths ten times a second."""
    monkeypatch.setattr("app.console.screen._PERIOD", 0.1)
