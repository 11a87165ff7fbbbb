"""Names of the sources that a controller has compiled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probes.deck import Deck


@pytest.fixture
def compiled(deck: Deck, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the compiled sources."""
    names: list[str] = []
    shared: Any = deck.controller._compiler
    compile_ = shared.compile

    def compiling(source: str, prog_type: Any, **options: Any) -> Any:
        names.append(options["name"])
        return compile_(source, prog_type, **options)

    monkeypatch.setattr(shared, "compile", compiling)
    return names
