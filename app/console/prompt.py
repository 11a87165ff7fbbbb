"""The line at the bottom in which an operator answers a question."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Label

from app.commands.model import PRINTABLE


class PromptInput(Input):
    """An input whose footer names only the keys that are not text."""

    BINDINGS = [Binding("enter", "submit", "Apply")]

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return key in PRINTABLE or super().check_consume_key(key, character)


class Prompt(Horizontal):
    """Hidden until something is asked."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]
    DEFAULT_CSS = """
    Prompt { display: none; height: 1; background: $panel; }
    Prompt.open { display: block; }
    Prompt > Label { padding: 0 1; color: $text-primary; text-style: bold; background: $panel; }
    Prompt > PromptInput, Prompt > PromptInput:focus {
        width: 1fr; height: 1; border: none; padding: 0; background: $panel;
    }
    """

    def __init__(self, cancel: str = "flow.clear") -> None:
        """`cancel` is the command that closes it, and says where the keys go then."""
        super().__init__()
        self._cancel = cancel
        self.command = ""
        """The command that it is, or was last, open for."""

    def compose(self) -> ComposeResult:
        yield Label(markup=False)
        answer = PromptInput(select_on_focus=False)
        answer.cursor_blink = False
        yield answer

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def ask(self, command: str, question: str, example: str, text: str) -> None:
        """Open with `text` to be edited; `example` is shown while there is none."""
        self.command = command
        self.query_one(Label).update(question)
        answer = self.query_one(PromptInput)
        answer.placeholder, answer.value = example, text
        self.add_class("open")
        # At once, unlike focus(): what is typed ahead must not be taken for commands.
        self.screen.set_focus(answer)
        answer.cursor_position = len(text)

    async def action_cancel(self) -> None:
        await self.app.run_action(f"command('{self._cancel}')")

    def close(self) -> None:
        self.remove_class("open")
