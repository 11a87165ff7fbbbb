"""Bars on a shared scale, losses, and marks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from widgets.sparkline import BARS, LOST, MARK, means, round_scale, sparkline
from widgets.table.columns import placed_pieces
from widgets.table.rows import Pieces
from widgets.tones import Tone

NAN = math.nan
NONE = np.zeros(4, bool)


def drawn(pieces: Pieces) -> str:
    return "".join(text for text, _ in pieces)


def tones(pieces: Pieces) -> list[Tone]:
    return [tone for text, tone in pieces for _ in text]


def test_bars_are_as_high_as_their_share_of_the_scale() -> None:
    values = np.array([0.0, 1.0, 4.0, 8.0])
    assert drawn(sparkline(values, NONE, NONE, 8.0)) == "▁▁▄█"
    assert drawn(sparkline(values, NONE, NONE, 16.0)) == "▁▁▂▄"
    assert drawn(sparkline(values * 9, NONE, NONE, 8.0)) == "▁███"


def test_nothing_measured_is_blank_and_all_lost_is_a_cross() -> None:
    values, lost = np.array([1.0, NAN, NAN, 1.0]), np.array([False, False, True, False])
    assert drawn(sparkline(values, lost, NONE, 2.0)) == f"▄ {LOST}▄"


def test_a_bar_with_losses_hangs_and_is_never_empty() -> None:
    line = sparkline(np.array([1.0, 1.0, 2.0, 2.0]), np.arange(4) % 2 == 1, NONE, 2.0)
    assert tones(line) == [Tone.ACCENT, Tone.LOST, Tone.ACCENT, Tone.LOST]
    assert drawn(line) == f"▄▄█{BARS[-2]}"


def test_forgiven_losses_are_not_shown_but_for_muted_crosses() -> None:
    values, lost = np.array([1.0, 1.0, NAN, 1.0]), np.array([True, False, True, False])
    line = sparkline(values, lost, NONE, 2.0, Tone.MUTED, forgiven=True)
    assert drawn(line) == f"▄▄{LOST}▄"
    assert set(tones(line)) == {Tone.MUTED}


def test_a_mark_stands_in_the_place_of_its_bar() -> None:
    line = sparkline(np.ones(4), NONE, np.arange(4) == 1, 2.0)
    assert drawn(line) == f"▄{MARK}▄▄"
    assert tones(line)[1] == Tone.WARN


@pytest.mark.parametrize(
    ("highest", "scale"),
    [(0.9, 1.0), (1.0, 1.0), (1.01, 1.5), (4.2, 5.0), (160.0, 200.0), (7.1e-5, 1e-4), (0, 1)],
)
def test_a_scale_is_round_and_not_below_what_is_shown(highest: float, scale: float) -> None:
    assert round_scale(highest) == pytest.approx(scale)


def test_means_of_nothing_are_not_numbers() -> None:
    assert means(np.array([6.0, 0.0]), np.array([3, 0]))[0] == 2
    assert np.isnan(means(np.array([6.0, 0.0]), np.array([3, 0]))[1])


def test_pieces_are_cut_and_padded_at_the_left() -> None:
    pieces: Pieces = (("abc", Tone.BAD), ("de\x1b", Tone.GOOD))
    assert drawn(placed_pieces(pieces, 4)) == "cde·"
    assert drawn(placed_pieces(pieces, 8)) == "  abcde·"
    assert drawn(placed_pieces(pieces, 3)) == "de·"
    assert drawn(placed_pieces(pieces, 0)) == ""
