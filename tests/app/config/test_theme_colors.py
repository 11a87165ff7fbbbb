"""Theme files: their names, their colours, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.decorator import unfit
from app.config.load import load as load_settings
from app.config.theme_colors import BUILT_IN, DARK, LIGHT, NAMES, load, names, problems
from app.run.options import SECTIONS
from bpf.errors import ProbedeckError, UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    made = tmp_path / "probedeck" / "themes"
    made.mkdir(parents=True)
    return made


def test_built_in_themes_and_the_page_have_every_colour() -> None:
    assert all(set(theme.colors) == set(NAMES) for theme in BUILT_IN.values())
    page = (Path(__file__).parents[3] / "docs" / "console.md").read_text()
    assert all(f"`{name}`" in page for name in NAMES)


def test_a_file_replaces_colours_of_its_base(folder: Path) -> None:
    (folder / "sea.toml").write_text('base = "light"\nin_bar = "#AABBCC"\n')
    (folder / "plain.toml").write_text("")
    assert names() == ["dark", "light", "plain", "sea"]
    sea = load("sea")
    assert not sea.dark
    assert sea.colors == {**LIGHT.colors, "in_bar": "#AABBCC"}
    assert load("plain") == DARK
    assert list(problems()) == []


def test_every_mistake_has_its_place_and_the_nearest_name(folder: Path) -> None:
    file = folder / "sea.toml"
    file.write_text('base = ["dark"]\n\nacent = "#000000"\ntext = "red"\nmuted = 7\n')
    expected = [
        f"{file}:1: base: is not one of dark, light; other colours come from that theme",
        f"{file}:3: acent: unknown colour; did you mean accent?",
        f'{file}:4: text: is no colour; such as "#e4e4e4"',
        f'{file}:5: muted: is no colour; such as "#a8a8a8"',
    ]
    assert [str(each) for each in problems()] == expected
    with pytest.raises(ProbedeckError) as raised:
        load("sea")
    assert [str(each) for each in raised.value.mistakes] == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("see", "there is no theme 'see'; did you mean sea?"),
        ("../sea", "'../sea' cannot be the name of a theme; "),
        ("", "'' cannot be the name of a theme; "),
    ],
)
def test_a_name_without_a_file_is_refused(folder: Path, name: str, said: str) -> None:
    (folder / "sea.toml").write_text("")
    with pytest.raises(UsageError, match="^" + said.replace("?", r"\?").replace(".", r"\.")):
        load(name)


def test_the_settings_place_such_a_name(folder: Path) -> None:
    (folder / "sea.toml").write_text("")
    file = folder.parent / "config.toml"
    file.write_text('[ui]\nmouse = true\ntheme = "see"\n')
    (error,) = unfit(load_settings(str(file), SECTIONS, {}))
    assert str(error) == f"{file}:3: there is no theme 'see'; did you mean sea?"
