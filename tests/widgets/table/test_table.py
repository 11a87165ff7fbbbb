"""The table as an operator sees and drives it."""

# ruff: noqa: RUF001
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from textual.app import ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot
from textual.strip import Strip

from tests.widgets.demo import COLUMNS as FLOW_COLUMNS
from tests.widgets.demo import TABLE_KEYS, Flows
from widgets.table.rows import Column, Row, Rows
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffApp
from widgets.tones import Tone

COLUMNS: tuple[Column[Any], ...] = (
    Column("name", "Name", 10, grows=True),
    Column("value", "Value", 8, "right"),
    Column("note", "Note", 30, priority=1),
)


def rows(names: Sequence[str], value: int = 0) -> Rows:
    return Rows.of(Row(name, (name, str(value), f"note of {name}")) for name in names)


def names(count: int) -> list[str]:
    return [f"row{i}" for i in range(count)]


class TableApp(DiffApp[None]):
    least = Size(1, 1)

    BINDINGS: ClassVar = TABLE_KEYS

    def __init__(self, columns: Sequence[Column[Any]] = COLUMNS) -> None:
        super().__init__()
        self.table = VirtualTable(columns, empty="nothing here\ntry later")
        self.messages: list[tuple[str, Any]] = []

    def compose(self) -> ComposeResult:
        yield self.table

    def on_virtual_table_row_highlighted(self, message: VirtualTable.RowHighlighted) -> None:
        self.messages.append(("highlighted", message.key))

    def on_virtual_table_row_selected(self, message: VirtualTable.RowSelected) -> None:
        self.messages.append(("selected", message.key))

    def on_virtual_table_header_selected(self, message: VirtualTable.HeaderSelected) -> None:
        self.messages.append(("header", message.column))


def seen(pilot: Pilot[None]) -> list[str]:
    """Lines of the screen, without the rules of headers."""
    strips = pilot.app.screen._compositor.render_strips()
    return [strip.text.replace("─", " ") for strip in strips]


def first_words(pilot: Pilot[None]) -> list[str]:
    return [line.split()[0] for line in seen(pilot)[1:] if line.strip()]


async def test_header_and_cursor_are_as_wide_as_the_table() -> None:
    app = TableApp([Column("name", "Name", 5), Column("value", "Value", 5)])
    async with app.run_test(size=(40, 6)):
        app.table.show(Rows.of(Row(n, (n, "1")) for n in names(2)))
        for y in (0, 1):
            strip = app.table.render_lines(app.table.size.region)[y]
            assert strip.cell_length == 40
            grounds = {segment.style.bgcolor for segment in strip if segment.style is not None}
            assert len(grounds) == 1


@pytest.mark.parametrize("colour", [True, False])
async def test_it_fills_80x24_and_shows_more_when_wider(
    colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    app = TableApp(FLOW_COLUMNS)
    async with app.run_test(size=(80, 24)) as pilot:
        app.table.show(Flows(1, 10_000))
        await pilot.pause()
        lines = seen(pilot)
        assert lines[0].split() == ["Flow", "Rate", "Bytes", "RTT", "Loss", "+3", "›"]
        assert {len(line) for line in lines} == {80}
        assert lines[23].rstrip().endswith(" %")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        lines = seen(pilot)
        titles = ["Flow", "Proto", "Rate", "Bytes", "Packets", "RTT", "Loss", "Age"]
        assert lines[0].split() == titles
        assert lines[39].strip()


async def test_markup_and_control_characters_are_only_text() -> None:
    app = TableApp()
    nasty = ("[/foo]", "[b]1[/]", "a\x1b[31m\n\u202eb\udcff")
    async with app.run_test(size=(60, 6)) as pilot:
        app.table.show(Rows.of([Row(1, nasty), Row(2, ("漢字漢字漢字漢字漢字", "1", "é"))]))
        await pilot.pause()
        lines = seen(pilot)
        assert lines[1].split() == ["[/foo]", "[b]1[/]", "a·[31m··b·"]
        assert "漢字" in lines[2]
        assert lines[2].index("…") < lines[2].index("1") < lines[2].index("é")


async def test_keys_move_the_cursor() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        expected = [
            ("j", 1), ("down", 2), ("k", 1), ("up", 0), ("up", 0), ("pagedown", 9), ("G", 99),
            ("down", 99), ("pageup", 90), ("g", 0), ("end", 99), ("home", 0),
        ]  # fmt: skip
        for key, index in expected:
            await pilot.press(key)
            assert app.table.cursor_index == index, key
            assert f"row{index}" in first_words(pilot)
        await pilot.press("j", "enter")
        assert app.messages[-2:] == [("highlighted", "row1"), ("selected", "row1")]


async def test_keys_can_be_bound_to_others_by_name() -> None:
    app = TableApp()
    app.set_keymap({"table.down": "x"})
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(10)))
        await pilot.press("x", "j")
        assert app.table.cursor_key == "row1"


@pytest.mark.parametrize("holds", [True, False])
async def test_the_cursor_follows_its_row_and_the_list_never_does(holds: bool) -> None:
    app = TableApp()
    app.table.holds = lambda: holds
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        await pilot.press("j", "j", "j")
        app.messages.clear()
        app.table.show(rows([*names(100)[50:55], *names(50)]))
        await pilot.pause()
        assert (app.table.cursor_key, app.table.cursor_index) == ("row3", 8)
        app.table.show(rows([*names(100)[50:], *names(50)]))
        await pilot.pause()
        # Out of view: a pane goes on to show the row, or else the cursor stays on its line.
        found = ("row3", 53) if holds else ("row58", 8)
        assert (app.table.cursor_key, app.table.cursor_index) == found
        assert first_words(pilot) == names(60)[50:]
        assert app.messages == ([] if holds else [("highlighted", "row58")])
        await pilot.press("k")
        assert app.table.cursor_key == ("row58" if holds else "row57")
        assert first_words(pilot) == names(60)[50:]


async def test_a_table_nobody_touched_begins_with_its_first_row() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        app.table.show(rows(names(100)[::-1]))
        await pilot.pause()
        assert first_words(pilot)[0] == "row99"
        assert app.messages == [("highlighted", "row0"), ("highlighted", "row99")]
        await pilot.press("j")
        app.table.action_top()
        app.table.show(rows(names(100)))
        await pilot.pause()
        assert app.messages[-1] == ("highlighted", "row0")
        assert app.table.cursor_index == 0


async def test_the_cursor_stays_where_its_row_was_when_that_is_gone() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        app.table.move_to(40)
        app.table.show(rows([n for n in names(100) if n != "row40"]))
        await pilot.pause()
        assert (app.table.cursor_index, app.table.cursor_key) == (40, "row41")
        app.table.show(rows(names(5)))
        await pilot.pause()
        assert app.table.cursor_key == "row4"
        assert first_words(pilot) == names(5)


async def test_scrolling_away_from_the_cursor_is_respected() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        await pilot.press("j")
        app.table.scroll_to(y=50, animate=False)
        await pilot.pause()
        app.table.show(rows(names(100), value=7))
        await pilot.pause()
        assert first_words(pilot)[0] == "row50"
        assert app.table.cursor_index == 1
        await pilot.press("j")
        assert first_words(pilot)[0] == "row50"
        assert app.table.cursor_key == "row51"


async def test_an_empty_table_says_why() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        lines = [line.rstrip() for line in seen(pilot)]
        # Below the titles, with a sketch of rows: dots where cells would be.
        assert lines[1:5] == ["", " nothing here", " try later", ""]
        assert lines[5] == lines[6] == " ·······              ····  ···············"
        assert not any(lines[7:])
        await pilot.press("enter", "j", "G", "pageup")
        app.table.show(rows(names(3)))
        await pilot.pause()
        assert first_words(pilot) == names(3)
        app.table.show(Rows())
        app.table.empty = "filtered away"
        await pilot.pause()
        assert "filtered away" in "\n".join(seen(pilot))
        assert app.table.cursor_key is None
        assert ("selected", None) not in app.messages


async def test_the_mouse_selects_rows_and_columns() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        await pilot.pause()
        await pilot.click(VirtualTable, offset=(5, 4))
        assert app.messages[-1] == ("highlighted", "row3")
        await pilot.double_click(VirtualTable, offset=(5, 6))
        assert app.messages[-1] == ("selected", "row5")
        await pilot.click(VirtualTable, offset=(seen(pilot)[0].index("Value"), 0))
        assert app.messages[-1] == ("header", "value")


async def test_the_sorted_column_is_marked() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show_sort("value", descending=True)
        await pilot.pause()
        assert " Value▼ " in seen(pilot)[0]
        app.table.show_sort("name", descending=False)
        await pilot.pause()
        assert seen(pilot)[0].split()[:2] == ["Name▲", "Value"]


async def test_only_lines_that_changed_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(100)))
        await pilot.pause()
        drawn: list[int] = []
        render_line = VirtualTable.render_line

        def counted(table: VirtualTable, y: int) -> Strip:
            drawn.append(y)
            return render_line(table, y)

        monkeypatch.setattr(VirtualTable, "render_line", counted)
        app.table.show(rows(names(100)))
        await pilot.pause(0.05)
        assert drawn == []
        content = list(rows(names(100)).content)
        content[2] = Row("row2", ("row2", "9", ""))
        content[5] = Row("row5", content[5].cells, Tone.BAD)
        app.table.show(Rows.of(content))
        await pilot.pause(0.05)
        assert sorted(drawn) == [3, 6]
        assert seen(pilot)[3].split() == ["row2", "9"]


async def test_the_cursor_is_seen_with_and_without_focus_in_each_theme() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)) as pilot:
        app.table.show(rows(names(5)))
        looks, plain = [], set()
        for theme in ("textual-dark", "textual-light"):
            app.theme = theme
            for focus in (True, False):
                app.set_focus(app.table if focus else None)
                await pilot.pause()
                strips = app.screen._compositor.render_strips()
                styles = [next(iter(strips[y])).style for y in (1, 2)]
                assert styles[0] != styles[1]
                looks.append(styles[0])
                plain.add(styles[1])
        assert len(set(looks)) == 4
        assert len(plain) == 2


async def test_other_columns_can_be_chosen_while_it_is_shown() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 6)) as pilot:
        app.table.show(rows(names(3), value=7))
        app.table.chosen = ("value", "name")
        await pilot.pause()
        assert seen(pilot)[0].split() == ["Value", "Name"]
        assert seen(pilot)[1].split() == ["7", "row0"]
        # Changes in invisible cells redraw no line.
        before = dict(app.table._lines)
        app.table.show(Rows.of(Row(name, (name, "7", "another note")) for name in names(3)))
        assert app.table._lines == before
        app.table.chosen = ()
        await pilot.pause()
        assert "another note" in seen(pilot)[1]


async def test_columns_that_do_not_fit_are_counted_and_scroll() -> None:
    wide: list[Column[Any]] = [
        Column("name", "Name", 8),
        *(Column(f"c{n}", f"Col{n}", 10) for n in range(5)),
    ]
    app = TableApp(wide)
    async with app.run_test(size=(40, 6)) as pilot:
        app.table.show(Rows.of([Row(1, ("row", "v0", "v1", "v2", "v3", "v4"))]))

        async def after(columns: int) -> tuple[str, str]:
            app.table.action_scroll_columns(columns)
            await pilot.pause()
            return tuple(" ".join(line.split()) for line in seen(pilot)[:2])  # type: ignore[return-value]

        assert await after(0) == ("Name Col0 Col1 +3 ›", "row v0 v1")
        assert await after(-1) == ("Name Col0 Col1 +3 ›", "row v0 v1")
        assert await after(1) == ("Name Col1 Col2 ‹ +3 ›", "row v1 v2")
        assert await after(2) == ("Name Col3 Col4 ‹ +3", "row v3 v4")
        assert await after(1) == ("Name Col3 Col4 ‹ +3", "row v3 v4")
        assert await after(-3) == ("Name Col0 Col1 +3 ›", "row v0 v1")
        await after(1)
        await pilot.resize_terminal(100, 6)
        await pilot.pause()
        assert "‹" not in seen(pilot)[0]
        assert "Col4" in seen(pilot)[0]
        await pilot.resize_terminal(40, 6)
        await pilot.pause()
        assert await after(0) == ("Name Col0 Col1 +3 ›", "row v0 v1")


async def test_half_pages() -> None:
    app = TableApp()
    async with app.run_test(size=(60, 11)):
        app.table.show(rows(names(100)))
        for pages, index in ((0.5, 5), (0.5, 10), (1, 19), (-0.5, 14), (-3, 0)):
            app.table.action_page(pages)
            assert app.table.cursor_index == index
