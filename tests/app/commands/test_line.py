"""Typed commands: their meaning, and the place of a mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.commands.line import parse, quoted
from app.console.screens import SCREENS
from bpf.errors import TextError


@pytest.mark.parametrize("first", ["app.console.screens", "app.config.sections"])
def test_each_screen_has_its_command_whichever_module_is_imported_first(first: str) -> None:
    program = f"import {first}; from app.commands.registry import REGISTRY; print(*REGISTRY)"
    printed = subprocess.check_output([sys.executable, "-I", "-c", program], text=True)
    assert set(printed.split()) >= {f"view.{name}" for name in SCREENS}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("flow.sort", ()),
        ("flow.sort  bytes ", ("bytes",)),
        ("flow.filter tcp  port:443", ("tcp  port:443",)),
        ('flow.filter "tcp"', ('"tcp"',)),
        ('probe.add "a file.toml"', ("a file.toml",)),
        (r'probe.add "a \"file\".toml"', ('a "file".toml',)),
        ("  view.flows", ()),
        (" : flow.sort bytes", ("bytes",)),
        (":10", (10,)),
        ("-5", (5,)),
        (":q", ()),
    ],
)
def test_a_line_is_read_and_written_again(line: str, values: tuple[str, ...]) -> None:
    asked = parse(line)
    assert asked.values == values
    assert parse(asked.line) == asked


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("", 1, "missing"),
        ("flow.sorted", 1, "did you mean flow.sort?"),
        ("  nonsense", 3, "ctrl+p"),
        ("flow.sort byts", 11, "did you mean bytes?"),
        ("flow.sort bytes rate", 17, "usage: flow.sort [COLUMN]"),
        ("view.flows now", 12, "takes no 'now'"),
        ('probe.add "a', 11, "no end"),
        ("time.go noon", 9, "12:30:05 or how long ago"),
        ("time.go", 8, "needs a moment"),
        ("time.back 0", 11, "no whole number"),
        (f"time.back {'9' * 5000}", 11, "from 1 to 999999"),
        (" :", 3, "missing"),
        (":flow.sort byts", 12, "did you mean bytes?"),
    ],
)
def test_a_mistake_has_its_column_and_what_to_do(line: str, column: int, words: str) -> None:
    with pytest.raises(TextError) as caught:
        parse(line)
    assert caught.value.column == column
    assert words in str(caught.value)
    assert caught.value.marked == (f"{line}\n{' ' * (column - 1)}^" if line else "")


def test_the_mark_is_below_what_it_is_about() -> None:
    marked = TextError("", "host:/日本/\tx\x1b ?", 12).marked
    assert marked == "host:/日本/\tx? ?\n" + " " * 11 + "\t ^"


def test_a_value_is_quoted_where_it_must_be() -> None:
    assert [quoted(text) for text in ("a", "", "a b", 'say "a"')] == [
        "a", '""', '"a b"', '"say \\"a\\""',
    ]  # fmt: skip
