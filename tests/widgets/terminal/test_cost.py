"""Costs of a busy screen under a real terminal, and checks of the measuring terminal."""

from __future__ import annotations

import sys
import time

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


def test_a_key_is_seen_at_once_while_rows_change() -> None:
    with Terminal((*DEMO, "--period", "0.25"), columns=120, rows=40) as terminal:
        terminal.wait("ready")
        time.sleep(0.3)
        assert terminal.latency("q", lambda text: not text.strip()) < 1.0


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"PROBEDECK_DIFF": "0"}])
def test_it_is_drawn_without_colours_and_without_differences(environment: dict[str, str]) -> None:
    command = (*DEMO, "--rows", "50", "--period", "0.1", "--changing", "1")
    with Terminal(command, columns=80, rows=24, environment=environment) as terminal:
        terminal.wait("gen 5 ")
        lines = terminal.screen().splitlines()
        titles = lines[1].replace("─", " ").split()
        assert titles == ["Flow", "Rate▼", "Bytes", "RTT", "Loss", "+3", "›"]  # noqa: RUF001
        assert all(line.rstrip().rstrip("▁▂▃▄▅▆▇█ ").endswith("%") for line in lines[2:])


def test_the_terminal_shows_and_counts_what_is_written() -> None:
    program = "printf 'one\\n\\033[31mtwo\\033[0m'; printf '\\303'; sleep 0.1; printf '\\251'; cat"
    with Terminal(("sh", "-c", program), columns=20, rows=3) as terminal:
        terminal.wait("twoé")
        assert terminal.bytes == len("one\r\n\x1b[31mtwo\x1b[0mé".encode())
        assert terminal.emulator.cells[1][0] == ("t", (frozenset(), "31", ""))
        terminal.wait("^one")
        with pytest.raises(TimeoutError, match="no 'three' on the screen"):
            terminal.wait("three", timeout=0.05)


def test_the_exit_code_is_known() -> None:
    with Terminal(("sh", "-c", "exit 3")) as terminal:
        assert terminal.wait_exit() == 3


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
