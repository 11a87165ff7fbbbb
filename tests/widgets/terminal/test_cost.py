"""Costs of a busy screen under a real terminal, and checks of the measuring terminal."""

from __future__ import annotations

import sys

import pytest

from tests.support.console.emulator import Emulator
from tests.support.console.terminal import Terminal

pytestmark = pytest.mark.timing

DEMO = (sys.executable, "-I", "-m", "tests.widgets.demo")


@pytest.mark.slow
def test_ten_thousand_changing_rows_cost_little() -> None:
    with Terminal(DEMO, columns=120, rows=40) as terminal:
        terminal.wait("gen 2 ")
        cost = terminal.cost(seconds=2.0, windows=1)
        assert 0 < cost.cpu_percent < 8
        assert 1_000 < cost.bytes_per_second < 15_000
        assert 0.4 <= cost.frames_per_second <= 2.1
        assert cost.rss_mb < 120


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"PROBEDECK_DIFF": "0"}])
def test_it_is_drawn_without_colours_and_without_differences(environment: dict[str, str]) -> None:
    command = (*DEMO, "--rows", "50", "--period", "0.1", "--changing", "1")
    with Terminal(command, columns=80, rows=24, environment=environment) as terminal:
        terminal.wait("gen 5 ")
        lines = terminal.screen().splitlines()
        titles = lines[1].replace("─", " ").split()
        assert titles == ["Flow", "Rate▼", "Bytes", "RTT", "Loss", "+3", "›"]  # noqa: RUF001
        assert all(line.rstrip().rstrip("▁▂▃▄▅▆▇█ ").endswith("%") for line in lines[2:])


def test_escapes_and_wide_characters_may_be_cut_anywhere() -> None:
    written = "\x1b[2;3H\x1b[1;38;2;1;2;3m漢x\x1b[0m\x1b]8;;http://a\x1b\\l\x1b]8;;\x1b\\\x1b[1;1Hé"
    whole = Emulator(8, 2)
    whole.feed(written)
    assert whole.lines == ["é???????", "??漢xl??"]
    for cut in range(len(written)):
        parts = Emulator(8, 2)
        parts.feed(written[:cut])
        parts.feed(written[cut:])
        assert parts.cells == whole.cells, cut
