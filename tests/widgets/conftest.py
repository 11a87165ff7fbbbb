"""Tests wait for the widgets' pending work."""

from __future__ import annotations

import pytest

from tests.support.console.idle import be_prompt


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    be_prompt(monkeypatch)
