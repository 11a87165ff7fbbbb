"""`probedeck config` tells what applies and why; commands go by it, and options win."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from app.config.load import load
from app.run.options import SECTIONS
from tests.support.runs import deck_here


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the operator's file, which does not exist yet; the environment has no settings."""
    for name in os.environ:
        if name.startswith("PROBEDECK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.delenv("SUDO_UID", raising=False)
    return tmp_path / "probedeck" / "config.toml"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def test_help_is_not_cut_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = deck_here("config", "--help")
    assert code == 0
    assert not re.search(r"[a-z,;]\.\.\.", out)
    assert "PROBEDECK_INTERVAL=2" in out


def test_path_says_what_was_looked_for_and_what_became_of_it(file: Path) -> None:
    assert deck_here("config", "path") == (
        0, f"config  {file} (not there)\nstate   /state/probedeck\ndata    "
        f"{Path.home()}/.local/share/probedeck\n", "",
    )  # fmt: skip
    write(file, "[ui]")
    assert f"{file} (used)" in deck_here("config", "path")[1]
    write(file, "[ui")
    assert f"{file} (wrong)" in deck_here("config", "path")[1]


def test_init_writes_every_setting_as_a_comment_once(file: Path) -> None:
    assert deck_here("config", "init") == (0, f"{file}\n", "")
    text = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    # It sets nothing, and is right.
    assert not load("", SECTIONS, {}).values
    assert deck_here("config", "validate") == (0, f"{file}: nothing is wrong\n", "")
    # Uncommenting a line sets the default.
    lines = re.sub(r"(?m)^# (?=[\w\"+]+ = \S)", "", text.replace('triage = "', "# # "))
    data = tomllib.loads(lines)
    for section, of in SECTIONS.items():
        for name, setting in of.items():
            assert f"# {name} =" in text
            assert data[section].get(name) == setting.default
    assert data["columns"]["flows"]
    write(file, lines)
    assert deck_here("config", "validate")[0] == 0
    code, _, err = deck_here("config", "init")
    assert (code, err) == (2, f"probedeck: {file} exists already; --force replaces it\n")
    assert file.read_text() == lines
    assert deck_here("config", "init", "--force")[0] == 0
    assert file.read_text() == text


def test_show_tells_every_setting_and_where_it_is_from(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, '[run]\ninterval = 2\nno_names = true\nbits = 9\n[filters]\n"w b" = "port:80"\n'
                '[keys]\nf12 = "view.flows"\n[keys.flows]\nf12 = ["app.quit"]')  # fmt: skip
    monkeypatch.setenv("PROBEDECK_BITS", "10")
    monkeypatch.setenv("PROBEDECK_THEME", "light")
    code, out, err = deck_here("config", "show", "--origin", "--names", "--glyphs", "ascii")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for line in (
        'theme = "light"  # PROBEDECK_THEME', 'glyphs = "ascii"  # command line',
        "mouse = true  # default", f"interval = 2.0  # {file}:2",
        "bits = 10  # PROBEDECK_BITS", "# duration =  # default",
        "no_names = false  # command line", f"[filters]  # {file}",
    ):  # fmt: skip
        assert line in lines
    data = tomllib.loads(out)
    assert data["filters"] == {"w b": "port:80"}
    assert data["keys"] == {"f12": "view.flows", "flows": {"f12": ["app.quit"]}}
    write(file, deck_here("config", "show")[1])
    assert deck_here("config", "validate")[0] == 0


def test_validate_knows_the_fields_of_own_commands(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('[keys]\n"ctrl+l" = "!ss dst {destination}"\nf12 = "!ss dst {destinatoin}"\n')
    code, out, err = deck_here("config", "validate")
    place = f"{file}:3: [keys] f12"
    assert code != 0
    assert place in out + err
    assert "there is no field 'destinatoin'" in out + err
    assert "did you mean destination?" in out + err


def test_validate_tells_all_that_is_wrong(file: Path) -> None:
    run = "interval = 1000\nbits = 99\ncapture = 'rtt>5'\nfilter = 'prto:tcp'\n"
    run += "policy = ['a: flws > 5 -> dns', 'b: flows > 5 -> dns']\npolicies = 'none.toml'\n"
    run += "interfce = 'eth0'"
    write(file, f"\ufeff[ui]\nthme = 1\n[run]\n{run}\n")
    code, out, err = deck_here("config", "validate")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"{file}:2: [ui] thme: unknown key; did you mean theme?",
        f"{file}:4: --interval 1000 is not between 0.01 and 300 seconds",
        f"{file}:5: bits = 99 is not between 4 and 14",
        f"{file}:6: --capture: 'rtt>5' can't choose what is captured (column 1); it can filter "
        "what is shown",
        "rtt>5",
        "^",
        f"{file}:7: --filter: flows have no 'prto' (column 1); did you mean proto?",
        "prto:tcp",
        "^",
        f"{file}:8: policy 'a': condition: 'flws' is no metric (column 4); did you mean flows?",
        "a: flws > 5 -> dns",
        "   ^",
        f"{file}:9: {file.parent}/none.toml: No such file or directory; did you mean {file.name}?",
        f"{file}:10: [run] interfce: unknown key; did you mean interface?",
    ]
    code, _, err = deck_here("config", "validate", "/nowhere.toml")
    assert (code, err) == (2, "/nowhere.toml cannot be read: No such file or directory\n")


def test_validate_takes_a_variable_that_nothing_knows_for_wrong(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBEDECK_INTERVALL", "2")
    code, _, err = deck_here("config", "validate")
    assert code == 2
    assert err.endswith("did you mean PROBEDECK_INTERVAL?\n")


def test_a_command_goes_by_the_file_and_an_option_wins(file: Path) -> None:
    write(file, "[run]\nheadless = true\ninterval = 1000\n")
    extent = "is not between 0.01 and 300 seconds"
    code, out, err = deck_here("run", "-i", "lo")
    assert (code, out) == (2, "")
    assert err == f"probedeck: {file}:3: --interval 1000 {extent}\n"
    assert deck_here("run", "--interval", "400")[2] == f"probedeck: --interval 400 {extent}\n"
    # It ends before anything is watched: there is no such interface.
    assert deck_here("run", "-i", "lp", "--interval", "1")[2].startswith(
        "probedeck: no interface 'lp'"
    )
    terminal = deck_here("run", "-i", "lo", "--interval", "1", "--no-headless")[2]
    assert terminal.startswith("probedeck: the console needs a terminal")
    assert deck_here("run", "--config", "none")[2] == (
        "probedeck: the console needs a terminal; without one: probedeck run --headless\n"
    )


def test_what_is_wrong_stops_a_command_but_not_help(file: Path) -> None:
    write(file, "[ui]\nthme = 1\ntheme = 1")
    for command in ("run", "lab", "tour", "console", "trace"):
        code, _, err = deck_here(command)
        assert code == 2
        assert err == (
            f"probedeck: {file}:2: [ui] thme: unknown key; did you mean theme? (and 1 more: "
            "probedeck config validate)\n"
        )
    assert deck_here("run", "--help")[0] == 0
    assert deck_here("version")[0] == 0


def test_options_of_other_commands_are_not_taken_for_those_of_run(file: Path) -> None:
    write(file, '[run]\nviews = "flows"\nduration = -1')
    # `trace` has other views, but the common duration.
    err = deck_here("trace", "-i", "lo", "127.0.0.1")[2]
    assert err == f"probedeck: {file}:3: --duration -1 is not more than 0\n"
    write(file, '[run]\nviews = "flows"')
    assert deck_here("trace", "-i", "lp", "127.0.0.1")[2].startswith("probedeck: no interface 'lp'")


def test_a_layout_that_is_not_there_is_told_before_anything_starts(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.subcommands.run.need_terminal", lambda _: None)
    assert deck_here("run", "-i", "lo", "--layout", "mine")[2] == (
        "probedeck: there is no layout 'mine'; layout.save keeps one\n"
    )
