"""An editor of C: highlighting, line numbers, and marks on the lines that somebody remarked on.

Textual's own editor asks the whole syntax tree for colours at each key, and joins all lines to see
whether there are any. Here only lines that are drawn are asked for, so that a megabyte of source
can be edited as a page can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tree_sitter
import tree_sitter_c
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.document._document import EditResult
from textual.document._edit import Edit
from textual.geometry import Region, Size
from textual.keys import KEY_NAME_REPLACEMENTS
from textual.strip import Strip
from textual.widgets import TextArea
from textual.widgets.text_area import TextAreaTheme

from widgets.format import REPLACED
from widgets.tones import Tone, tone_styles

_BLOCK = 64
"""Lines whose colours are asked for together."""
_MEASURED = 4096
"""Lines up to which the longest is looked for again at each edit."""
_CAPTURES = (
    "type", "constant", "number", "string", "function", "map", "keyword", "directive", "label",
    "comment",
)  # fmt: skip
"""What a query finds; where two are at one place, the later is drawn."""
_QUERY = r"""
[(type_identifier) (primitive_type) (sized_type_specifier)] @type
((identifier) @constant (#match? @constant "^[A-Z][A-Z0-9_]+$"))
[(true) (false) (null)] @constant
[(number_literal) (char_literal)] @number
[(string_literal) (system_lib_string)] @string
(call_expression function: (identifier) @function)
(call_expression function: (field_expression field: (field_identifier) @function))
(function_declarator declarator: (identifier) @function)
(preproc_function_def name: (identifier) @function)
([(identifier) (type_identifier)] @map (#match? @map "^BPF_(F_)?[A-Z][A-Z_]*$"))
(statement_identifier) @label
[
  "break" "case" "const" "continue" "default" "do" "else" "enum" "extern" "for" "goto" "if"
  "inline" "register" "return" "sizeof" "static" "struct" "switch" "typedef" "union" "volatile"
  "while"
] @keyword
((type_identifier) @keyword (#match? @keyword "^__(always_)?inline(__)?$"))
["#define" "#elif" "#else" "#endif" "#if" "#ifdef" "#ifndef" "#include"] @directive
(preproc_directive) @directive
(comment) @comment
"""
_LANGUAGE = tree_sitter.Language(tree_sitter_c.language())
_SIGNS = {Tone.BAD: "●", Tone.WARN: "▲"}
_OTHER_SIGN = "·"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something remarked on a place of the text."""

    line: int
    """From 0."""
    column: int
    """From 0; what is there is underlined. -1 where unknown."""
    tone: Tone
    text: str
    """The remark."""


class _Highlights(dict[int, list[tuple[int, int | None, str]]]):
    """Highlights by line, asked for when they are needed."""

    def __init__(self, ask: Callable[[int, _Highlights], None]) -> None:
        super().__init__()
        self._ask = ask

    def __bool__(self) -> bool:
        return True

    def __missing__(self, line: int) -> list[tuple[int, int | None, str]]:
        first = line - line % _BLOCK
        for row in range(first, first + _BLOCK):
            self[row] = []
        self._ask(first, self)
        return self[line]


class CodeEditor(TextArea):
    """An editor of one C file; knows nothing of what the file is for."""

    COMPONENT_CLASSES = {f"code--{name}" for name in _CAPTURES} | {f"tone--{t}" for t in Tone}
    DEFAULT_CSS = """
    CodeEditor, CodeEditor:focus { border: none; padding: 0; scrollbar-size: 0 1; }
    CodeEditor {
        & .text-area--gutter { color: $text-muted; }
        & .text-area--cursor-gutter { color: $foreground; }
        &:dark .text-area--cursor, &:light .text-area--cursor {
            color: $input-cursor-foreground; background: $input-cursor-background;
        }
        & > .tone--muted { color: $text-muted; }
        & > .tone--warn { color: $text-warning; text-style: bold; }
        & > .tone--bad { color: $text-error; text-style: bold; }
        & > .code--type { color: $text-success; }
        & > .code--constant, & > .code--number { color: $text-warning; }
        & > .code--string { color: $text-secondary; }
        & > .code--function { color: $text-primary; }
        & > .code--map { color: $text-accent; text-style: bold; }
        & > .code--keyword { color: $text-primary; text-style: bold; }
        & > .code--directive, & > .code--label { color: $text-accent; text-style: bold; }
        & > .code--comment { color: $text-muted; text-style: italic; }
    }
    """

    _joined: str | None = None
    """The text, while it is known."""
    _coloured = False
    """Whether the theme of the editor has the colours of the app's."""
    _longest = 0
    """Cells of the longest line that was seen."""

    def __init__(self, text: str = "", *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(
            "",
            soft_wrap=False,
            tab_behavior="indent",
            show_line_numbers=True,
            max_checkpoints=500,
            id=id,
        )
        self.marks: Mapping[int, Sequence[Mark]] = {}
        """By line; changed by `show_marks`."""
        self.cursor_blink = False
        self.register_language("c", _LANGUAGE, _QUERY)
        self.register_theme(TextAreaTheme("deck"))
        self.theme = "deck"
        self.language = "c"
        self.load_text(text)

    @property
    def text(self) -> str:
        """All of it."""
        if self._joined is None:
            self._joined = self.document.text
        return self._joined

    @text.setter
    def text(self, value: str) -> None:
        self.load_text(value)

    def load_text(self, text: str) -> None:
        """Begin with `text`, without a history."""
        self.indent_type = "tabs" if "\n\t" in text else "spaces"
        self._longest = 0
        super().load_text(text)

    def put(self, text: str) -> None:
        """Have `text` instead of what there is; one step that can be undone. The cursor stays."""
        row, column = self.cursor_location
        self.history.checkpoint()
        self.replace(text, self.document.start, self.document.end)
        self.history.checkpoint()
        self.move_cursor((min(row, self.document.line_count - 1), column))

    def show_marks(self, marks: Sequence[Mark]) -> None:
        """Mark these places from now on, and no others."""
        by_line: dict[int, list[Mark]] = {}
        for mark in marks:
            by_line.setdefault(mark.line, []).append(mark)
        if by_line != self.marks:
            self.marks = by_line
            self._line_cache.clear()
            self.refresh()

    def go_to(self, line: int, column: int = 0) -> None:
        """Put the cursor on a place, from 0, or the nearest that there is."""
        line = max(0, min(line, self.document.line_count - 1))
        column = max(0, min(column, len(self.document.get_line(line))))
        self.move_cursor((line, column), center=True)

    def edit(self, edit: Edit) -> EditResult:
        """Do an edit; marks below it move with their lines."""
        result = super().edit(edit)
        moved = result.end_location[0] - edit.bottom[0]
        if moved and self.marks:
            below = edit.bottom[0]
            self.show_marks(
                [
                    replace(mark, line=line + moved if line > below else line)
                    for line, marks in self.marks.items()
                    for mark in marks
                ]
            )
        return result

    def check_consume_key(self, key: str, character: str | None = None) -> bool:
        return key in KEY_NAME_REPLACEMENTS.values() or super().check_consume_key(key, character)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            # Whoever has the editor knows where to go.
            event.prevent_default()
        elif event.key == "enter" and not self.read_only:
            event.stop()
            event.prevent_default()
            start, end = self.selection
            row, column = min(start, end)
            before = self.document.get_line(row)[:column]
            indent = before[: len(before) - len(before.lstrip())]
            self._replace_via_keyboard("\n" + indent, start, end)

    def get_line(self, line_index: int) -> Text:
        """Give a line as it is drawn: harmless, and underlined where it is marked."""
        line = self.document.get_line(line_index)
        if not line.replace("\t", " ").isprintable():
            line = "".join(c if c == "\t" or c.isprintable() else REPLACED for c in line)
        text = Text(line, end="", no_wrap=True)
        for mark in self.marks.get(line_index, ()):
            if 0 <= mark.column < len(line):
                end = mark.column + 1
                while end < len(line) and (line[end].isalnum() or line[end] == "_"):
                    end += 1
                text.stylize(Style(underline=True), mark.column, end)
        return text

    def render_line(self, y: int) -> Strip:
        """Draw a line, with the sign of its worst mark in the gutter."""
        strip = super().render_line(y)
        marks = self.marks.get(y + self.scroll_offset.y)
        if not marks:
            return strip
        tones = [mark.tone for mark in marks]
        tone = next((t for t in (Tone.BAD, Tone.WARN) if t in tones), Tone.MUTED)
        sign = Segment(_SIGNS.get(tone, _OTHER_SIGN), tone_styles(self._style_of)[tone])
        at = self.gutter_width - 2
        return Strip.join([strip.crop(0, at), Strip([sign], 1), strip.crop(at + 1)])

    def _style_of(self, name: str) -> Style:
        return self.get_component_rich_style(name)

    def notify_style_update(self) -> None:
        """Take up new colours."""
        super().notify_style_update()
        self._coloured = False

    def _set_theme(self, theme: str) -> None:
        super()._set_theme(theme)
        self._coloured = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw lines, in the colours of the theme."""
        if not self._coloured:
            self._coloured = True
            styles = {name: self._style_of(f"code--{name}") for name in _CAPTURES}
            # Without their background, as a line may have another.
            self._theme.syntax_styles = {
                name: Style(color=style.color, bold=style.bold, italic=style.italic)
                for name, style in styles.items()
            }
        return super().render_lines(crop)

    def _build_highlight_map(self) -> None:
        # Called whenever the text has changed.
        self._line_cache.clear()
        self._joined = None
        self._highlights = _Highlights(self._highlight)

    def _highlight(self, first: int, lines: _Highlights) -> None:
        if self._highlight_query is None:
            return
        last = first + _BLOCK
        found = self.document.query_syntax_tree(self._highlight_query, (first, 0), (last, 0))
        for name in _CAPTURES:
            for node in found.get(name, ()):
                (top, start), (bottom, end) = node.start_point, node.end_point
                for row in range(max(top, first), min(bottom, last - 1) + 1):
                    from_column = start if row == top else 0
                    lines[row].append((from_column, end if row == bottom else None, name))

    def _refresh_size(self) -> None:
        # The longest of many lines is not looked for again at each key.
        if self.document.line_count <= _MEASURED or not self._longest:
            self._longest = self.document.get_size(self.indent_width).width
        else:
            row = self.cursor_location[0]
            width = len(self.document.get_line(row).expandtabs(self.indent_width))
            self._longest = max(self._longest, width)
        self.virtual_size = Size(self._longest + self.gutter_width + 1, self.document.line_count)
        self._refresh_scrollbars()
