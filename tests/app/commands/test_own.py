"""Own commands: words and fields, without a shell."""

from __future__ import annotations

import pytest

from app.commands.line import parse
from app.commands.own import filled, words_of
from app.config.keymap import Keymap
from app.config.model import Settings
from app.tape.load import of_commands
from bpf.errors import UsageError


@pytest.mark.parametrize(
    "value", ["a; rm -rf /", "$(id) `id` | x > y", "a 'b' \"c", "{name}", "a\\"]
)
def test_a_field_stays_in_its_word(value: str) -> None:
    words = words_of("printf '%s %s' x={name} \"{{}}\"")
    assert filled(words, {"name": value}) == ["printf", "%s %s", f"x={value}", "{}"]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("ss dst {destinatoin}", "(column 2); did you mean destination?"),
        ("ss {name!r}", "no field 'name!r'"),
        ("awk {print", "has a single brace"),
        ("{name} -x", "a field cannot name the program"),
        ("ss 'x", "no closing quotation"),
        ("''", "a program is missing"),
    ],
)
def test_mistakes_of_a_template(template: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"!{template}")
    assert problem in str(caught.value)


def test_a_row_without_the_field_and_a_value_that_looks_like_an_option() -> None:
    with pytest.raises(UsageError, match="this row has no name; it has source"):
        filled(["x", "{name}"], {"source": "::1"})
    with pytest.raises(UsageError, match="'-oProxyCommand=x' would be an option"):
        filled(["ssh", "{name}"], {"name": "-oProxyCommand=x"})
    assert filled(["ssh", "--", "h={name}"], {"name": "-x"}) == ["ssh", "--", "h=-x"]
    with pytest.raises(UsageError, match="control characters"):
        filled(["x", "{text}"], {"text": "a\0b"})


def test_a_key_shows_its_own_command() -> None:
    keymap = Keymap(Settings(keys={"": {"ctrl+l": "!ss -tinp dst {destination}"}}))
    bound = next(each for each in keymap.of("") if each.key == "ctrl+l")
    assert bound.title == "!ss -tinp dst {destination}"
    assert bound.lines == ("app.run ss -tinp dst {destination}",)


@pytest.mark.parametrize("line", ["!id", "bind j !id", "app.bind j app.bind k app.run id"])
def test_tapes_may_neither_run_nor_bind_a_program(line: str) -> None:
    assert parse(line).starts_program
    assert of_commands([line]).steps[0].instruction.writes
    assert not parse("bind j view.flows").starts_program
