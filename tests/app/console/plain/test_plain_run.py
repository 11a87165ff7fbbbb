"""Runs in lines, as their users start them."""

from __future__ import annotations

import os
import subprocess
from typing import cast

import pytest

from app.cli.options import Options
from app.cli.run import is_plain
from app.console.plain.entry import answer_typed_lines
from app.console.plain.session import HELP, PlainSession
from app.tape.options import NOTHING
from probes.control_plane import ControlPlane
from tests.app.console.fake_plane import FakePlane
from tests.support.runs import deck, deck_ends

ESCAPE = "\x1b"


def test_typed_lines_are_answered_and_q_ends_the_run() -> None:
    with deck("lab", "--plain", stdin=subprocess.PIPE) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        assert next(lines).startswith("probedeck measures eth0; type now, ")
        assert any(line.startswith("in ") and "conversation" in line for line in lines)
        run.stdin.write("hosts\ntrace 10.94.6.2\nhots\nq\n")
        run.stdin.flush()
        rest = "".join(lines)
        assert run.wait(10) == 0
    assert "hosts, the busiest first\n" in rest
    assert "\n10.94.6.2 " in rest
    assert "tracing 10.94.6.2 by its own traffic" in rest
    assert "'hots' is no command: did you mean hosts?\n" in rest
    assert ESCAPE not in rest


@pytest.mark.parametrize(("terminal", "term", "lines"), [
    (True, "dumb", True), (True, "xterm", False), (False, "dumb", False),
])  # fmt: skip
def test_a_dumb_terminal_gets_lines(
    terminal: bool, term: str, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    monkeypatch.setenv("TERM", term)
    assert is_plain(Options(), NOTHING) is lines
    assert not is_plain(Options(headless=True), NOTHING)


@pytest.mark.parametrize(("terminal", "typed", "ends"), [
    (False, b"", False), (False, b"help\nq", True), (True, b"help\n", True),
])  # fmt: skip
def test_the_end_of_input_ends_only_runs_on_terminals(
    terminal: bool, typed: bytes, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, typed)
    os.close(writer)
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    stopped: list[bool] = []
    written: list[str] = []
    session = PlainSession(cast(ControlPlane, FakePlane()), written.append)
    answer_typed_lines(session, lambda: stopped.append(True), reader)
    os.close(reader)
    assert stopped == [True] * ends
    assert written == [HELP] * (b"help" in typed)


@pytest.mark.parametrize("command", [("run", "-i", "lo"), ("lab",)])
def test_lines_and_tables_exclude_each_other(command: tuple[str, ...]) -> None:
    code, _, err = deck_ends(*command, "--plain", "--headless")
    assert code == 2
    assert "--plain and --headless exclude each other" in err
