"""Tapes of the library and of the documents, played on a console over made-up windows."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tests.app.console.fake import desk, flow
from tests.app.tape.test_player import play

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("tape", ["the first of docs/tapes.md", "triage"])
async def test_tapes_that_come_with_probedeck_play_to_their_ends(
    tape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "tapes.md").read_text().partition("    # flood.tape\n")[2].partition("\n\n")[0]
    if tape == "triage":
        text = files("app.tape.library").joinpath("triage.tape").read_text()
    async with desk(first="overview") as console:
        await console.feed(flow(1, 10), flow(2, 30, size=10))
        # No monitor runs here: its tables stay empty.
        await play(console, text)
        assert console.app.tapes.state_of("flow.view") == "directions"
    assert len(list(tmp_path.rglob("*.csv"))) >= 1
