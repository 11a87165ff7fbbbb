"""A C editor: highlighting, line numbers, and marks on lines with remarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tree_sitter
import tree_sitter_c
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.keys import KEY_NAME_REPLACEMENTS
from textual.strip import Strip
from textual.widgets.text_area import Edit, EditResult, TextAreaTheme

from bpf.quantities import REPLACED
from widgets.terminal.text_area import LazyTextArea
from widgets.tones import Tone, tone_styles

_CAPTURES = (
    "type", "constant", "number", "string", "function", "map", "keyword", "directive", "label",
    "comment",
)  # fmt: skip
"""Names of highlights. If two cover one place, the later is drawn."""
QUERY = r"""
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
LANGUAGE = tree_sitter.Language(tree_sitter_c.language())
_SIGNS = {Tone.BAD: "●", Tone.WARN: "▲"}
_OTHER_SIGN = "·"


@dataclass(frozen=True, slots=True)
class Mark:
    """A remark on a place of the text."""

    line: int
    """From 0."""
    column: int
    """From 0; the word there is underlined. -1: unknown."""
    tone: Tone
    text: str


class CodeEditor(LazyTextArea):
    """An editor of one C file."""

    COMPONENT_CLASSES = {f"code--{name}" for name in _CAPTURES}
    DEFAULT_CSS = """
    CodeEditor, CodeEditor:focus { border: none; padding: 0; scrollbar-size: 0 1; }
    CodeEditor {
        & .text-area--gutter { color: $text-muted; }
        & .text-area--cursor-gutter { color: $foreground; }
        &:dark .text-area--cursor, &:light .text-area--cursor {
            color: $input-cursor-foreground; background: $input-cursor-background;
        }
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
        """Marks by line; `show_marks` replaces them."""
        self.cursor_blink = False
        self.register_language("c", LANGUAGE, QUERY)
        self.register_theme(TextAreaTheme("deck"))
        self.theme = "deck"
        self.language = "c"
        self.load_text(text)

    def load_text(self, text: str) -> None:
        self.indent_type = "tabs" if "\n\t" in text else "spaces"
        super().load_text(text)

    def put(self, text: str) -> None:
        """Replace the text in one step that can be undone. The cursor keeps its place."""
        row, column = self.cursor_location
        self.history.checkpoint()
        self.replace(text, self.document.start, self.document.end)
        self.history.checkpoint()
        self.move_cursor((min(row, self.document.line_count - 1), column))

    def show_marks(self, marks: Sequence[Mark]) -> None:
        """Replace all marks."""
        by_line: dict[int, list[Mark]] = {}
        for mark in marks:
            by_line.setdefault(mark.line, []).append(mark)
        if by_line != self.marks:
            self.marks = by_line
            self.forget_lines()
            self.refresh()

    def go_to(self, line: int, column: int = 0) -> None:
        """Move the cursor to a line and column, both from 0, or to the nearest place."""
        line = max(0, min(line, self.document.line_count - 1))
        column = max(0, min(column, len(self.document.get_line(line))))
        self.move_cursor((line, column), center=True)

    def edit(self, edit: Edit) -> EditResult:
        """Edit the text. Marks below the edit move with their lines."""
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

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            # The screen handles Escape, not the text area.
            event.prevent_default()
        elif event.key == "enter" and not self.read_only:
            event.stop()
            event.prevent_default()
            start, end = self.selection
            row, column = min(start, end)
            before = self.document.get_line(row)[:column]
            indent = before[: len(before) - len(before.lstrip())]
            self.replace("\n" + indent, start, end, maintain_selection_offset=False)

    def get_line(self, line_index: int) -> Text:
        """Return the drawn form of a line: printable, with its marks underlined."""
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
        """Draw a line with the sign of its worst mark in the gutter."""
        strip = super().render_line(y)
        marks = self.marks.get(y + self.scroll_offset.y)
        if not marks:
            return strip
        tones = [mark.tone for mark in marks]
        tone = next((t for t in (Tone.BAD, Tone.WARN) if t in tones), Tone.MUTED)
        sign = Segment(_SIGNS.get(tone, _OTHER_SIGN), tone_styles(self)[tone])
        at = self.gutter_width - 2
        return Strip.join([strip.crop(0, at), Strip([sign], 1), strip.crop(at + 1)])

    def syntax_styles(self) -> dict[str, Style]:
        """Return the style of each highlight, without background: marked lines have another."""
        styles = {name: self.get_component_rich_style(f"code--{name}") for name in _CAPTURES}
        return {
            name: Style(color=style.color, bold=style.bold, italic=style.italic)
            for name, style in styles.items()
        }
