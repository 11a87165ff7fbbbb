"""The line above the prompt: an error in its text, and a mark over the wrong character."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Input, Static

from widgets.format import REPLACED, safe

MARK = "▼"


class ErrorLine(Static):
    """The error in the prompt's text; hidden without one."""

    DEFAULT_CSS = """
    ErrorLine {
        display: none; height: auto; max-height: 5; padding: 0 1;
        background: $panel; color: $text-error;
    }
    ErrorLine.open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, words: str, answer: Input | None) -> None:
        """Show an error. With `answer`, the line below, mark the character under its cursor."""
        text = Text(safe(words, REPLACED))
        if answer is not None:
            before = answer.cursor_screen_offset.x - self.styles.padding.left
            text.append("\n" + " " * before + MARK, "bold")
        self.update(text)
        self.add_class("open")

    def hide(self) -> None:
        self.remove_class("open")
