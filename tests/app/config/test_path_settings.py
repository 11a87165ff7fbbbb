"""Options of path tracing: `[paths]` of the file, variables, `run`, `lab`, `trace` and policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from app.cli.decorator import unfit
from app.cli.main import cli
from app.config.load import load
from app.lab.plan import LabPlan
from app.run import headless
from app.run.options import SECTIONS
from app.run.spec import RunSpec
from bpf.errors import UsageError
from probes.config.options import settings_of
from probes.path.options import Guard, Guarded, PathOptions

INTERNAL = {"destinations", "ingress"}
FILE = """
[paths]
guard = "none"
guarded = "all"
rate = 20
"""
POLICIES = """
[[policy]]
name = "slow"
condition = "flows > 500"
run = ["trace:2"]
[paths]
guarded = "all"
rate = 5
"""


@pytest.fixture
def paths_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PathOptions]:
    """Returns the options with which a command would trace."""
    specs: list[RunSpec] = []
    monkeypatch.setattr(headless, "run", lambda spec, *_: specs.append(spec))

    def of(*arguments: str, **variables: str) -> PathOptions:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        cli(list(arguments), standalone_mode=False)
        return specs.pop().paths

    return of


RUN = ("run", "-i", "lo", "--headless", "--config")
TRACE = ("trace", "192.0.2.1", "-i", "lo", "--config")


def test_every_option_of_the_probe_is_a_setting_with_its_default() -> None:
    names = {each.name for each in fields(PathOptions)} - INTERNAL
    assert set(settings_of(PathOptions)) == names


@pytest.mark.parametrize("command", [RUN, TRACE])
def test_the_file_then_the_variable_then_the_option(
    command: tuple[str, ...], paths_of: Callable[..., PathOptions], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(FILE)
    assert paths_of(*command, "none") == PathOptions()
    expected = PathOptions(rate=20, guard=Guard.NONE, guarded=Guarded.ALL)
    assert paths_of(*command, str(file)) == expected
    found = paths_of(*command, str(file), PROBEDECK_PATH_GUARD="checksum")
    assert found.guard is Guard.CHECKSUM
    option = "--guard" if command is TRACE else "--path-guard"
    assert paths_of(*command, str(file), option, "discard").guard is Guard.DISCARD


def test_wrong_values_are_told_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[paths]\nguarded = "some"\nrte = 3\n')
    said = [
        str(each).partition("config.toml")[2] for each in load(str(file), SECTIONS, {}).problems
    ]
    assert said == [
        ":2: [paths] guarded: is not one of end, all",
        ":3: [paths] rte: unknown key; did you mean rate?",
    ]
    file.write_text("[paths]\nrate = 0\n")
    loaded = load(str(file), SECTIONS, {})
    assert not loaded.problems
    assert [str(each).partition("config.toml")[2] for each in unfit(loaded)] == [
        ":2: a rate of 0 is not between 0.1 and 100000 probes/s"
    ]
    with pytest.raises(UsageError) as caught:
        cli([*RUN, str(file)], standalone_mode=False)
    assert "config.toml:2: a rate of 0" in str(caught.value)


def test_a_file_of_policies_sets_what_no_option_sets(
    paths_of: Callable[..., PathOptions], tmp_path: Path
) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICIES)
    run = (*RUN, "none", "--policies", str(file))
    assert paths_of(*run) == PathOptions(rate=5, guarded=Guarded.ALL)
    assert paths_of(*run, "--path-rate", "50") == PathOptions(rate=50, guarded=Guarded.ALL)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('guard = "some"', "paths.guard"),
        ("burst = 9", "paths: a burst of 9 is not between 1 and 8 probes"),
        ("destinations = 3", "paths.destinations: no such key"),
    ],
)
def test_what_a_file_of_policies_may_not_set(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(f"{POLICIES}{line}\n")
    with pytest.raises(UsageError) as caught:
        cli([*RUN, "none", "--policies", str(file)], standalone_mode=False)
    assert words in str(caught.value)


def test_the_rate_of_the_lab_is_its_traffic(
    monkeypatch: pytest.MonkeyPatch, paths_of: Callable[..., PathOptions]
) -> None:
    made: list[Any] = []

    class Nowhere:
        interface = "lo"

        def __init__(self, plan: LabPlan, **options: Any) -> None:
            made.append(options)

        def __enter__(self) -> Nowhere:
            return self

        def __exit__(self, *_: object) -> None: ...

        def enter(self) -> None: ...

        watched = None

    monkeypatch.setattr("app.lab.network.Lab", Nowhere)
    found = paths_of(
        "lab", "--headless", "--config", "none", "--rate", "3", "--path-rate", "7",
        PROBEDECK_PATH_BURST="2",
    )  # fmt: skip
    assert (made[0]["rate"], found.rate, found.burst) == (3.0, 7.0, 2)
