"""Settings come from the file, then from the environment; what is wrong says where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli.decorator import unfit
from app.config.load import LoadedSettings, load
from app.config.model import Ui
from app.config.toml_lines import TomlDocument, dumped
from app.run.options import SECTIONS, Options
from bpf.errors import UsageError
from probes.config.options import settings_of
from tests.support.nobody import let_others_reach

Read = Callable[..., LoadedSettings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Loads a file of this text, with these variables."""

    def of(text: str, **environment: str) -> LoadedSettings:
        file = tmp_path / "config.toml"
        file.write_text(text)
        return load(str(file), SECTIONS, environment)

    return of


def wrong(loaded: LoadedSettings) -> list[str]:
    """The problems, without the name of the directory."""
    return [str(problem).partition("config.toml")[2] or str(problem) for problem in loaded.problems]


def test_every_option_is_a_setting_with_a_type_and_a_meaning() -> None:
    run, ui = settings_of(Options), settings_of(Ui)
    assert not run.keys() & ui.keys()  # their variables would be the same
    for setting in (*run.values(), *ui.values()):
        assert setting.help, setting.name
        if setting.default is not None:
            assert setting.of_toml(setting.default) == setting.default


def test_what_the_file_says_and_where(read: Read, tmp_path: Path) -> None:
    loaded = read(
        '[ui]\ntheme = "light"\nmouse = false\n\n[run]\ninterval = 2\nbits = 9\n'
        'trace = ["a", "b"]\ninput = "mirrored"\nprobe = ["sizes.toml", "/abs.toml"]\n'
        'out = "here"\npolicies = "p.toml"'
    )
    assert not loaded.problems
    assert loaded.values == {
        "theme": "light", "mouse": False, "interval": 2.0, "bits": 9, "trace": ["a", "b"],
        "input": "mirrored", "out": "here",
        # Files that it names are beside it.
        "probe": [f"{tmp_path}/sizes.toml", "/abs.toml"], "policies": f"{tmp_path}/p.toml",
    }  # fmt: skip
    assert loaded.origins["theme"] == f"{tmp_path}/config.toml:2"
    assert loaded.origins["out"] == f"{tmp_path}/config.toml:11"
    assert (loaded.settings.origin, loaded.state) == (f"{tmp_path}/config.toml", "used")


def test_trusted_hosts_have_their_own_section(read: Read) -> None:
    assert read('[monitor]\ntrusted = ["192.0.2.1"]').values == {"trusted": ["192.0.2.1"]}
    (wrong,) = read('[run]\ntrusted = ["192.0.2.1"]').problems
    assert str(wrong).endswith(":2: [run] trusted: unknown key; it belongs into [monitor]")


def test_variables_win_over_the_file(read: Read) -> None:
    loaded = read(
        "[run]\ninterval = 2\nno_names = true\nbits = 9",
        PROBEDECK_INTERVAL="0.5",
        PROBEDECK_NO_NAMES="off",
        PROBEDECK_BITS="",
        PROBEDECK_POLICY="a: flows > 5 -> trace:3\n\nb: packets > 9 -> dns\n",
        PROBEDECK_GLYPHS="ascii",
        PROBEDECK_DIFF="0",
        OTHERS="x",
    )
    assert not loaded.problems
    assert not loaded.settings.warnings
    assert loaded.values == {
        "interval": 0.5, "no_names": False, "bits": 9, "glyphs": "ascii",
        "policy": ["a: flows > 5 -> trace:3", "b: packets > 9 -> dns"],
    }  # fmt: skip
    assert loaded.origins["interval"] == "PROBEDECK_INTERVAL"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"PROBEDECK_INTERVAL": "fast"},
            "PROBEDECK_INTERVAL: 'fast' is not a number (column 1); "
            "units are ns, us, ms, s, m, h, d",
        ),
        ({"PROBEDECK_BITS": "1.5"}, "PROBEDECK_BITS: is not a whole number"),
        ({"PROBEDECK_API": "si"}, "PROBEDECK_API: is not true or false"),
        (
            {"PROBEDECK_GLYPHS": "blok"},
            "PROBEDECK_GLYPHS: is not one of auto, braille, block, ascii; did you mean block?",
        ),
    ],
)
def test_a_wrong_value_of_a_variable_is_an_error(variables: dict[str, str], says: str) -> None:
    assert [str(each) for each in load("none", SECTIONS, variables).problems] == [says]


def test_a_variable_that_nothing_knows_is_a_warning() -> None:
    unknown = {"PROBEDECK_INTERVALL": "2", "PROBEDECK_PORT": "x", "PROBEDECK_SERVICE_HOST": "x"}
    loaded = load("none", SECTIONS, unknown)
    assert not loaded.problems
    assert loaded.settings.warnings == (
        "PROBEDECK_INTERVALL: no setting has this name; did you mean PROBEDECK_INTERVAL?",
        "PROBEDECK_PORT: no setting has this name",
        "PROBEDECK_SERVICE_HOST: no setting has this name",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[ui]\nthme = 1", ":2: [ui] thme: unknown key; did you mean theme?"),
        ("[rnu]\nx = 1", ":1: [rnu]: unknown section; did you mean run?"),
        ('theme = "dark"', ":1: [theme]: unknown section; it belongs into [ui]"),
        ("ui = 1", ":1: [ui]: is no section"),
        ("ui.mouse = 1", ":1: [ui] mouse: is not true or false"),
        ("[run]\n\ninterval = true", ":3: [run] interval: is not a number"),
        ('[run]\ninterval = "1w"', ":2: [run] interval: 'w' is no unit here"),
        ("[run]\nbits = 1.5", ":2: [run] bits: is not a whole number"),
        ('[run]\ntrace = "a"', ":2: [run] trace: is no list; it is a list, each a text"),
        ("[run]\ntrace = [1]", ":2: [run] trace: is not a text"),
        (
            '[run]\ninput = "miror"',
            ":2: [run] input: is not one of regular, mirrored, telemetry; did you mean mirrored?",
        ),
        ('[keys]\n"f99" = "view.flows"', ":2: [keys] f99: there is no key 'f99'; "),
        ('[keys.flows]\nq = "view.flow"', ":2: [keys.flows] q: there is no command 'view.flow' "),
        ("[keys.flow]\nq = 'app.quit'", ":1: [keys] flow: there is no screen 'flow'; did you mean"),
        ("[keys]\nq = 1", ":2: [keys] q: is neither a text nor a list of texts; "),
        ("[macros]\na = 'no.tape'", ":2: [macros] a: there is no such file; looked for /"),
        ("[columns]\nflow = ['rate']", ":2: [columns] flow: there is no such table; did you mean"),
        ("[columns]\nflows = ['rat']", ":2: [columns] flows: flows have no column 'rat'; did you"),
        ("[columns]\nflows = []", ":2: [columns] flows: is no list of columns' names"),
        ("[filters]\nweb = '(port:80'", ":2: [filters] web: "),
        ("[filters]\nweb = '@wb'", ":2: [filters] web: "),
        ("[filters]\nweb = 443", ":2: [filters] web: is not a text"),
        ("[ui\n", ":1: invalid TOML at column 4"),
        ('[ui]\ntheme = "secret', ": invalid TOML at its end; unterminated string"),
        ("[ui]\nmouse = true\n[ui]", ":3: invalid TOML at column 4; it is defined twice"),
        ("a = " + "[" * 5000, ": this is nested too deep"),
        ('[ui]\n"\\u001b[31mx\\n" = 1', ":2: [ui] ?[31mx?: unknown key; there are"),
        ("[keys]\nf12 = '@'", ":2: [keys] f12: @ is no tape; such as @triage"),
        ("[ui]\nmouse = true\nmouse = secret", ":3: invalid TOML at column 9"),
    ],
)
def test_what_is_wrong_says_where_and_what_may_be_meant(read: Read, text: str, says: str) -> None:
    loaded = read(text)
    (said,) = wrong(loaded)
    assert said.startswith(says)
    assert "secret" not in said
    with pytest.raises(UsageError):
        loaded.check()


def test_all_that_is_wrong_is_found_at_once_and_the_first_is_told(read: Read) -> None:
    loaded = read("[ui]\nthme = 1\ntheme = 2\n[rum]\n[run]\ninterval = 2")
    assert len(wrong(loaded)) == 3
    assert loaded.values == {"interval": 2.0}
    with pytest.raises(UsageError, match=r"theme\? \(and 2 more: probedeck config validate\)"):
        loaded.check()


def test_values_that_no_command_takes_are_found_too(read: Read) -> None:
    loaded = read('[run]\ninterval = 1000\ningress = "nat"\nonly = true', PROBEDECK_DURATION="-1")
    assert not loaded.problems
    found = sorted(str(error).rpartition("/")[2] for error in unfit(loaded))
    assert found == [
        "PROBEDECK_DURATION: --duration -1 is not more than 0",
        "config.toml:2: --interval 1000 is not between 0.01 and 300 seconds",
        "config.toml:3: --ingress 'nat' is not auto, xdp, tc",
        "config.toml:4: --only without a probe; give --probe FILE, or --api",
    ]


def test_filters_of_no_rows_are_found_too(read: Read) -> None:
    loaded = read("[filters]\nweb = 'rate>1M @slow'\nslow = 'rtt>50ms'\nwen = 'prot:tcp'")
    assert not loaded.problems
    (error,) = unfit(loaded)
    assert "config.toml:4: [filters] wen: " in str(error)


def test_sections_of_the_operators_own_names(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.tape").touch()
    loaded = read(
        '[keys]\n"ctrl+g" = ["view.flows", "flow.sort rate"]\nf12 = "@flood"\n'
        '[keys.flows]\nf12 = ""\n'
        '[macros]\nflood = "a.tape"\n[columns]\nflows = ["rate", "source"]\n'
        '[filters]\nweb = "proto:tcp port:80,443"\n'
    )
    assert not loaded.problems
    settings = loaded.settings
    assert settings.keys == {
        "": {"ctrl+g": ("view.flows", "flow.sort rate"), "f12": "@flood"}, "flows": {"f12": ""},
    }  # fmt: skip
    assert settings.macros == {"flood": f"{tmp_path}/a.tape"}
    assert settings.columns == {"flows": ("rate", "source")}
    assert settings.filters == {"web": "proto:tcp port:80,443"}


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    usual = tmp_path / "probedeck" / "config.toml"
    assert (load("", SECTIONS, {}).file, load("", SECTIONS, {}).state) == (str(usual), "not there")
    usual.parent.mkdir()
    usual.write_text("[run]\nbits = 5")
    other, third = tmp_path / "other.toml", tmp_path / "third.toml"
    other.write_text("[run]\nbits = 6")
    third.write_text("[run]\nbits = 7")
    variable = {"PROBEDECK_CONFIG": str(other)}
    assert load("", SECTIONS, {}).values == {"bits": 5}
    assert load("", SECTIONS, variable).values == {"bits": 6}
    assert load(str(third), SECTIONS, variable).values == {"bits": 7}
    assert load("none", SECTIONS, variable) == LoadedSettings()
    assert load("", SECTIONS, {"PROBEDECK_CONFIG": "none"}) == LoadedSettings()
    (problem,) = load("missing.toml", SECTIONS, {}).problems
    assert str(problem) == "missing.toml cannot be read: No such file or directory"


def test_a_file_that_is_not_to_be_trusted_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_others_reach(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SUDO_UID", "65534")
    file = tmp_path / "probedeck" / "config.toml"
    file.parent.mkdir()
    file.write_text("[run]\nbits = 5")
    os.chown(file, 1, 1)
    loaded = load("", SECTIONS, {})
    assert (loaded.values, loaded.problems, loaded.state) == ({}, (), "left out")
    assert loaded.settings.warnings == (
        f"{file} cannot be read: it belongs to another account than root and the user; "
        f"chown root {file}: it is left out",
    )
    # Its keys could run programs as root: a file that is named is refused.
    (problem,) = load(str(file), SECTIONS, {}).problems
    assert problem.message.startswith(f"{file} cannot be read: it belongs to another account")


def test_lines_of_keys_however_they_are_written() -> None:
    text = (
        '# [ui]\n[ ui ] # x\ntheme="a"\n[keys . "flows"]\n"ctrl+g" = """\n\n"""\n'
        "'q' = [\n 'x',\n]\n[run]\nouter.inner = 1\n[[many]]\n[many.below]\nx = 1"
    )
    document = TomlDocument.of(Path("f"), text)
    for keys, line in (
        (("ui",), 2), (("ui", "theme"), 3), (("keys", "flows", "ctrl+g"), 5),
        (("keys", "flows", "q"), 8), (("run", "outer", "inner"), 12), (("run", "outer"), 12),
        (("many", 0, "below", "x"), 15), (("many", 1), 13),
    ):  # fmt: skip
        assert document.place(keys) == f"f:{line}"


@pytest.mark.parametrize(
    "value", ["", 'a"b\\c', "\x00\x1f\x7f\x9b", "漢字\N{SNOWMAN}\U0001f600", "a\nb\t", True, 1.5, 3]
)
def test_what_is_dumped_is_read_again(value: object) -> None:
    assert TomlDocument.of(Path("f"), f"x = {dumped(value)}").data == {"x": value}
    assert TomlDocument.of(Path("f"), f"x = {dumped([value])}").data == {"x": [value]}
