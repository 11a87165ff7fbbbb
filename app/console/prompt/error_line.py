"""What is wrong with the text of a prompt, above it, and a mark over where."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Input, Static

from widgets.format import REPLACED, safe

MARK = "▼"


class Mistake(Static):
    """Hidden while there is none."""

    DEFAULT_CSS = """
    Mistake {
        display: none; height: auto; max-height: 5; padding: 0 1;
        background: $panel; color: $text-error;
    }
    Mistake.open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, words: str, answer: Input | None) -> None:
        """Say it; with `answer`, the line below, mark the character under its cursor."""
        text = Text(safe(words, REPLACED))
        if answer is not None:
            before = answer.cursor_screen_offset.x - self.styles.padding.left
            text.append("\n" + " " * before + MARK, "bold")
        self.update(text)
        self.add_class("open")

    def hide(self) -> None:
        self.remove_class("open")
