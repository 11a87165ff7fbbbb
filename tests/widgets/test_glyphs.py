"""ASCII in the place of other characters: as many cells, and something to be recognised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.cells import cell_len

from bpf.errors import printable
from widgets.sparkline import BARS, LOST, MARK
from widgets.terminal.terminal_state import ascii_of


@pytest.mark.slow
@given(some.text(max_size=20).map(printable))
def test_it_is_ascii_of_as_many_cells(text: str) -> None:
    drawn = ascii_of(text)
    assert drawn.isascii()
    assert len(drawn) == cell_len(text)


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("plain", "plain"),
        ("größe", "gr??e"),
        ("漢字", "????"),
        ("e\u0301", "?"),
        ("│ ─ ╭╮", "| - ++"),
        ("Rate▼ a…", "Ratev a~"),
    ],
)
def test_what_has_a_likeness_keeps_it(text: str, drawn: str) -> None:
    assert ascii_of(text) == drawn


def test_bars_of_different_height_and_losses_stay_different() -> None:
    assert ascii_of(f"{BARS}{LOST} ") == ".:-=+*%#x "
    assert ascii_of(MARK) == "*"  # its colour tells it from a bar
