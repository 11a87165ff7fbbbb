"""The screen of a small terminal: what it shows after what a program wrote."""

from __future__ import annotations

import re
import unicodedata

_TOKEN = re.compile(
    r"\x1b\[([<=>?]?)([\d;]*)([ $]?)([@-~])"  # CSI
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|[\x00-\x1f\x7f]"  # control characters
    r"|[^\x00-\x1f\x7f]+"  # text
)
_PARTIAL = re.compile(r"\x1b(?:\[[<=>?]?[\d;]*[ $]?|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?)?\Z")

Paint = tuple[frozenset[str], str, str]
"""How a cell is painted: attributes, foreground and background, as SGR parameters."""
_PLAIN: Paint = (frozenset(), "", "")


class Emulator:
    """The screen of a small terminal: text, cursor movement, SGR, erasing, scrolling."""

    def __init__(self, columns: int, rows: int) -> None:
        self.resize(columns, rows)
        self._rest = ""

    def resize(self, columns: int, rows: int) -> None:
        """Take a new size; as in a real terminal that lost its content, fill it with rubbish."""
        self.columns, self.rows = columns, rows
        self.cells = [[("?", _PLAIN)] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._paint = _PLAIN
        self._region = (0, rows)

    @property
    def cursor(self) -> tuple[int, int]:
        """Line and column."""
        return self._y, self._x

    @property
    def lines(self) -> list[str]:
        """The text of each line."""
        return ["".join(text for text, _ in line) for line in self.cells]

    @property
    def seen(self) -> list[list[tuple[str, Paint]]]:
        """The cells as they look: a blank has neither the colour nor the weight of its text."""
        return [[_seen(cell) for cell in line] for line in self.cells]

    @property
    def text(self) -> str:
        """The text of the screen."""
        return "\n".join(self.lines)

    def feed(self, data: str) -> None:
        """Draw what a program wrote."""
        data = self._rest + data
        partial = _PARTIAL.search(data)
        self._rest = data[partial.start() :] if partial else ""
        for token in _TOKEN.finditer(data, 0, len(data) - len(self._rest)):
            whole = token.group()
            if token.group(4):
                self._control(token.group(1), token.group(2), token.group(4))
            elif whole == "\r":
                self._x = 0
            elif whole == "\n":
                self._y = min(self._y + 1, self.rows - 1)
            elif whole == "\b":
                self._back(1)
            elif whole[0] >= " " and whole[0] != "\x7f":
                self._write(whole)

    def _write(self, text: str) -> None:
        for character in text:
            width = _width(character)
            if not width:
                self._combine(character)
            elif self._x + width <= self.columns:
                line = self.cells[self._y]
                self._break_wide(line, self._x, self._x + width)
                line[self._x] = (character, self._paint)
                if width == 2:
                    line[self._x + 1] = ("", self._paint)
                self._x += width

    def _combine(self, character: str) -> None:
        before = self._x - 1
        if before >= 0 and not self.cells[self._y][before][0]:
            before -= 1
        if before >= 0:
            text, paint = self.cells[self._y][before]
            self.cells[self._y][before] = (text + character, paint)

    @staticmethod
    def _break_wide(line: list[tuple[str, Paint]], start: int, end: int) -> None:
        if not line[start][0]:
            line[start - 1] = (" ", line[start - 1][1])
        if end < len(line) and not line[end][0]:
            line[end] = (" ", line[end][1])

    def _control(self, private: str, parameters: str, final: str) -> None:
        numbers = [int(n or 0) for n in parameters.split(";")]
        if private:
            if private == "?" and final in "hl" and 1049 in numbers:
                self.cells = [[(" ", _PLAIN)] * self.columns for _ in range(self.rows)]
        elif final == "H":
            row, column = [*numbers, 0][:2]
            self._y = min(max(row, 1), self.rows) - 1
            self._x = min(max(column, 1), self.columns) - 1
        elif final == "C":
            self._x = min(self._x + max(numbers[0], 1), self.columns - 1)
        elif final == "D":
            self._back(max(numbers[0], 1))
        elif final == "m":
            self._paint = painted(self._paint, parameters)
        elif final == "r":
            top, bottom = [*numbers, 0][:2]
            self._region = (max(top, 1) - 1, bottom or self.rows)
            self._x = self._y = 0
        elif final in "LM":
            self._shift(max(numbers[0], 1), down=final == "L")
        elif final == "X":
            self._erase(self._x + max(numbers[0], 1))
        elif final == "J":
            self.cells = [[self._blank] * self.columns for _ in range(self.rows)]
        elif final == "K":
            self._erase(self.columns)

    def _back(self, cells: int) -> None:
        # Behind the last cell a terminal's cursor is still on it.
        self._x = max(min(self._x, self.columns - 1) - cells, 0)

    @property
    def _blank(self) -> tuple[str, Paint]:
        """An erased cell: of the ground's colour, and nothing else."""
        return (" ", (frozenset(), "", self._paint[2]))

    def _erase(self, end: int) -> None:
        end = min(end, self.columns)
        start = min(self._x, self.columns - 1)
        line = self.cells[self._y]
        self._break_wide(line, start, end)
        line[start:end] = [self._blank] * (end - start)

    def _shift(self, count: int, *, down: bool) -> None:
        """Insert or delete lines at the cursor, within the region that scrolls."""
        bottom = self._region[1]
        count = min(count, bottom - self._y)
        new = [[self._blank] * self.columns for _ in range(count)]
        kept = self.cells[self._y : bottom]
        self.cells[self._y : bottom] = [*new, *kept[:-count]] if down else [*kept[count:], *new]


def _seen(cell: tuple[str, Paint]) -> tuple[str, Paint]:
    text, (attributes, fore, back) = cell
    back = "" if back == "49" else back
    if text != " " or "7" in attributes:
        return text, (attributes, "" if fore == "39" else fore, back)
    underlined = attributes & {"4"}
    return text, (underlined, fore if underlined else "", back)


def _width(character: str) -> int:
    if unicodedata.combining(character) or character in "\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


_ENDED = {22: {"1", "2"}, 23: {"3"}, 24: {"4"}, 27: {"7"}, 29: {"9"}}
"""The attributes that a code takes away."""


def painted(before: Paint, parameters: str) -> Paint:
    """How cells are painted after SGR `parameters`."""
    attributes, fore, back = set(before[0]), before[1], before[2]
    codes = parameters.split(";")
    at = 0
    while at < len(codes):
        code = int(codes[at] or 0)
        length = {"2": 5, "5": 3}[codes[at + 1]] if code in (38, 48) else 1
        whole = ";".join(codes[at : at + length])
        at += length
        if code == 0:
            attributes, fore, back = set(), "", ""
        elif code in _ENDED:
            attributes -= _ENDED[code]
        elif 30 <= code <= 39 or 90 <= code <= 97:
            fore = "" if code == 39 else _direct(whole)
        elif 40 <= code <= 49 or 100 <= code <= 107:
            back = "" if code == 49 else _direct(whole)
        else:
            attributes.add(whole)
    return frozenset(attributes), fore, back


def _direct(color: str) -> str:
    """A colour by red, green and blue, as which one of the cube and the greys is taken."""
    ground, mode, number = (*color.split(";"), "", "")[:3]
    if mode != "5" or (at := int(number) - 16) < 0:
        return color
    cube = (55 + 40 * level if level else 0 for level in (at // 36, at // 6 % 6, at % 6))
    parts = cube if at < 216 else (8 + 10 * (at - 216),) * 3
    return ";".join((ground, "2", *map(str, parts)))
