"""The pen's bytes on an emulated terminal, against the cells that it was to show."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

from tests.support.console.emulator import Emulator
from widgets.terminal.diff_writer import CellLine, DiffWriter, narrow
from widgets.terminal.terminal_state import TerminalState

WIDTH, HEIGHT = 24, 8
STYLES = [
    None,
    *map(
        Style.parse,
        (
            "white on black", "#ff8787 on black", "bold white on blue", "black on #ffffff",
            "reverse white on black", "underline white on black", "bold", "italic #ff8787",
        ),
    ),
]  # fmt: skip
TEXTS = ("", "a", "total 12.3 k", " ", "   ", " " * 14, "x" + " " * 12 + "y", "漢字", "é ◆", "▁▂▃")

segments = some.tuples(some.sampled_from(TEXTS), some.sampled_from(STYLES))
lines = some.lists(segments, max_size=4)
screens = some.lists(lines, min_size=HEIGHT, max_size=HEIGHT)


def line(parts: list[tuple[str, Style | None]]) -> CellLine:
    """A line of exactly WIDTH cells."""
    made: CellLine = []
    room = WIDTH
    for text, style in parts:
        segment = Segment(text, style)
        if text and segment.cell_length <= room:
            made.append(segment)
            room -= segment.cell_length
    return [*made, Segment(" " * room)] if room else made


def paint(style: Style | None) -> str:
    return "" if style is None else style.render("x", color_system=ColorSystem.TRUECOLOR)


def plainly(target: list[CellLine]) -> Emulator:
    """A terminal's screen after full output: each segment with all its codes."""
    emulator = Emulator(WIDTH, HEIGHT)
    for y, content in enumerate(target):
        emulator.feed(f"\x1b[{y + 1};1H")
        for text, style, _ in content:
            emulator.feed(paint(style).replace("x", text, 1) if style else f"\x1b[0m{text}")
    return emulator


def moved(target: list[CellLine], by: int, top: int) -> list[CellLine]:
    """Lines that went up by some from `top` on, with the first of them at the end."""
    return [*target[:top], *target[top + by :], *target[top : top + by]]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(some.lists(screens, min_size=1, max_size=4), some.booleans(), some.randoms())
def test_it_shows_every_cell_whatever_was_there(
    steps: list[list[list[tuple[str, Style | None]]]], erases: bool, dice: random.Random
) -> None:
    emulator, shadow = Emulator(WIDTH, HEIGHT), TerminalState()
    shadow.size = shadow.size.with_width(WIDTH).with_height(HEIGHT)
    shadow.reset()
    made = [[line(parts) for parts in step] for step in steps]
    made += [moved(made[-1], dice.randrange(1, 4), dice.randrange(4))]
    for target in made:
        owed = dict(enumerate(target))
        # Sometimes the link carries only a part; single lines may be written, too.
        room = dice.choice([1 << 20, 60])
        while owed or shadow.owed:
            pen = DiffWriter(ColorSystem.TRUECOLOR, WIDTH, shadow.at, erases=erases)
            shadow.draw(pen, owed, room)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("widgets.terminal.diff_writer._FEW_RUNS", 2)
                pen.by_style()
            if dice.random() < 0.5:
                pen.go(dice.randrange(HEIGHT), dice.randrange(WIDTH))
            shadow.at = pen.at
            emulator.feed(pen.finished())
            assert -1 in pen.at or emulator.cursor == pen.at
            owed = {}
        assert emulator.seen == plainly(target).seen


def drawn(
    old: list[CellLine], new: list[CellLine], *, colors: bool = True, erases: bool = False
) -> str:
    shadow = TerminalState()
    shadow.size = shadow.size.with_width(WIDTH).with_height(HEIGHT)
    shadow.lines = list(old)
    pen = DiffWriter(ColorSystem.TRUECOLOR if colors else None, WIDTH, erases=erases)
    shadow.draw(pen, dict(enumerate(new)), 1 << 20)
    return pen.finished()


def numbered(first: int) -> list[CellLine]:
    return [line([(f"row number {first + y}", None)]) for y in range(HEIGHT)]


def test_what_scrolls_is_moved_and_not_sent_again() -> None:
    assert drawn(numbered(10), numbered(11)).count("row number") == 1
    assert drawn(numbered(11), numbered(10)).count("row number") == 1
    assert len(drawn(numbered(10), numbered(13))) < 100
    assert drawn(numbered(10), numbered(50)).count("row") == 0, "only the digits differ"


def test_the_same_again_takes_nothing() -> None:
    assert drawn(numbered(1), numbered(1)) == ""


def test_a_line_that_is_mostly_another_is_erased_first() -> None:
    underlined, plain = STYLES[6], STYLES[1]
    before = [[Segment("abc", underlined if x % 2 else plain) for x in range(8)]]
    after = [[Segment("now", plain), Segment(" " * 21, plain)]]
    assert "\x1b[K" in drawn(before, after, erases=True)
    assert len(drawn(before, after, erases=True)) < len(drawn(before, after))


def test_many_runs_are_written_style_by_style() -> None:
    styles = [Style.parse(f"{color} on black") for color in ("#123456", "#654321", "#abcdef")]
    before, after = ([[Segment(f"{n}{y}2345 ", s) for s in styles] for y in range(8)] for n in "01")
    pen, one_by_one = (DiffWriter(ColorSystem.TRUECOLOR, WIDTH) for _ in range(2))
    for y in range(8):
        pen.changes(y, before[y], after[y])
        one_by_one.changes(y, before[y], after[y])
    pen.by_style()
    found = pen.finished()
    assert found.count("38;2;") == 3
    assert len(found) < 0.6 * len(one_by_one.finished())


def test_blanks_on_the_same_ground_are_not_written_again() -> None:
    dim, bold = Style.parse("#808080 on black"), Style.parse("bold white on black")
    before = [[Segment("a", dim), Segment(" " * 9 + "b", dim), Segment(" " * 13, dim)]]
    after = [[Segment("a", dim), Segment(" " * 9 + "b", bold), Segment(" " * 13, dim)]]
    assert " " not in drawn(before, after)


def test_blanks_are_erased_where_the_ground_allows_it() -> None:
    blue = Style.parse("white on blue")
    empty, full = [line([("", None)])], [line([("x" * WIDTH, blue)])]
    blank = [line([(" " * WIDTH, blue)])]
    assert "\x1b[K" in drawn(full, empty)
    assert len(drawn(full, empty)) < 12
    assert "\x1b[K" in drawn(full, blank, erases=True)
    assert "\x1b[K" not in drawn(full, blank), "it may erase in the usual colour"


@pytest.mark.parametrize("ground", ["black", "#ffffff", "#121212", "#e4e4e4"])
def test_without_colours_there_are_none_and_what_stands_out_is_reversed(ground: str) -> None:
    usual = Style.parse(f"#808080 on {ground}")
    loud = Style.parse("bold white on #0000af" if ground in ("black", "#121212") else "on #d7d7ff")
    old = [line([("", None)])]
    written = drawn(old, [line([("usual", usual), ("loud", loud)])], colors=False)
    codes = {code for part in written.split("\x1b[")[1:] if "m" in part[:8]
             for code in part.split("m")[0].split(";") if code}  # fmt: skip
    assert codes <= {"1", "2", "3", "4", "7", "9"}
    if ground in ("black", "#121212"):
        before, _, after = written.partition("usual")
        assert "7" not in before.rpartition("[")[2]
        assert "7m" in after


def test_wide_characters_are_known() -> None:
    assert narrow(line([("é ◆", None)]))
    assert not narrow(line([("漢字", None)]))


@pytest.mark.parametrize(
    ("color", "colors", "written"),
    [
        ("#5fafff", ColorSystem.TRUECOLOR, "38;5;75"),
        ("#5fafff", ColorSystem.EIGHT_BIT, "38;5;75"),
        ("#eeeeee", ColorSystem.EIGHT_BIT, "38;5;255"),
        ("#6fb5f7", ColorSystem.TRUECOLOR, "38;2;111;181;247"),
        ("#6fb5f7", ColorSystem.EIGHT_BIT, "38;5;75"),
        # Schemes for sixteen colours redefine 16 to 21.
        ("#00005a", ColorSystem.EIGHT_BIT, "38;5;234"),
    ],
)
def test_a_colour_is_itself_or_the_nearest_of_256(
    color: str, colors: ColorSystem, written: str
) -> None:
    pen = DiffWriter(colors, WIDTH)
    pen.whole_line(0, [Segment("x", Style(color=color))])
    assert f"\x1b[{written}m" in pen.finished()
