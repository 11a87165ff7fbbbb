"""Bars in a cell: their length, their text, their tones, and what rates are tinted."""

from __future__ import annotations

import math

import pytest

from widgets.sparkline import behind, gauge
from widgets.table.rows import Pieces
from widgets.terminal.terminal_state import ascii_of
from widgets.tones import Tone, rate_tone


def drawn(pieces: Pieces) -> str:
    return "".join(text for text, _ in pieces)


@pytest.mark.parametrize(
    ("share", "barred"),
    [
        (0.0, ""),
        (math.nan, ""),
        (0.04, ""),
        (0.5, "    1"),
        (1.0, "    12 k/s"),
        (7.0, "    12 k/s"),
    ],
)
def test_a_bar_stands_behind_the_text_and_moves_by_cells(share: float, barred: str) -> None:
    pieces = behind("12 k/s", 10, share, "out", Tone.OUT)
    assert drawn(pieces) == "    12 k/s"
    assert "".join(text for text, tone in pieces if tone is Tone.OUT_BAR) == barred
    assert {tone for _, tone in pieces} <= {Tone.OUT_BAR, Tone.OUT}


def test_a_text_that_is_too_long_is_cut_and_control_characters_are_replaced() -> None:
    assert drawn(behind("123456", 4, 0.5, "in", Tone.IN)) == "   …"
    assert drawn(behind("a\x1bb", 4, 1.0, "in", Tone.IN)) == " a·b"
    assert behind("12", 0, 1.0, "in", Tone.IN) == ()


@pytest.mark.parametrize(
    ("share", "limit", "shown", "tone"),
    [
        (0.0, None, "          ", Tone.ACCENT),
        (0.5, None, "█████     ", Tone.ACCENT),
        (0.5125, None, "█████▏    ", Tone.ACCENT),
        (1.2, None, "██████████", Tone.ACCENT),
        (math.nan, None, "          ", Tone.ACCENT),
        (0.2, 0.8, "██      │ ", Tone.ACCENT),
        (0.9, 0.8, "████████│ ", Tone.WARN),
        (1.0, 0.8, "████████│█", Tone.WARN),
        (0.2, 1.0, "██       │", Tone.ACCENT),
    ],
)
def test_a_gauge_shows_a_share_and_its_limit(
    share: float, limit: float | None, shown: str, tone: Tone
) -> None:
    pieces = gauge(share, 10, limit)
    assert drawn(pieces) == shown
    assert {tone for _, tone in pieces} - {Tone.NORMAL} == {tone}


def test_eighths_of_a_gauge_stay_different_in_ascii() -> None:
    texts = {ascii_of(drawn(gauge(eighths / 8, 1))) for eighths in range(9)}
    assert len(texts) == 9
    assert ascii_of(drawn(gauge(0.21, 10, 0.5))) == "##.  |    "


@pytest.mark.parametrize(
    ("rate", "tone"),
    [(0, Tone.IN_LOW), (99e3, Tone.IN_LOW), (100e3, Tone.IN), (10e6, Tone.IN_HIGH)],
)
def test_a_rate_has_one_of_three_tones(rate: float, tone: Tone) -> None:
    assert rate_tone("in", rate) is tone
    assert rate_tone("out", rate) is Tone(tone.replace("in", "out"))
    assert rate_tone("in", math.nan) is Tone.IN_LOW
