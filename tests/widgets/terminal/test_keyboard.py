"""Keys that come with Escape, after it, and within what is pasted."""

from __future__ import annotations

import pytest
from textual.events import Key, Paste

from widgets.terminal.driver import Keyboard


def typed(*reads: str) -> list[tuple[str, str | None]]:
    """Keys and pasted texts of these reads, after which the terminal sends no more."""
    keyboard = Keyboard(debug=False)
    events = [event for text in reads for event in keyboard.feed(text)]
    while keyboard.waiting:
        events += keyboard.tick()
    keys = (each for each in events if isinstance(each, Key | Paste))
    return [
        (each.key, each.character) if isinstance(each, Key) else ("paste", each.text)
        for each in keys
    ]


@pytest.mark.parametrize("character", ["5", "3", "/", ":", "q", "S", " ", "-", "="])
def test_what_comes_after_escape_is_a_key_of_its_own(character: str) -> None:
    (alone,) = typed(character)
    assert typed("\x1b", character) == [("escape", "\x1b"), alone]
    assert typed("\x1b\x1b", character)[1:] == [("escape", "\x1b"), alone]
    assert typed("\x1b", f"\x1b{character}")[0] == ("escape", "\x1b")


@pytest.mark.parametrize(
    ("character", "key"),
    [
        ("5", "alt+5"),
        ("x", "alt+x"),
        ("S", "alt+shift+s"),
        ("/", "alt+slash"),
        ("=", "alt+equals_sign"),
    ],
)
def test_what_comes_with_escape_is_a_key_with_alt(character: str, key: str) -> None:
    assert typed(f"j\x1b{character}k") == [("j", "j"), (key, character), ("k", "k")]


@pytest.mark.parametrize(
    ("reads", "key"),
    [
        (("\x1b[A",), "up"), (("\x1b", "[A"), "up"), (("\x1b[", "A"), "up"), (("\x1bOP",), "f1"),
        (("\x1b", "OP"), "f1"), (("\x1b[1;3C",), "alt+right"), (("\x1bb",), "ctrl+left"),
        (("\x1b",), "escape"),
    ],
)  # fmt: skip
def test_sequences_are_still_one_key(reads: tuple[str, ...], key: str) -> None:
    assert [name for name, _ in typed(*reads)] == [key]


@pytest.mark.parametrize(
    "reads",
    [
        ("\x1b[200~a\x1b5q\x1b[201~",),
        ("\x1b[200~a", "\x1b5q", "\x1b[201~"),
        ("\x1b[200~a\x1b", "5q\x1b[20", "1~"),
    ],
)
def test_in_what_is_pasted_there_are_no_keys(reads: tuple[str, ...]) -> None:
    assert typed(*reads, "j") == [("paste", "a5q"), ("j", "j")]
