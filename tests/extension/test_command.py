"""A new command and a new step of tapes are one entry each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.api.server.command_endpoints import run_on_plane
from app.commands.complete import Completer, Completion
from app.commands.line import parse
from app.commands.model import Command, Parameter
from app.commands.registry import REGISTRY
from app.tape.grammar import read
from bpf.errors import TextError, UsageError
from probes.control_plane import ControlPlane
from tests.app.api.fake import FakePlane

ROOT = Path(__file__).parents[2]
STEP = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from app.tape import model, steps

class Beep(model.TapeInstruction):
    forms = (("Beep TIMES", "Ring the bell."),)
    settles = False

    def __init__(self, times):
        self.times = times

    @classmethod
    def read(cls, line, head):
        return cls(line.count())

    async def play(self, stage):
        stage.fail("beep " * self.times)

steps.STEPS["Beep"] = Beep

from app.tape.grammar import FORMS, STATEMENTS, read

class Stage:
    def fail(self, reason):
        print(reason)

[step], faults = read("Beep 3  # loud", "x.tape", {{}})
asyncio.run(step.instruction.play(Stage()))
print(step.text, faults, *Beep.forms[0], Beep.forms[0] in FORMS, "Beep" in STATEMENTS)
print(read("Beep 0", "x.tape", {{}})[1][0])
"""


def refuse_zero(text: str, _: Any) -> None:
    if text == "0":
        raise UsageError("0 is too small")


def greet(plane: ControlPlane, text: str) -> None:
    plane.remove_policy(text)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    count = Parameter("count", check=refuse_zero)
    made = Command("toy.count", "Count", "ctrl+k", parameters=(count,), remote=greet, writes=True)
    monkeypatch.setitem(REGISTRY, made.name, made)
    return made


def test_a_command(command: Command) -> None:
    assert parse("toy.count 3").values == ("3",)
    assert [fault.message for fault in read("toy.count 0", "x.tape", {})[1]] == ["0 is too small"]
    with pytest.raises(TextError, match="0 is too small"):
        parse("toy.count 0", {})
    completer = Completer({}, lambda text, position: Completion(position))
    assert completer.complete("", "toy.", 4).candidates == ("toy.count",)
    assert command.method == "do_toy_count"
    with pytest.raises(UsageError, match="no policy"):
        run_on_plane(FakePlane(), parse("toy.count 3"))


def test_a_step_of_tapes() -> None:
    command = (sys.executable, "-I", "-c", STEP)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        "beep beep beep ",
        "Beep 3 [] Beep TIMES Ring the bell. True True",
        "x.tape:1:6: '0' is no whole number from 1 to 9999",
    ]
