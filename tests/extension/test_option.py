"""A new option is one field of the class of the thing that it configures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

from app.cli.command import GroupedCommand
from app.cli.decorator import takes
from app.cli.subcommands.config import template
from app.config.load import load
from app.run.options import SECTIONS
from bpf.errors import TextError
from probes.config.options import changed, changes, made, setting, settings_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """Options of toys."""

    PREFIX: ClassVar = "toy"

    speed: float = setting("Toys", 1.5, "Turns a second.", "N")
    colour: Colour = setting("Toys", Colour.RED, "Colour of toys.")
    loud: bool = setting("Toys", False, "Make noise.")
    number: int = 1
    """Not an option."""


def test_option_file_variable_help_and_changes_follow_from_the_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sections = {**SECTIONS, "toys": settings_of(ToyOptions)}
    monkeypatch.setattr("app.cli.decorator.SECTIONS", sections)
    monkeypatch.setattr("app.cli.subcommands.config.SECTIONS", sections)
    got: list[ToyOptions] = []

    @click.command(cls=GroupedCommand)
    @takes(ToyOptions)
    def play(toys: ToyOptions) -> None:
        got.append(toys)

    file = tmp_path / "config.toml"
    file.write_text('[toys]\nspeed = 3\ncolour = "blue"\n')
    run = ["--config", str(file), "--toy-loud"]
    assert CliRunner().invoke(play, run, env={"PROBEDECK_TOY_SPEED": "4"}).exit_code == 0
    assert got == [ToyOptions(4.0, Colour.BLUE, loud=True)]
    assert got[0].colour is Colour.BLUE
    help_text = CliRunner().invoke(play, ["--help"]).output
    assert re.search(r"Toys:\n +--toy-speed N +Turns a second.  \[default: 1.5\]", help_text)
    assert '# Colour of toys.\n# colour = "red"  # red | blue' in template()
    file.write_text('[toys]\ncolour = "bleu"\nnumber = 3\n')
    assert [str(each).partition(":")[2] for each in load(str(file), sections, {}).problems] == [
        "2: [toys] colour: is not one of red, blue; did you mean blue?",
        "3: [toys] number: unknown key; there are speed, colour, loud",
    ]


def test_changes_keep_the_other_fields() -> None:
    usual = ToyOptions(number=7)
    assert changed(usual, "colour=blue speed=2") == ToyOptions(2.0, Colour.BLUE, number=7)
    assert list(changes(ToyOptions)) == [
        "speed=", "colour=red", "colour=blue", "loud=true", "loud=false",
    ]  # fmt: skip
    with pytest.raises(TextError, match=r"speed is not a number \(column 17\)"):
        changed(usual, "loud=true speed=x")
    assert made(ToyOptions, {"speed": 2.0, "other": 3}) == ToyOptions(2.0)
