"""Copies, and their way to the terminal (OSC 52)."""

from __future__ import annotations

from typing import Any

import pytest

from app.console.tables import export
from tests.app.console.fake import desk, flow
from tests.app.console.fake_plane import FakePlane, config
from widgets.table.columns import fit
from widgets.table.rows import Column, Row, Rows
from widgets.table.table import VirtualTable
from widgets.tones import Tone

COLUMNS: tuple[Column[Any], ...] = (
    Column("name", "Name", 4),
    Column("line", "Line", 4),
    Column("far", "Far", 400),
)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are 80 cells wide, in which the last column has no room."""
    monkeypatch.setattr(VirtualTable, "shown", property(lambda table: fit(COLUMNS, 80)))


def shown(*names: str) -> VirtualTable:
    table = VirtualTable(COLUMNS)
    pieces = (("▁", Tone.NORMAL), ("█", Tone.BAD))
    table.show(Rows.of(Row(name, (name, pieces, "far")) for name in names))
    return table


@pytest.mark.usefixtures("wide")
def test_text_is_whole_and_cannot_be_taken_for_more_than_text() -> None:
    table = shown("a longer name than its cell", "\x1b[31m\ttab\nline")
    assert export.row_text(table, 0) == "a longer name than its cell\t▁█"
    assert export.row_text(table, 1) == "·[31m·tab·line\t▁█"
    assert export.rows_text(table) == (
        "Name\tLine\na longer name than its cell\t▁█\n·[31m·tab·line\t▁█",
        2,
    )


@pytest.mark.usefixtures("wide")
def test_as_many_rows_as_a_terminal_takes() -> None:
    table = shown(*(f"é{number}" for number in range(10)))
    text, rows = export.rows_text(table, most=30)
    assert rows == text.count("\n") == 1
    assert len(text.encode()) <= 30 < len(text.encode()) + len("\né1\t▁█".encode())


async def test_a_row_a_value_or_the_table_is_copied() -> None:
    async with desk(100, 24) as console:
        await console.feed(flow(1, 10), flow(2, 20))
        await console.press("j", "c")
        assert console.app.clipboard.split("\t")[:4] == [
            "in", "tcp", "10.0.0.1:40001", "192.0.2.1:443",
        ]  # fmt: skip
        assert "10.0 kbit/s" in console.app.clipboard
        assert console.complaints[-1] == "copied 1 row"
        await console.app.action_command("view.copy source")
        assert console.app.clipboard == "10.0.0.1:40001"
        await console.app.action_command("view.copy table")
        header, first, second = console.app.clipboard.split("\n")
        assert header.split("\t")[:3] == ["Dir", "Proto", "Source"]
        assert (first.split("\t")[2], second.split("\t")[2]) == ("10.0.0.2:40002", "10.0.0.1:40001")
        await console.app.action_command("view.copy sorce")
        await console.still()
        assert "there is no 'sorce' to copy; did you mean source?" in console.complaints[-1]


async def test_the_table_with_the_focus_is_copied_and_what_is_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(100, 30, FakePlane(config("hello"))) as console:
        await console.feed()
        await console.press("5")
        console.app.screen.query_one("#panel").focus()
        await console.still()
        await console.press("c")
        assert "there is no row to copy" in console.complaints[-1]
        console.app.screen.query_one("#programs").focus()
        monkeypatch.setattr(export, "MOST", 10)
        await console.press("c")
        assert "are more than terminals take, 10 B" in console.complaints[-1]
        assert console.app.clipboard == ""
