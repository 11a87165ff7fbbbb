"""Rows by a column's values."""

from __future__ import annotations

import math

import pytest

from widgets.table.rows import Row, Rows, Value, nested_order, order


@pytest.mark.parametrize(
    ("values", "up", "down"),
    [
        ([3, 1, 2], [1, 2, 0], [0, 2, 1]),
        # Equal values keep their order, and missing values are last either way.
        ([1.0, math.nan, 2.0, 1.0, None], [0, 3, 2, 1, 4], [2, 0, 3, 1, 4]),
        (["b", "a", None], [1, 0, 2], [0, 1, 2]),
        ([], [], []),
    ],
)
def test_values_are_put_in_order(values: list[Value], up: list[int], down: list[int]) -> None:
    assert order(values, descending=False) == up
    assert order(values, descending=True) == down


@pytest.mark.parametrize(
    ("values", "descending", "found"),
    [
        ([2, 9, 1, 0, 7], True, "a a1 a2 b b1"),
        ([2, 9, 1, 0, 7], False, "b b1 a a2 a1"),
        (["a", "a1", "a2", "b", "b1"], True, "b b1 a a2 a1"),
    ],
)
def test_rows_stay_below_the_one_that_they_belong_to(
    values: list[Value], descending: bool, found: str
) -> None:
    names = ("a", "a1", "a2", "b", "b1")
    places = nested_order(values, (0, 1, 1, 0, 1), descending=descending)
    assert " ".join(names[at] for at in places) == found


def test_keys_are_found_in_the_order_of_the_rows() -> None:
    found = Rows.of(Row(key, (key, "1")) for key in "cab")
    assert [found.key(at) for at in range(found.rows)] == ["c", "a", "b"]
    assert found.index("b") == 2
    assert found.cells(2) == ("b", "1")
