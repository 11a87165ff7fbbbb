"""The editor: what is drawn, where marks are, and that neither size nor content can harm."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.app import ComposeResult
from textual.pilot import Pilot

from widgets.editor import CodeEditor, Mark
from widgets.terminal.compositor import DiffApp
from widgets.tones import Tone

SOURCE = """\
#define LIMIT 64
/* Two lines
   of words. */
BPF_HASH(seen, u32, u64);
int watch(struct xdp_md *ctx) {
    return LIMIT + 1;
}
"""


class Sheet(DiffApp[None]):
    """An editor, alone."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.editor = CodeEditor(text)

    def compose(self) -> ComposeResult:
        yield self.editor


@asynccontextmanager
async def sheet(text: str = SOURCE) -> AsyncIterator[tuple[CodeEditor, Pilot[None]]]:
    app = Sheet(text)
    async with app.run_test(size=(60, 12)) as pilot:
        app.editor.focus()
        await pilot.pause()
        yield app.editor, pilot


def lines(editor: CodeEditor) -> list[str]:
    return [strip.text for strip in editor.screen._compositor.render_strips()]


def colour(editor: CodeEditor, row: int, text: str) -> str:
    """The style of a word on a line of the screen."""
    strip = editor.screen._compositor.render_strips()[row]
    found = [segment for segment in strip if segment.text.strip() == text]
    assert found, (text, [segment.text for segment in strip])
    return str(found[0].style)


async def test_words_of_c_are_told_apart_and_also_without_colours() -> None:
    async with sheet() as (editor, pilot):
        editor.go_to(6)
        await pilot.pause()
        kinds = {
            word: colour(editor, row, word)
            for row, word in (
                (0, "#define"), (1, "/* Two lines"), (3, "BPF_HASH"), (4, "watch"), (4, "struct"),
                (5, "return"), (5, "LIMIT"),
            )
        }  # fmt: skip
        assert kinds["struct"] == kinds["return"]
        assert len({kinds[w] for w in ("#define", "/* Two lines", "watch", "return", "LIMIT")}) == 5
        # Attributes work without colours.
        assert "bold" in kinds["return"]
        assert "italic" in kinds["/* Two lines"]
        # The second line of a comment is one, too.
        assert colour(editor, 2, "of words. */") == kinds["/* Two lines"]


async def test_the_theme_changes_the_colours_too() -> None:
    async with sheet() as (editor, pilot):
        before = colour(editor, 5, "return")
        editor.app.theme = "textual-light"
        await pilot.pause()
        assert colour(editor, 5, "return") != before


async def test_marks_are_signs_in_the_gutter_and_move_with_their_lines() -> None:
    async with sheet() as (editor, pilot):
        editor.show_marks([Mark(5, 11, Tone.BAD, "no"), Mark(3, -1, Tone.WARN, "hm")])
        await pilot.pause()
        assert lines(editor)[5].lstrip().startswith("6●")
        assert lines(editor)[3].lstrip().startswith("4▲")
        assert "underline" in colour(editor, 5, "LIMIT")
        editor.go_to(4)
        await pilot.press("enter", "enter")
        assert lines(editor)[7].lstrip().startswith("8●")
        assert lines(editor)[3].lstrip().startswith("4▲")
        await pilot.press("backspace", "backspace")
        assert lines(editor)[5].lstrip().startswith("6●")
        editor.show_marks([])
        await pilot.pause()
        assert "●" not in "".join(lines(editor))


async def test_enter_indents_and_tab_is_what_the_file_uses() -> None:
    async with sheet() as (editor, pilot):
        editor.go_to(5, 99)
        await pilot.press("enter", "x", "tab", "y")
        assert editor.document.get_line(6) == "    x   y"
    async with sheet("int f() {\n\treturn 1;\n}\n") as (editor, pilot):
        editor.go_to(1, 99)
        await pilot.press("enter", "x", "tab", "y")
        assert editor.document.get_line(2) == "\tx\ty"


async def test_a_text_that_is_put_in_can_be_undone_and_the_cursor_stays() -> None:
    async with sheet() as (editor, pilot):
        editor.go_to(5, 4)
        editor.put("one line\n")
        assert editor.text == "one line\n"
        await pilot.press("ctrl+z")
        assert editor.text == SOURCE
        await pilot.press("ctrl+y")
        assert editor.text == "one line\n"


async def test_no_character_of_a_source_reaches_the_terminal_as_a_command() -> None:
    async with sheet("int a; /* \x1b[31m \x9b1m \u202e */\n[/red] [bold]\n") as (editor, _):
        text = "\n".join(lines(editor))
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
        assert "[/red] [bold]" in text
        assert "\x1b[31m" in editor.text


async def test_escape_is_left_to_whoever_has_the_editor() -> None:
    async with sheet() as (editor, pilot):
        await pilot.press("escape")
        assert editor.has_focus
        assert editor.text == SOURCE


@pytest.mark.timeout(60)
@pytest.mark.timing
async def test_a_megabyte_can_be_edited() -> None:
    big = SOURCE * 8000
    async with sheet(big) as (editor, pilot):
        assert len(editor.text) > 1_000_000
        editor.go_to(editor.document.line_count // 2)
        await pilot.pause()
        started = time.perf_counter()
        for _ in range(5):
            editor.insert("x")
            await pilot.pause()
            lines(editor)
        # Textual's own takes a second for each.
        assert (time.perf_counter() - started) / 5 < 0.3
        assert len(editor.text) == len(big) + 5
