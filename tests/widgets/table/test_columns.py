"""Which columns a width shows, and how text fills them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from rich.cells import cell_len

from widgets.table.columns import MARGIN, cell, fit
from widgets.table.rows import Column

COLUMNS: tuple[Column[Any], ...] = (
    Column("flow", "Flow", 20, grows=True),
    Column("note", "Note", 10, priority=2),
    Column("rate", "Rate", 8, "right", priority=1),
)


def shown(width: int) -> list[str]:
    return [place.column.id for place in fit(COLUMNS, width)]


def test_the_least_important_columns_go_first() -> None:
    assert shown(80) == ["flow", "note", "rate"]
    assert shown(44) == ["flow", "note", "rate"]
    assert shown(43) == ["flow", "rate"]
    assert shown(31) == ["flow"]
    assert shown(5) == ["flow"]


def test_no_column_is_left_out_while_there_is_room() -> None:
    columns: tuple[Column[Any], ...] = (*COLUMNS, Column("age", "Age", 3, priority=3))
    assert [place.column.id for place in fit(columns, 43)] == ["flow", "rate", "age"]


@pytest.mark.parametrize(
    ("skipped", "width", "seen"),
    [
        (0, 60, "kind flow note rate idle"),
        (1, 60, "kind flow rate idle flags"),
        (2, 60, "kind flow idle flags"),
        (3, 60, "kind flow flags"),
        # The columns that name the row would leave less than half for others.
        (1, 44, "kind note rate idle"),
        (2, 44, "kind rate idle flags"),
    ],
)
def test_first_columns_stay_when_others_scroll(skipped: int, width: int, seen: str) -> None:
    more: tuple[Column[Any], ...] = (
        Column("idle", "Idle", 5, priority=9),
        Column("flags", "Flags", 9, priority=9),
    )
    columns: tuple[Column[Any], ...] = Column("kind", "Kind", 3), *COLUMNS, *more
    placed = fit(columns, width, skipped=skipped)
    assert " ".join(place.column.id for place in placed) == seen


def test_one_column_takes_up_what_is_left() -> None:
    for width in (12, 25, 43, 44, 80, 200):
        places = fit(COLUMNS, width)
        assert places[-1].x + places[-1].width + MARGIN == width
        for left, right in pairwise(places):
            assert left.x + left.width < right.x


def test_text_fills_its_cells_exactly() -> None:
    assert cell("ab", 5, "left") == "ab   "
    assert cell("ab", 5, "right") == "   ab"
    assert cell("abcdef", 5, "left") == "abcd…"
    assert cell("a\x1bb", 5, "left") == "a·b  "
    assert cell("x", 0, "left") == ""
    for text in ("漢字漢字", "é漢", "日本語テキスト", "e\u0301clair"):
        for width in range(1, 9):
            assert cell_len(cell(text, width, "right")) == width


@pytest.mark.parametrize(
    ("chosen", "sorted_by", "width", "seen"),
    [
        # The chosen order is also the order of importance.
        (("rate", "flow"), "", 80, ["rate", "flow"]),
        (("rate", "flow"), "", 31, ["rate"]),
        (("note", "rate", "flow"), "", 31, ["note", "rate"]),
        # A chosen or sorted hidden column is visible.
        (("hidden",), "", 80, ["hidden"]),
        ((), "", 80, ["flow", "note", "rate"]),
        ((), "hidden", 80, ["flow", "note", "rate", "hidden"]),
        (("flow",), "rate", 80, ["flow", "rate"]),
        (("flow", "rate"), "rate", 12, ["rate"]),
        # Unknown columns, of another version, are left out.
        (("gone", "rate"), "gone", 80, ["rate"]),
    ],
)
def test_columns_can_be_chosen(
    chosen: tuple[str, ...], sorted_by: str, width: int, seen: list[str]
) -> None:
    columns: tuple[Column[Any], ...] = (*COLUMNS, Column("hidden", "Hidden", 8, hidden=True))
    placed = fit(columns, width, chosen, sorted_by)
    assert [place.column.id for place in placed] == seen
    assert all(columns[place.position] is place.column for place in placed)
    for left, right in pairwise(placed):
        assert left.x + left.width < right.x
