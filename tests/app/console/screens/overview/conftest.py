"""However slow a test of the overview is, its probes are not late."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a test is, its probes are not late."""
    monkeypatch.setattr("app.console.screens.overview.model.LATE", 1000)
