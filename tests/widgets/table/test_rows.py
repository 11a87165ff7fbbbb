"""Rows by a column's values."""

from __future__ import annotations

import math

import pytest

from widgets.table.rows import Row, Rows, Value, order


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


def rows() -> Rows:
    def row(key: str, value: Value, *, below: bool = False, rank: float | None = None) -> Row:
        ranks = {} if rank is None else {1: rank}
        return Row(key, (key, str(value)), values=(key, value), ranks=ranks, below=below)

    return Rows.of(
        [
            row("a", 2),
            row("a1", 9, below=True),
            row("a2", 1, below=True),
            row("b", 5, rank=0),
            row("b1", 7, below=True),
        ]
    )


def keys(source: Rows) -> str:
    return " ".join(str(source.key(n)) for n in range(source.rows))


def test_rows_stay_below_the_one_that_they_belong_to() -> None:
    # b is ordered by its rank in place of its value.
    assert keys(rows().ordered(1, descending=True)) == "a a1 a2 b b1"
    assert keys(rows().ordered(1, descending=False)) == "b b1 a a2 a1"
    assert keys(rows().ordered(0, descending=True)) == "b b1 a a2 a1"


def test_values_are_in_the_order_of_the_rows_and_keys_are_found_there() -> None:
    found = rows().ordered(0, descending=True)
    assert found.values(1) == [5, 7, 2, 1, 9]
    assert found.index("a2") == 3
    assert found.cells(3) == ("a2", "1")
