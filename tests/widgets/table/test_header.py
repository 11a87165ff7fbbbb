"""The header of a table: titles on a rule, the key that leads there, and marks."""

# ruff: noqa: RUF001
from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.style import Style

from tests.widgets.table.test_columns import COLUMNS
from widgets.table.columns import fit
from widgets.table.header import HeaderStyles, draw_header, titles

STYLES = HeaderStyles(Style(bold=True), Style(dim=True), Style(underline=True), Style(strike=True))


def header(
    width: int = 60, order: tuple[str, bool] = ("", False), *, apart: bool = False, key: str = "",
    more: str = "",
) -> str:  # fmt: skip
    shown = titles(fit(COLUMNS, width, sorted_by=order[0]), order, STYLES, apart=apart)
    strip = draw_header(shown, width, STYLES, key, more)
    assert strip.cell_length == cell_len(strip.text) == width
    return strip.text.rstrip()


def test_a_rule_joins_titles_that_stand_over_their_columns() -> None:
    assert header() == " Flow ──────────────────────────────── Note ────────── Rate"
    assert header(44) == " Flow ──────────────── Note ────────── Rate"
    assert header(31) == " Flow ─────────────────────────"


def test_the_number_of_the_key_that_leads_there_stands_before_the_name() -> None:
    assert header(44, key="3") == "³Flow ──────────────── Note ────────── Rate"
    assert header(44, key="f3") == " Flow ──────────────── Note ────────── Rate"


@pytest.mark.parametrize(
    ("order", "apart", "end"),
    [
        (("rate", True), False, " Rate▼"),
        (("rate", False), False, " Rate▲"),
        (("rate", True), True, " Rate ▼"),
        (("note", True), False, " Note▼ ───────── Rate"),
        (("note", True), True, " Note ▼ ──────── Rate"),
    ],
)
def test_the_sorted_column_has_a_mark(order: tuple[str, bool], apart: bool, end: str) -> None:
    assert header(60, order, apart=apart).endswith(end)


def test_titles_make_room_for_what_does_not_fit() -> None:
    assert header(44, more="+2 ›") == " Flow ──────────────── Note ────── Rate +2 ›"


def test_only_the_name_and_the_rule_are_bright_while_focused() -> None:
    shown = titles(fit(COLUMNS, 60), ("rate", True), STYLES, apart=False)
    looks = {s.text.strip(" ─") or "rule": s.style for s in draw_header(shown, 60, STYLES, "3")}
    assert looks == {
        "Flow": STYLES.name, "³": STYLES.sorted, "rule": STYLES.rule, "Note": STYLES.plain,
        "Rate▼": STYLES.sorted,
    }  # fmt: skip
