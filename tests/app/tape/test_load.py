"""Tapes as files: sources, settings, requirements, and errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app import VERSION
from app.tape import store
from app.tape.load import NESTING, load, of_commands, of_text
from app.tape.model import StepError, Tape, TapeError
from app.tape.options import Startup
from app.tape.steps import Action, Press, Type
from app.tape.store import TapeStore, shipped
from bpf.errors import UsageError


def write(directory: Path, **tapes: str) -> Path:
    """Files of these names; the first."""
    for name, text in tapes.items():
        (directory / f"{name}.tape").write_text(text)
    return directory / f"{next(iter(tapes))}.tape"


def faults(path: Path) -> list[str]:
    with pytest.raises(TapeError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def texts(tape: Tape) -> list[str]:
    return [step.text for step in tape.steps]


def test_a_source_stands_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", common="flow.top\nSource more.tape\n", more="Enter 2 # twice")
    path = write(tmp_path, a="# Title \nview.flows\nSource parts/common.tape\nTab")
    tape = load(path)
    assert (tape.name, tape.title) == ("a", "Title")
    assert texts(tape) == ["view.flows", "flow.top", "Enter 2", "Tab"]
    assert [step.place.line for step in tape.steps] == [2, 1, 1, 4]
    assert tape.steps[2].place.file == str(tmp_path / "parts/more.tape")


def test_settings_hold_from_their_line_on_and_in_their_tape(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        a="Set Width 80\nSet Height 24\nWait\nSet WaitTimeout 2s\nSource b.tape\n"
        'Wait\nType "x"\nType@0 "x"',
        b='Set TypingSpeed 50ms\nSet Width 200\nType "x"\nEnter\nWait',
    )
    tape = load(path)
    assert (tape.width, tape.height) == (80, 24)
    assert [step.patience for step in tape.steps] == [15.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    pauses = [s.instruction.pause for s in tape.steps if isinstance(s.instruction, Type | Press)]
    assert pauses == [0.05, 0.05, 0.0, 0.0]


def test_all_that_is_wrong_is_told_with_file_line_and_column(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        a="Enterr\nSource b.tape\nSource  none.tape\nSource a.tape\nEnter\nSet Height 30",
        b="Typ\nSource a.tape\nSource b.tape",
    )
    assert faults(path) == [
        f"{path}:1:1: there is no verb or command 'Enterr'; did you mean Enter?",
        f"{tmp_path}/b.tape:1:1: there is no verb or command 'Typ'; did you mean Type?",
        f"{tmp_path}/b.tape:2:8: 'a.tape' is this tape, or one that plays it",
        f"{tmp_path}/b.tape:3:8: 'b.tape' is this tape, or one that plays it",
        f"{path}:3:9: tape '{tmp_path}/none.tape': No such file or directory",
        f"{path}:4:8: 'a.tape' is this tape, or one that plays it",
        f"{path}:6:1: Set Height comes after the first step",
    ]


def test_tapes_are_nested_so_deep_and_no_deeper(tmp_path: Path) -> None:
    chain = {f"t{n}": f"Source t{n + 1}.tape" for n in range(NESTING)}
    write(tmp_path, **chain, **{f"t{NESTING}": "Enter"})
    assert texts(load(tmp_path / "t0.tape")) == ["Enter"]
    write(tmp_path, first="Source t0.tape")
    assert faults(tmp_path / "first.tape") == [
        f"{tmp_path}/t{NESTING - 1}.tape:1:8: tapes are nested more than 8 deep"
    ]


def test_tapes_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    chain = {f"t{n}": f"Source t{n + 1}.tape\n" * 50 for n in range(NESTING)}
    write(tmp_path, **chain, **{f"t{NESTING}": "# nothing"})
    assert "more than 10000 lines" in faults(tmp_path / "t0.tape")[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Enter\n \xff", "a.tape:2:2: this is no UTF-8 text"),
        (b"# x\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_what_is_no_tape_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.tape"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        load(path)
    with pytest.raises(UsageError, match="Is a directory"):
        load(tmp_path)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"# Title\nEnter\n")
    os.close(write)
    try:
        tape = load(Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
    assert (texts(tape), tape.title) == (["Enter"], "Title")


def test_commands_are_a_tape() -> None:
    tape = of_commands(["flow.sort bytes", "flow.filter tcp  port:1"])
    instructions = [step.instruction for step in tape.steps]
    assert [each.asked.values for each in instructions if isinstance(each, Action)] == [
        ("bytes",), ("tcp  port:1",),
    ]  # fmt: skip
    with pytest.raises(TapeError) as caught:
        of_commands(["flow.filter @web", "flow.sort byts", "Enter"], {"web": "tcp"})
    assert str(caught.value).splitlines() == [
        "--exec:2:11: there is no column 'byts'; did you mean bytes?",
        "--exec:3:1: there is no command 'Enter'; ctrl+p lists all",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Require probedeck >= 0.1", ""),
        ("Require console > 0.0.9", ""),
        (f"Require console == {VERSION}.0", ""),
        (f"Require console!={VERSION}", f"x:2: this needs console != {VERSION}, and is "),
        ("Require console >= 99", "x:2: this needs console >= 99, and is "),
        ("Require sh", ""),
        ("Require no-such-program", "x:2: this needs 'no-such-program', which is not on PATH"),
        ("flow.capture tcp", "x:2: flow.capture tcp changes what runs; --allow-write"),
    ],
)
def test_what_a_tape_needs_is_looked_at_before_it_is_played(line: str, words: str) -> None:
    tape = of_text(f"Enter\n{line}", "x")
    if not words:
        Startup(tape).check()
        return
    with pytest.raises(StepError) as caught:
        Startup(tape).check()
    assert str(caught.value).startswith(words)
    assert caught.value.exit_code == 3


def test_a_tape_that_changes_something_is_let_to() -> None:
    Startup(of_text("flow.capture tcp", "x"), allow_write=True).check()


def test_tapes_are_found_by_register_name_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    mine = write(tmp_path, mine="Enter\n")
    known = TapeStore({"triage": str(mine), "two": str(mine)}, {"web": "tcp"})
    assert known.names()[:2] == ("triage", "two")
    assert len(known.load("triage").steps) == 1
    assert len(TapeStore({}).load("triage").steps) > 5
    assert len(known.load("mine.tape").steps) == 1
    with pytest.raises(UsageError, match="no tape 'triag'; did you mean triage"):
        known.load("triag")
    with pytest.raises(UsageError, match="No such file"):
        known.load("other.tape")
    with pytest.raises(UsageError, match="nothing is recorded in register b"):
        known.load("b")
    kept = store.record("b", "Tab\nflow.filter @web\n")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert len(known.load("b").steps) == 2
    assert list(store.registers()) == ["b"]
    with pytest.raises(UsageError, match="registers are a to z"):
        store.register("../x")


def test_the_tapes_that_are_shipped_are_right_and_say_what_they_do() -> None:
    assert set(shipped()) == {"evidence", "talkers", "triage"}
    for path in shipped().values():
        tape = load(path)
        assert tape.title
        Startup(tape, allow_write=path.stem == "talkers").check()
