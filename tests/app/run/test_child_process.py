"""The program of `trace -- PROGRAM`: its start, its end and its exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

from app.run.child_process import ChildProcess, ProgramError


def python(code: str, **options: Any) -> ChildProcess:
    return ChildProcess([sys.executable, "-I", "-c", code], **options)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
    ],
)
def test_a_programs_end_is_told_with_its_code(code: str, ended: int) -> None:
    program, told = python(code), Flag()
    with program.running(told.set):
        assert told.wait(10)
    assert program.code == ended


def test_a_program_has_the_users_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """probedeck sets some for its libraries, by putenv(3)."""
    monkeypatch.setenv("OF_THE_USER", "1")
    os.putenv("OF_LIBRARIES", "1")
    program, told = (
        python("import os; raise SystemExit(sum(n[:3] == 'OF_' for n in os.environ))"),
        Flag(),
    )
    with program.running(told.set):
        assert told.wait(10)
    os.unsetenv("OF_LIBRARIES")
    assert program.code == 1


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("no-such-program", 127, "No such file or directory"),
        ("./no-such-program", 127, "No such file or directory"),
        ("/", 126, "Permission denied"),
        ("/etc/passwd", 126, "Permission denied"),
        ("a\0b", 126, "embedded null byte"),
    ],
)
def test_a_program_that_can_not_be_run(name: str, code: int, words: str) -> None:
    """With the exit codes of env and nohup, before anything is started."""
    with pytest.raises(ProgramError) as caught:
        ChildProcess([name])
    assert (caught.value.message, caught.value.exit_code) == (f"cannot run {name}: {words}", code)


def test_a_program_that_turns_out_to_be_none(tmp_path: Path) -> None:
    """Only the kernel finds out: the interpreter is missing, or there is none."""
    for text, code, words in (
        ("#!/no/such/interpreter\n", 127, "No such file or directory"),
        ("\1\2\3", 126, "Exec format error"),
    ):
        script = tmp_path / "script"
        script.write_text(text)
        script.chmod(0o755)
        with pytest.raises(ProgramError) as caught, ChildProcess([str(script)]).running(Flag().set):
            pytest.fail("it runs")
        assert caught.value.message == f"cannot run {script}: {words}"
        assert caught.value.exit_code == code


STUBBORN = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(end="x", flush=True)
time.sleep(60)
"""
POLITE = STUBBORN.replace("signal.SIG_IGN", "lambda *_: exit(3)")


@pytest.mark.parametrize(("code", "ended"), [(POLITE, 3), (STUBBORN, 128 + 9)], ids=["", "not"])
def test_a_program_is_told_to_end_and_killed_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch, code: str, ended: int
) -> None:
    monkeypatch.setattr("app.run.child_process._PATIENCE_S", 0.3)
    reading, writing = os.pipe()
    program, told = python(code, stdout=writing), Flag()
    with program.running(told.set):
        assert os.read(reading, 1) == b"x"  # by now it has its handler
    assert told.is_set()
    assert program.code == ended
    os.close(reading)
    os.close(writing)


def test_a_program_that_ends_by_itself_is_not_told_to() -> None:
    """As one does that had the ctrl+c of the terminal, too."""
    reading, writing = os.pipe()
    program = python(
        "import time; print(end='x', flush=True); time.sleep(0.2); exit(5)", stdout=writing
    )
    with program.running(Flag().set):
        assert os.read(reading, 1) == b"x"
    assert program.code == 5
    os.close(reading)
    os.close(writing)
