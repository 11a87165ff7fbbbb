"""Keys: an operator's bindings come before the defaults, and every mistake has its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.keys import Keys, _character_to_key, format_key

from app.commands.keys import CHARACTERS, SENT_AS, key_name, spoken, strokes
from app.commands.registry import REGISTRY
from app.config.keymap import Keymap
from app.config.model import Binding, Settings
from app.console.screens import SCREENS
from bpf.errors import UsageError


def keymap(keys: dict[str, dict[str, Binding]], origin: str = "/etc/c.toml") -> Keymap:
    macros = {"triage": "triage.tape", "flood-2": "flood.tape"}
    return Keymap(Settings(keys=keys, macros=macros, origin=origin))


def does(keys: Keymap, screen: str, key: str) -> tuple[str, ...] | None:
    """The commands of a key on a screen; None if the key is not bound."""
    for table in (keys.of(screen), keys.of("")):
        for bound in table:
            if bound.key == key:
                return bound.lines or bound.keys
    return None


@pytest.mark.parametrize("screen", SCREENS)
def test_no_usual_key_has_two_meanings_on_a_screen(screen: str) -> None:
    keys = [
        key_name(key)
        for command in REGISTRY.values()
        if command.screen in ("", screen)
        for key in command.keys.split(",")
        if key
    ]
    assert sorted(keys) == sorted(set(keys))


def test_keys_have_the_names_that_textual_has_for_them() -> None:
    for character in map(chr, range(33, 127)):
        assert key_name(character) == _character_to_key(character)
    assert all(format_key(name) == character for name, character in CHARACTERS.items() if
               name not in ("space", "minus"))  # fmt: skip
    for key in Keys:
        # Except keys that no terminal sends, and names of no key.
        if key.isascii() and not set(key) & set("<@") and key not in ("return", "ctrl-at"):
            if key in SENT_AS:
                with pytest.raises(UsageError, match="terminals send"):
                    key_name(key)
            else:
                assert key_name(key) == key


@pytest.mark.parametrize(
    ("text", "name"),
    [("/", "slash"), (" ", "space"), ("+", "plus"), ("ctrl++", "ctrl+plus"), ("G", "G"),
     ("shift+ctrl+f5", "ctrl+shift+f5"), ("ü", "ü"), ("question_mark", "question_mark")],
)  # fmt: skip
def test_a_key_may_be_written_as_what_it_types(text: str, name: str) -> None:
    assert key_name(text) == name


def test_keys_are_told_as_an_operator_calls_them() -> None:
    assert spoken("slash,ctrl+p,escape,down,space,left_square_bracket") == (
        "/, ctrl+p, esc, ↓, space, ["
    )
    assert spoken("") == ""
    assert strokes("2/a<enter><ctrl+p>") == ("2", "slash", "a", "enter", "ctrl+p")


def test_an_operators_keys_come_first_and_others_stay() -> None:
    keys = keymap(
        {
            "": {"f10": "view.flows", "q": "", "f6": ("view.flows", "flow.sort rate")},
            "flows": {"f": "flow.filter", "/": "flow.detail", "t": "flow.trace"},
        }
    )
    assert does(keys, "flows", "f10") == ("view.flows",)
    assert keys.keys("view.flows", "paths") == "f10,3"
    assert keys.keys("app.quit", "flows") == "ctrl+c"
    assert does(keys, "paths", "q") == ()
    assert does(keys, "paths", "f6") == ("view.flows", "flow.sort rate")
    assert keys.keys("flow.filter", "flows") == "f"
    assert keys.keys("flow.detail", "flows") == "slash,d"
    # Where a screen has a key, it is not what it is everywhere.
    assert does(keys, "flows", "t") == ("flow.trace",)
    assert does(keys, "paths", "t") == ("app.theme",)


def test_choosing_a_row_is_called_what_it_does_on_the_screen_also_by_another_key() -> None:
    keys = keymap({"": {"f10": "table.select"}, "flows": {"enter": "flow.detail"}})
    assert keys.keys("flow.open", "flows") == "f10"
    assert keys.keys("flow.detail", "flows") == "enter,d"
    assert does(keys, "flows", "f10") == ("table.select",)
    assert keys.keys("path.detail", "paths") == "f10,enter"


def test_a_key_plays_a_tape_or_other_keys(tmp_path: Path) -> None:
    (tmp_path / "my x.tape").touch()
    bound: dict[str, Binding] = {
        "f10": "@triage", "f11": "@2/dport:443<enter>", "f6": "@a",
        "f7": ("view.flows", "@flood-2"), "f12": "@my x.tape",
    }  # fmt: skip
    keys = keymap({"": bound}, f"{tmp_path}/c.toml")
    assert does(keys, "flows", "f10") == ("macro.play triage",)
    assert does(keys, "flows", "f6") == ("macro.play a",)
    assert does(keys, "flows", "f7") == ("view.flows", "macro.play flood-2")
    assert does(keys, "flows", "f12") == (f'macro.play "{tmp_path}/my x.tape"',)
    pressed = does(keys, "flows", "f11")
    assert pressed is not None
    assert pressed[:3] == ("2", "slash", "d")
    assert pressed[-1] == "enter"


@pytest.mark.parametrize(
    ("section", "key", "binding", "words"),
    [
        ("", "f10", "flow.sorted", "no command 'flow.sorted' (column 1); did you mean flow.sort?"),
        ("", "f10", "flow.sort byts", "no column 'byts' (column 11); did you mean bytes?"),
        ("", "f10", "@x.tape", "there is no such file; looked for /etc/x.tape"),
        ("", "f10", ("view.flows", "flow.sort byts"), "did you mean bytes?"),
        ("", "esc", "view.flows", "there is no key 'esc'; did you mean escape?"),
        ("", "F5", "view.flows", "did you mean f5?"),
        ("", "crtl+x", "view.flows", "did you mean ctrl?"),
        ("", "", "view.flows", "there is no key ''"),
        ("", "ctrl+A", "view.flows", "write ctrl+shift+a"),
        ("", "shift+a", "view.flows", "write A"),
        ("", "ctrl+i", "view.flows", "terminals send 'ctrl+i' as tab"),
        ("", "ctrl+[", "view.flows", "terminals send 'ctrl+[' as escape"),
        ("", "f5", "view.flows", "it is 'Compile and verify' on programs; say in [keys.programs]"),
        ("", "f5", "", "say in [keys.programs] what it does there"),
        ("", "f10", "@triaje", "there is no tape 'triaje'; did you mean triage?"),
        ("", "f10", "@2/<entr>", "there is no key 'entr'; did you mean enter?"),
        ("", "f10", "@2<enter", "'<enter' has no end"),
        ("", "f10", ("view.flows", "@2/<enter>"), "keys to press stand alone"),
        ("flows", "f10", "", ""),
    ],
)  # fmt: skip
def test_a_mistake_names_file_section_and_key(
    section: str, key: str, binding: Binding, words: str
) -> None:
    if not words:
        keymap({section: {key: binding}})
        return
    with pytest.raises(UsageError) as caught:
        keymap({section: {key: binding}})
    assert str(caught.value).startswith(f"/etc/c.toml: [keys] {key}: ")
    assert words in str(caught.value)


def test_one_key_in_two_spellings_and_a_screen_that_there_is_not_are_mistakes() -> None:
    with pytest.raises(UsageError, match=r"\[keys.flows\] slash: it is the key / again"):
        keymap({"flows": {"/": "flow.filter", "slash": "flow.sort"}})
    with pytest.raises(UsageError, match=r"there is no screen 'flow'; did you mean flows\?"):
        keymap({"flow": {"f10": "flow.filter"}})


def test_all_mistakes_can_be_had_and_the_rest_holds() -> None:
    found: list[tuple[tuple[str, ...], str]] = []
    settings = Settings(keys={"": {"f10": "nothing", "f11": "view.flows"}, "flows": {"x+y": ""}})
    keys = Keymap(settings, lambda at, error: found.append((at, error.message)))
    assert [at for at, _ in found] == [("keys", "f10"), ("keys", "flows", "x+y")]
    assert does(keys, "flows", "f11") == ("view.flows",)
    assert does(keys, "flows", "f10") is None
