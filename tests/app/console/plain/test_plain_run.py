"""Runs in lines, as their users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.cli.subcommands.run import is_plain
from app.console.plain.entry import answer_typed_lines
from app.console.plain.session import HELP, PlainSession
from app.tape.options import NOTHING
from probes.control_plane import ControlPlane
from probes.snapshot import Event
from tests.app.api.fake import FakePlane as ServedPlane
from tests.app.console.fake_plane import FakePlane
from tests.support.runs import deck, deck_ends

ESCAPE = "\x1b"


@pytest.mark.slow
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


@pytest.mark.slow
def test_lines_of_a_controller_elsewhere_go_on_without_it(tmp_path: Path) -> None:
    url, plane = f"unix:{tmp_path}/api.sock", ServedPlane()
    with ExitStack() as stack:
        served = stack.enter_context(ExitStack())
        served.enter_context(ApiListener(plane, Api("1", socket=url.removeprefix("unix:"))))
        run = stack.enter_context(
            deck("console", "--plain", "--connect", url, stdin=subprocess.PIPE)
        )
        assert run.stdin is not None
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        assert next(lines).startswith(f"connected to {url}; type now, ")
        plane.publish(Event.now("warning", "flow", "something happened"))
        assert any("warning: flow: something happened" in line for line in lines)
        served.close()
        assert any(f"{url}: connection lost" in line for line in lines)
        run.stdin.write("q\n")
        run.stdin.flush()
        assert run.wait(10) == 0


def test_lines_need_no_textual() -> None:
    code = "import sys, app.console.plain.entry; print(*sys.modules)"
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "textual" not in done.stdout.split()


@pytest.mark.parametrize(("terminal", "term", "lines"), [
    (True, "dumb", True), (True, "xterm", False), (False, "dumb", False),
])  # fmt: skip
def test_a_dumb_terminal_gets_lines(
    terminal: bool, term: str, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    monkeypatch.setenv("TERM", term)
    assert is_plain(False, False, NOTHING) is lines
    assert not is_plain(False, True, NOTHING)


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
