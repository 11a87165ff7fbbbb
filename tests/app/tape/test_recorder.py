"""Keys as the lines of a tape."""

from __future__ import annotations

import pytest
from textual.events import Key

from app.console.tapes.recorder import Recorder
from app.tape.load import of_text


def recorded(*keys: tuple[str, str | None], pauses: tuple[float, ...] = ()) -> list[str]:
    """Recorded lines, without the first, of keys and their characters."""
    recorder = Recorder("q", "flows")
    for key, character in keys:
        recorder.key(Key(key, character))
    for entry, at in zip(recorder._entries, pauses, strict=False):
        entry.at = at
    text = recorder.text()
    assert len(of_text(text, "q").steps) == recorder.count + 1
    return text.splitlines()[1:]


def typed(text: str) -> list[tuple[str, str | None]]:
    return [({" ": "space", '"': "quotation_mark"}.get(c, c), c) for c in text]


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (typed("a b"), ['Type "a b"']),
        (typed('say "a"'), ["Type 'say \"a\"'"]),
        (typed("a\"b'c`d"), ['Type `a"b\'c`', 'Type "`d"']),
        ([*typed("x"), ("enter", "\r"), ("enter", "\r"), ("enter", "\r")], ['Type "x"', "Enter 3"]),
        ([("tab", "\t"), ("shift+tab", None), ("ctrl+p", "\x10")], ["Tab", "Shift+Tab", "Ctrl+P"]),
        ([("euro_sign", "€"), ("rightwards_arrow", "→")], ['Type "€→"']),
        ([("f13", None), ("alt+x", None), ("ctrl+left", None)],
         ['Key "f13"', "Alt+X", "Ctrl+Left"]),
        ([("space", " "), ("<ignore>", "\x1b[x")], ['Type " "']),
        ([("backspace", "\x7f"), ("backspace", "\x7f"), ("delete", None)],
         ["Backspace 2", "Delete"]),
    ],
)  # fmt: skip
def test_keys_are_typed_and_counted(keys: list[tuple[str, str | None]], lines: list[str]) -> None:
    assert recorded(*keys) == lines


def test_a_recording_without_a_key_is_a_tape() -> None:
    assert Recorder("q", "flows").text() == "Action view.flows\n"


def test_time_without_a_key_is_noted() -> None:
    lines = recorded(*typed("abc"), ("enter", None), pauses=(0.0, 0.4, 1.6, 1.7))
    assert lines == ['Type "ab"', "# 1.2 s", 'Type "c"', "Enter"]


def test_commands_stand_in_the_place_of_their_keys() -> None:
    recorder = Recorder("q", "flows")
    sort, wrong = Key("s", "s"), Key("x", "x")
    for key in (sort, wrong, Key("y", "y")):
        recorder.key(key)
    recorder.called(["flow.sort", "flow.reverse"], sort)
    recorder.called(["path.untrace"], wrong)
    recorder.refused(wrong)
    recorder.paste("a b\nc")
    assert recorder.text().splitlines() == [
        "Action view.flows", "Action flow.sort", "Action flow.reverse", 'Type "ya b"', "Enter",
        'Type "c"',
    ]  # fmt: skip


def test_what_is_called_by_its_name_stands_in_the_place_of_typing_it() -> None:
    recorder = Recorder("q", "flows")
    palette = Key("ctrl+p", None)
    for key in (Key("j", "j"), palette, Key("q", "q"), Key("enter", None)):
        recorder.key(key)
    recorder.called(["app.palette"], palette)
    recorder.called(["flow.sort bytes"])
    recorder.called(["flow.trace"])
    assert recorder.text().splitlines() == [
        "Action view.flows", 'Type "j"', "Action flow.sort bytes",
    ]  # fmt: skip


def test_what_a_prompt_refused_or_recalled_is_typed() -> None:
    recorder = Recorder("q", "flows")
    ask, enter = Key("slash", "/"), Key("enter", "\r")
    recorder.put("nothing asked", 1)
    recorder.key(ask)
    recorder.called(["flow.filter"], ask)
    for key in (*typed("tpc x"), ("enter", "\r")):
        recorder.key(Key(*key))
    recorder.put("tpc x", 5)
    recorder.key(Key("delete", None))
    lines = ["Action flow.filter", "Ctrl+U", 'Type "tpc x"', "Left 5", "Delete"]
    assert recorder.text().splitlines()[1:] == lines
    recorder.key(Key("up", None))
    recorder.key(enter)
    recorder.answered("proto:udp")
    lines = ["Action flow.filter", "Ctrl+U", 'Type "proto:udp"', "Enter"]
    assert recorder.text().splitlines()[1:] == lines
    recorder.answered("proto:udp")
    assert recorder.text().splitlines()[1:] == lines


def test_a_tape_does_not_end_its_own_recording() -> None:
    recorder = Recorder("q", "flows")
    stop = Key("Q", "Q")
    recorder.key(Key("j", "j"))
    recorder.key(stop)
    recorder._entries[-1].at += 60
    recorder.called(["macro.record"], stop)
    assert recorder.text() == 'Action view.flows\nType "j"\n'
    assert recorder.count == 1
