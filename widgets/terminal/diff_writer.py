"""The difference between two lines of cells as escape sequences, in few bytes and colours."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TypeAlias

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

_LEVELS = (0, 95, 135, 175, 215, 255)
VALUES = {
    16 + 36 * r + 6 * g + b: (red, green, blue)
    for r, red in enumerate(_LEVELS)
    for g, green in enumerate(_LEVELS)
    for b, blue in enumerate(_LEVELS)
    if r or g  # schemes for sixteen colours redefine the first ones
} | {232 + grey: (8 + 10 * grey,) * 3 for grey in range(24)}
"""Red, green and blue of each colour by its number, without the sixteen that users choose."""
_NUMBERS = {value: number for number, value in VALUES.items()}


@lru_cache(maxsize=1024)
def number_of(red: int, green: int, blue: int, *, exact: bool) -> int | None:
    """Return the number of a colour. Without it: the nearest colour's, or None if `exact`."""
    number = _NUMBERS.get((red, green, blue))
    if number is not None or exact:
        return number

    def distance(number: int) -> int:
        # Eyes see differences of green best.
        values = VALUES[number]
        return (
            2 * (values[0] - red) ** 2 + 4 * (values[1] - green) ** 2 + 3 * (values[2] - blue) ** 2
        )

    return min(VALUES, key=distance)


CellLine: TypeAlias = "list[Segment]"
_BRIDGED = 4
"""Gaps of so many unchanged cells are rewritten instead of skipped."""
_MANY_BLANKS = " " * 10
"""So many blanks take more bytes than erasing and skipping them."""
_BLANKS = re.compile(f"({_MANY_BLANKS}+)")
_ERASABLE = frozenset({"1", "2", "3"})
"""Attributes that a blank does not show."""
_FEW_RUNS = 24
"""Fewer runs gain little by another order."""
_STANDS_OUT = 1.6
"""Without colours, a background of more contrast than this is drawn in reverse."""


class DiffWriter:
    """Writes runs of cells; tracks the terminal's cursor and its present style."""

    def __init__(
        self, colors: ColorSystem | None, width: int, at: tuple[int, int] = (-1, -1), *,
        erases: bool = False,
    ) -> None:  # fmt: skip
        """Without `colors` only attributes are written. `at`: line and column of the cursor, -1:
        unknown. `erases`: the terminal erases in the background colour.
        """
        self.at = at
        self.written = 0
        """Written characters, with escape sequences."""
        self._colors = colors
        self._width = width
        self._erases = erases
        self._out: list[str] = []
        self._sgr = ""
        self._drawn: tuple[int, CellLine] = (-1, [])
        """The line to change and its new content; every character is one cell wide."""
        self._begin = self._state
        self._runs: list[tuple[int, int, str, Style | None, CellLine]] = []
        """Line, column, text and style of the runs that `changes` wrote, and the whole line."""
        self._only_runs = True
        """Whether there was nothing else, so that the runs may be written in any order."""

    def by_style(self) -> None:
        """Write the runs again in the order of their styles, if this takes fewer bytes.

        In a table with colours, nearly each run has another style than the run before.
        """
        if not self._only_runs or len(self._runs) < _FEW_RUNS:
            return
        pieces, state, runs = self._out, self._state, self._runs
        self._out, self._runs = [], []
        self._state = self._begin
        for y, x, text, style, line in sorted(
            runs, key=lambda run: (self._paint(run[3]), run[0], run[1])
        ):
            self._drawn = y, line
            self._write(y, x, text, style)
        if self.written >= state[0]:
            self._out, self._state = pieces, state

    def whole_line(self, y: int, line: CellLine) -> None:
        self._only_runs = False
        x = 0
        for segment in line:
            # Terminals differ about the width of some characters: the cursor is unknown.
            self._write(y, x, segment.text, segment.style, moves=not _plain(segment.text))
            x += segment.cell_length

    def changes(self, y: int, old: CellLine, new: CellLine) -> None:
        """Write the cells of `new` that differ; every character of both lines is one cell wide."""
        before = self._state
        self._write_changes(y, old, new)
        spent, runs = self.written - before[0], len(self._runs)
        ground = self._ground(new) if spent > self._width else None
        if ground is None:
            return
        # If most of the line changes, erasing it first makes all blanks free.
        written, after = self._out[before[3] :], self._state
        self._state = before
        self.go(y, 0)
        self._look(_sgr_of(ground, self._colors))
        self._put("\x1b[K")
        self._write_changes(y, [Segment(" " * self._width, ground)], new)
        if self.written - before[0] >= spent:
            self._state = before
            self._out += written
            self._state = after
            del self._runs[runs:]
        else:
            self._only_runs = False

    @property
    def _state(self) -> tuple[int, tuple[int, int], str, int]:
        """Save the state: length, cursor, style and pieces."""
        return self.written, self.at, self._sgr, len(self._out)

    @_state.setter
    def _state(self, state: tuple[int, tuple[int, int], str, int]) -> None:
        self.written, self.at, self._sgr, pieces = state
        del self._out[pieces:]

    def _ground(self, line: CellLine) -> Style | None:
        """Return the style of the line's erasable end."""
        style = line[-1].style
        ground = Style(bgcolor=style.bgcolor) if style is not None else Style()
        erasable = _erasable(_sgr_of(ground, self._colors), colored=self._erases)
        return ground if erasable else None

    def _write_changes(self, y: int, old: CellLine, new: CellLine) -> None:
        self._drawn = y, new
        place = was_at = 0
        x = 0
        for segment in new:
            text, style, _ = segment
            if not was_at and place < len(old) and old[place] == segment:
                place += 1
                x += len(text)
                continue
            paint = self._paint(style)
            at = 0
            while at < len(text):
                if place == len(old):
                    self._write(y, x + at, text[at:], style)
                    break
                was_text, was_style, _ = old[place]
                count = min(len(text) - at, len(was_text) - was_at)
                cells, was = text[at : at + count], was_text[was_at : was_at + count]
                if paint != (was_paint := self._paint(was_style)):
                    first, end = 0, count
                    if _same_blanks(paint, was_paint):
                        first = count - max(len(cells.lstrip(" ")), len(was.lstrip(" ")))
                        end = max(len(cells.rstrip(" ")), len(was.rstrip(" ")))
                    self._write(y, x + at + first, cells[first:end], style)
                elif cells != was:
                    first = next(i for i in range(count) if cells[i] != was[i])
                    last = next(i for i in range(count - 1, -1, -1) if cells[i] != was[i])
                    self._write(y, x + at + first, cells[first : last + 1], style)
                at += count
                was_at += count
                if was_at == len(was_text):
                    place, was_at = place + 1, 0
            x += len(text)

    def scroll(self, top: int, bottom: int, lines: int) -> None:
        """Move lines `top` to `bottom`, both included, up by so many lines, or down if negative.

        The new lines are blank, without a colour.
        """
        self._only_runs = False
        self._look("")
        count = "" if abs(lines) == 1 else str(abs(lines))
        move = "M" if lines > 0 else "L"
        self._put(f"\x1b[{top + 1};{bottom + 1}r\x1b[{top + 1}H\x1b[{count}{move}\x1b[r")
        self.at = (0, 0)

    def go(self, y: int, x: int) -> None:
        line, column = self.at
        if (line, column) == (y, x):
            return
        ways = [f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"]
        if line >= 0 and y >= line:
            ways.append("\r" + "\n" * (y - line) + _right(x))
        if line == y and column >= 0:
            if x > column:
                ways.append(_right(x - column))
                if x - column <= _BRIDGED and (right := self._right_ones(y, column, x)) is not None:
                    ways.append(right)
            else:
                ways += ["\b" * (column - x), f"\x1b[{column - x}D"]
        self._put(min(ways, key=len))
        self.at = (y, x)

    def finished(self) -> str:
        """Reset the style and return the output."""
        self._look("")
        return "".join(self._out)

    def _right_ones(self, y: int, begin: int, end: int) -> str | None:
        """Return the unchanged cells `begin` to `end` if they have the present style."""
        line, segments = self._drawn
        if line != y:
            return None
        text, x = "", 0
        for part, style, _ in segments:
            if x >= end:
                break
            if x + len(part) > begin:
                if self._paint(style) != (self._sgr, ""):
                    return None
                text += part[max(0, begin - x) : end - x]
            x += len(part)
        return text

    def _write(
        self, y: int, x: int, text: str, style: Style | None, *, moves: bool = False
    ) -> None:
        if not text:
            return
        self._runs.append((y, x, text, style, self._drawn[1]))
        self.go(y, x)
        sgr, link = self._paint(style)
        erasable = _erasable(sgr, colored=self._erases)
        if not text.strip(" ") and erasable and _erasable(self._sgr, colored=self._erases):
            # A blank shows its background only.
            sgr = self._sgr if _sgr_parts(sgr)[2] == _sgr_parts(self._sgr)[2] else sgr
        self._look(sgr)
        if link:
            self._put(f"\x1b]8;;{link}\x1b\\{text}\x1b]8;;\x1b\\")
        elif erasable and not moves and _MANY_BLANKS in text:
            self._put_blanks_short(y, x, text)
            return
        else:
            self._put(text)
        self._came_to(y, -1 if moves else x + len(text))

    def _put_blanks_short(self, y: int, x: int, text: str) -> None:
        for part in _BLANKS.split(text):
            if _BLANKS.fullmatch(part):
                self.go(y, x)
                to_the_end = x + len(part) >= self._width
                self._put("\x1b[K" if to_the_end else f"\x1b[{len(part)}X")
            elif part:
                self.go(y, x)
                self._put(part)
                self._came_to(y, x + len(part))
            x += len(part)

    def _came_to(self, y: int, x: int) -> None:
        # At the end of a line terminals differ in the cursor's column.
        self.at = (y, x if x < self._width else -1)

    def _look(self, sgr: str) -> None:
        self._put(sgr_change(self._sgr, sgr))
        self._sgr = sgr

    def _put(self, text: str) -> None:
        if text:
            self._out.append(text)
            self.written += len(text)

    def _paint(self, style: Style | None) -> tuple[str, str]:
        """Look of a cell: its SGR parameters and its hyperlink."""
        if style is None:
            return "", ""
        return _sgr_of(style, self._colors), style._link or ""


def _same_blanks(paint: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether blanks of two styles look the same."""
    if paint[1] or other[1]:
        return False
    attributes, _, back = _sgr_parts(paint[0])
    others, _, other_back = _sgr_parts(other[0])
    return back == other_back and attributes | others <= _ERASABLE


def _right(cells: int) -> str:
    return f"\x1b[{cells}C" if cells > 1 else "\x1b[C" if cells else ""


@lru_cache(maxsize=16384)
def _sgr_of(style: Style, colors: ColorSystem | None) -> str:
    """Return a style's SGR parameters; without `colors` attributes only."""
    if colors is not None:
        few = colors == ColorSystem.EIGHT_BIT
        # Rich takes other colours than the nearest of 256.
        sgr = Strip.render_ansi(style, ColorSystem.TRUECOLOR if few else colors)
        return _DIRECT.sub(partial(_named, exact=not few), sgr)
    # An unusual background becomes reverse; the usual ones are nearly black or white.
    ground = style.bgcolor.get_truecolor() if style.bgcolor is not None else None
    reverse = bool(style.reverse)
    if ground is not None and style.bgcolor is not None and not style.bgcolor.is_default:
        luminance = sum(w * (c / 255) ** 2.2 for w, c in zip(_WEIGHTS, ground, strict=True))
        low, high = sorted((luminance, 0.0 if luminance < 0.5 else 1.0))
        reverse ^= (high + 0.05) / (low + 0.05) > _STANDS_OUT
    plain = Style(bold=style.bold, underline=style.underline, reverse=reverse, strike=style.strike)
    return Strip.render_ansi(plain, ColorSystem.STANDARD)


_DIRECT = re.compile(r"([34]8;)2;(\d+);(\d+);(\d+)")


def _named(color: re.Match[str], *, exact: bool) -> str:
    """Return a colour's number if it has one: half the bytes."""
    number = number_of(*map(int, color.groups()[1:]), exact=exact)
    return color[0] if number is None else f"{color[1]}5;{number}"


_WEIGHTS = (0.2126, 0.7152, 0.0722)


_ENDS = {"1": "22", "2": "22", "3": "23", "4": "24", "7": "27", "9": "29"}
"""SGR codes that end an attribute."""


@lru_cache(maxsize=4096)
def sgr_change(before: str, after: str) -> str:
    """Return the escape sequence from one set of SGR parameters to another."""
    if before == after:
        return ""
    if not after:
        return "\x1b[m"
    old_attributes, old_fore, old_back = _sgr_parts(before)
    attributes, fore, back = _sgr_parts(after)
    # A reset repeats the remaining codes; ending one attribute takes one code.
    anew = ["", *sorted(attributes), *filter(None, (fore, back))]
    gone = {_ENDS.get(code, "") for code in old_attributes - attributes}
    changed = [*sorted(gone), *sorted(attributes - old_attributes)]
    if "22" in gone:
        changed += sorted((attributes & old_attributes) & {"1", "2"})
    changed += [fore or "39"] if fore != old_fore else []
    changed += [back or "49"] if back != old_back else []
    ways = [";".join(codes) for codes in ([anew] if "" in gone else [changed, anew])]
    return f"\x1b[{min(ways, key=len)}m"


@lru_cache(maxsize=4096)
def _sgr_parts(parameters: str) -> tuple[frozenset[str], str, str]:
    """Split SGR parameters into attributes, foreground and background."""
    attributes: set[str] = set()
    fore = back = ""
    rest = iter(parameters.split(";") if parameters else ())
    for code in rest:
        number = int(code)
        whole = code
        if number in (38, 48):
            mode = next(rest)
            whole = ";".join((code, mode, *(next(rest) for _ in range(3 if mode == "2" else 1))))
        if 30 <= number <= 39 or 90 <= number <= 97:
            fore = whole
        elif 40 <= number <= 49 or 100 <= number <= 107:
            back = whole
        else:
            attributes.add(code)
    return frozenset(attributes), fore, back


def _erasable(sgr: str, *, colored: bool) -> bool:
    """Whether erased cells look like blanks of a style; `colored`: also with a background."""
    attributes, _, back = _sgr_parts(sgr)
    return attributes <= _ERASABLE and (colored or back in ("", "49"))


_NARROW = re.compile(r"[ -~\u2500-\u25f7\u2800-\u28ff]*")
"""Characters of one cell anywhere: ASCII, boxes, blocks, shapes and braille."""


@lru_cache(maxsize=16384)
def _one_cell_each(text: str) -> bool:
    return all(get_character_cell_size(character) == 1 for character in text)


def _plain(text: str) -> bool:
    return _NARROW.fullmatch(text) is not None or _one_cell_each(text)


def narrow(line: CellLine) -> bool:
    """Whether every character of the line takes one cell."""
    return _plain("".join(segment.text for segment in line))
