"""Completions of typed text."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.complete import Completer, Completion, usage
from app.commands.model import ParameterKind


def terms(text: str, position: int) -> Completion:
    """In the place of a filter language: two fields."""
    begin = text.rfind(" ", 0, position) + 1
    known = (name for name in ("port:", "proto:") if name.startswith(text[begin:position]))
    return Completion(begin, tuple(known))


COMPLETER = Completer(
    {
        ParameterKind.THEME: lambda: ("dark", "light"),
        ParameterKind.PROBE: lambda: ("flow", "my probe"),
        ParameterKind.TAPE: lambda: ["triage"],
    },
    terms,
)


def completed(typed: str, name: str = "", screen: str = "") -> list[str]:
    """The text with each candidate; `|` is where the cursor is, at the end if nowhere."""
    before, _, after = typed.partition("|")
    found = COMPLETER.complete(name, before + after, len(before), screen)
    return [found.applied(before + after, len(before), each)[0] for each in found.candidates]


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("flow.so", ["flow.sort"]),
        ("  flow.so", ["  flow.sort"]),
        ("rollb", ["program.rollback"]),
        ("flow.so| bytes", ["flow.sort bytes"]),
        ("flow.sort pack", ["flow.sort packets", "flow.sort packet_rate"]),
        ("flow.sort bytes ", []),
        ("app.theme ", ["app.theme dark", "app.theme light"]),
        ("flow.filter tcp po", ["flow.filter tcp port:"]),
        ("flow.filter tcp p|x", ["flow.filter tcp port:x", "flow.filter tcp proto:x"]),
        ("probe.remove ", ["probe.remove flow", 'probe.remove "my probe"']),
        ("probe.remove my", ['probe.remove "my probe"']),
        ('probe.remove "my p', ['probe.remove "my probe"']),
        ("trigger.toggle ", []),
        ("nothing of ", []),
        ("nonsense", []),
    ],
)
def test_a_line_goes_on(typed: str, made: list[str]) -> None:
    assert completed(typed) == made


def test_values_that_a_command_asks_for_are_as_they_are() -> None:
    assert completed("my", "probe.remove") == ["my probe"]
    assert completed("tcp pr", "flow.filter") == ["tcp proto:"]


def test_the_screens_own_commands_come_first_and_names_match_anywhere_else() -> None:
    assert completed("sort", screen="triggers")[0] == "trigger.sort"
    assert completed("sort", screen="flows")[0] == "flow.sort"
    assert all("sort" in name for name in completed("sort"))


def test_files_are_completed_directory_by_directory(tmp_path: Path) -> None:
    for name in ("probe.toml", "program.c", ".hidden", "a file"):
        (tmp_path / name).touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "bad\x1bname").touch()
    at = f"probe.add {tmp_path}/"
    assert completed(f"{at}pro") == [f"{at}probe.toml", f"{at}program.c"]
    assert completed(f"{at}d") == [f"{at}deep/"]
    assert completed(f"{at}.") == [f"{at}.hidden"]
    assert completed(f"{at}a") == [f'probe.add "{tmp_path}/a file"']
    assert completed(f"{tmp_path}/a", "probe.add") == [f"{tmp_path}/a file"]
    assert len(completed(at)) == 4
    assert completed(f"{at}none/x") == []


def test_how_a_command_is_used_is_told() -> None:
    assert usage("flow.sort rate x") == "flow.sort [COLUMN]: Sort by the next column"
    assert usage("nonsense") == usage("") == ""
