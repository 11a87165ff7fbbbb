"""The line at the bottom in which the user types a command, or the value of one.

Above it are lines with answers to choose, each with its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import SuggestionReady
from textual.widget import Widget
from textual.widgets import Input, Label, Static
from textual.widgets.input import Selection

from app.commands.complete import Completion, usage
from app.commands.keys import CHARACTERS
from app.commands.registry import REGISTRY
from app.console.protocol import console_of
from bpf.errors import ProbedeckError, TextError, printable
from bpf.quantities import REPLACED

if TYPE_CHECKING:
    from app.console.prompt.command_line import CommandLine

_ROWS = 10
"""The most lines; a low screen has fewer."""


class Menu(Static):
    """Names with their meanings, one a line; hidden without any."""

    DEFAULT_CSS = """
    Menu { display: none; height: auto; padding: 0 1; background: $panel; color: $text-muted; }
    Menu.open { display: block; }
    """

    def show(self, names: Sequence[str], meanings: Mapping[str, str], chosen: int) -> None:
        """Show a part of `names` with the chosen one; -1: none is chosen."""
        self.set_class(bool(names), "open")
        if not names:
            return
        rows = max(3, min(_ROWS, self.screen.size.height // 3))
        first = max(0, min(chosen - rows // 2, len(names) - rows))
        width = max(map(len, meanings))
        room = self.screen.size.width - 2
        text = Text(no_wrap=True, overflow="ellipsis")
        for place in range(first, min(first + rows, len(names))):
            line = f"{names[place]:<{width}}  {printable(meanings[names[place]], REPLACED)}"
            if len(line) > room:
                line = f"{line[: room - 1]}…"
            text.append(line, "reverse" if place == chosen else "")
            text.append("\n")
        rest = len(names) - rows
        text.append("↓ chooses, or type your own" + (f"; {len(names)} in all" if rest > 0 else ""))
        self.update(text)


_MORE = " … "
MARK = "▼"
"""Stands over a wrong character."""
NO_MENU: Mapping[str, str] = MappingProxyType({})
ErrorPlace = Callable[[ProbedeckError, str], int | None]
"""Returns the index of the character that an error is about; None: the whole text, or unknown."""


def place_of(error: ProbedeckError, text: str) -> int | None:
    """Return the index of the character that a TextError is about; `text` contains its text."""
    if not isinstance(error, TextError):
        return None
    begin = text.find(error.text)
    return None if begin < 0 else min(begin + error.column - 1, len(text))


# Without the bindings that it inherits: those scroll, and a line does not.
class PromptInput(Input, inherit_bindings=False):
    """An input that keeps all its own keys, and of them shows only Enter in the footer."""

    BINDINGS = [Binding("enter", "submit", "Apply"), *Input.BINDINGS]
    _KEYS = frozenset(BindingsMap(BINDINGS).key_to_bindings)

    def __init__(self) -> None:
        super().__init__(select_on_focus=False)
        self.cursor_blink = False

    def check_consume_key(self, key: str, character: str | None) -> bool:
        known = key in CHARACTERS or key in self._KEYS
        return known or super().check_consume_key(key, character)


class Candidates(Static):
    """A line with the candidates at the cursor; hidden without any."""

    DEFAULT_CSS = """
    Candidates { display: none; height: 1; padding: 0 1; background: $panel; color: $text-muted; }
    Candidates.open { display: block; }
    """

    def show(self, words: tuple[str, ...], chosen: int) -> None:
        """Show as many words as fit, among them `words[chosen]`; -1: none is chosen."""
        self.set_class(bool(words), "open")
        if not words:
            return
        first, last = _window(words, chosen, self.screen.size.width - 2 - 2 * len(_MORE))
        text = Text(_MORE if first else "")
        for place in range(first, last):
            text.append(printable(words[place], REPLACED), "reverse" if place == chosen else "")
            text.append("  " if place + 1 < last else "")
        text.append(_MORE if last < len(words) else "")
        self.update(text)


def _window(words: tuple[str, ...], chosen: int, room: int) -> tuple[int, int]:
    """Return the first and the last index (exclusive) of words that fit, with the chosen one."""
    first = 0
    while True:
        last, used = first + 1, len(words[first])
        while last < len(words) and (used := used + 2 + len(words[last])) <= room:
            last += 1
        if chosen < last:
            return first, last
        first += 1


class ErrorLine(Static):
    """The error in the prompt's text; hidden without one."""

    DEFAULT_CSS = """
    ErrorLine {
        display: none; height: auto; max-height: 5; padding: 0 1;
        background: $panel; color: $text-error;
    }
    ErrorLine.open { display: block; }
    """

    def show(self, words: str, answer: Input | None) -> None:
        """Show an error. With `answer`, the line below, mark the character under its cursor."""
        text = Text(printable(words, REPLACED))
        if answer is not None:
            before = answer.cursor_screen_offset.x - self.styles.padding.left
            text.append("\n" + " " * before + MARK, "bold")
        self.update(text)
        self.add_class("open")

    def hide(self) -> None:
        self.remove_class("open")


class Prompt(Vertical):
    """The prompt; hidden until a command asks for a line or a value."""

    BINDINGS = [
        Binding("escape", "cancel", "Cancel"),
        Binding("tab", "complete(1)", "Complete"),
        Binding("shift+tab", "complete(-1)", show=False),
        Binding("up", "recall(1)", show=False),
        Binding("down", "recall(-1)", show=False),
    ]
    DEFAULT_CSS = """
    Prompt { display: none; height: auto; background: $panel; }
    Prompt.open { display: block; }
    Prompt > Horizontal { height: 1; }
    Prompt Label { padding: 0 1; color: $text-primary; text-style: bold; background: $panel; }
    Prompt PromptInput, Prompt PromptInput:focus {
        width: 1fr; height: 1; border: none; padding: 0; background: $panel;
    }
    """

    class Edited(Message):
        """The text of a question changed; after escape, it is the text before."""

        def __init__(self, command: str, text: str, *, left: bool = False) -> None:
            super().__init__()
            self.command, self.text, self.left = command, text, left

    def __init__(self) -> None:
        super().__init__()
        self._first = ""
        """The text with which the question began."""
        self.command = ""
        """The command that asks for a value, or asked last; empty for a whole line."""
        self.number = 0
        """Number of the question, or of the last answer to it, from 1."""
        self._sent = ""
        """The last answer."""
        self._before: Widget | None = None
        """The widget that had the focus before."""
        self._completion: Completion | None = None
        """The candidates of Tab, until the user types something else."""
        self._typed = "", 0
        """The text that is completed, and the cursor in it."""
        self._chosen = -1
        self._recalled = -1
        """Index of the history line that is shown, from the latest; -1: the typed text."""
        self._shown = ""
        """The text that completion, history or menu put into the line."""
        self._menu: Mapping[str, str] = {}
        """Answers to choose, with their meanings."""
        self._picked = -1
        """Index of the chosen answer among those that begin as the typed text; -1: none."""

    def compose(self) -> ComposeResult:
        yield Menu(markup=False)
        yield ErrorLine(markup=False)
        yield Candidates(markup=False)
        with Horizontal():
            yield Label(markup=False)
            yield PromptInput()

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    @property
    def input(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def text(self) -> str:
        return self.input.value

    @property
    def mistaken(self) -> bool:
        """Whether the prompt shows an error."""
        return self.query_one(ErrorLine).has_class("open")

    @property
    def _line(self) -> CommandLine:
        return console_of(self.app).command_line

    def ask(
        self, command: str, question: str, example: str, text: str, *, replaced: bool = False,
        menu: Mapping[str, str] = NO_MENU,
    ) -> None:  # fmt: skip
        """Open the prompt with a text to edit, or to be `replaced` by the first key. An empty line
        shows `example`. `menu` has answers to choose, with their meanings."""
        self.command, self.number, self._menu = command, self.number + 1, menu
        self.query_one(Label).update(question)
        answer, self._first = self.input, text
        answer.placeholder, answer.value = example, text
        self._forget()
        self.query_one(ErrorLine).hide()
        if not self.is_open:
            self._before = self.screen.focused
        # Notifications in the corner would cover the prompt.
        self.app.clear_notifications()
        self.add_class("open")
        # At once, unlike focus(): keys that are typed ahead are no commands.
        self.screen.set_focus(answer)
        answer.selection = Selection(0 if replaced else len(text), len(text))
        self._line.open()

    def sent(self) -> int:
        """Note that the text of now is acted on; return the number of this answer.

        The answer may take a while, and the next key begins another text.
        """
        self._sent = self.input.value
        self.input.action_select_all()
        self.number += 1
        return self.number

    def _answers(self, number: int) -> bool:
        """Whether a question is open, and its answer is the one that was sent."""
        return self.is_open and self.number == number and self.input.value == self._sent

    def close(self, number: int) -> None:
        """Close the prompt if a question is still open: it was answered."""
        if self._answers(number):
            self._hide()

    def refuse(self, number: int, error: ProbedeckError, place_of: ErrorPlace) -> bool:
        """Show an error at its character, and keep the text; False if the question is not open."""
        if not self._answers(number):
            return False
        answer, mistake = self.input, self.query_one(ErrorLine)
        self._forget()
        words = str(error)
        place = place_of(error, answer.value)
        answer.cursor_position = len(answer.value) if place is None else place
        if place is not None:
            if isinstance(error, TextError):
                # The mark replaces the column, which may count from within the line.
                words = words.replace(f" (column {error.column})", "")
            # The character has a place on the screen only after the line has scrolled to it.
            self.call_after_refresh(mistake.show, words, answer)
        mistake.show(words, None)
        return True

    def action_cancel(self) -> None:
        self.post_message(self.Edited(self.command, self._first, left=True))
        self._hide()

    def _hide(self) -> None:
        self._menu = NO_MENU
        self._forget()
        self.query_one(ErrorLine).hide()
        self.remove_class("open")
        before, self._before = self._before, None
        if before is None or not before.is_attached or not before.focusable:
            before = self.screen.query("VirtualTable").first()
        self.screen.set_focus(before)

    # Completion and history

    def action_complete(self, step: int) -> None:
        """Insert the common beginning of all candidates; then one after the other."""
        if self._pick(step):
            return
        answer = self.input
        if self._completion is None or answer.value != self._shown:
            self._typed = answer.value, answer.cursor_position
            self._completion = found = self._line.complete(self.command, *self._typed)
            self._chosen = -1
            typed = answer.value[found.begin : answer.cursor_position]
            if found.candidates:
                self._put(found.common if found.common.startswith(typed) else typed)
            else:
                self._tell_usage(True)
        elif candidates := self._completion.candidates:
            before = self._chosen if self._chosen >= 0 or step > 0 else 0
            self._chosen = (before + step) % len(candidates)
            self._put(candidates[self._chosen])

    def _put(self, candidate: str) -> None:
        answer, found = self.input, self._completion
        assert found is not None
        only = len(found.candidates) == 1
        text, position = found.applied(*self._typed, found.candidates[0] if only else candidate)
        if only:
            self._completion = None
            # The value of a command comes next.
            if not self.command and (named := REGISTRY.get(text.strip())) and named.parameters:
                text, position = f"{text} ", position + 1
        answer.value = self._shown = text
        answer.cursor_position = position
        if not only:
            self.query_one(Candidates).show(found.candidates, self._chosen)
        else:
            self._tell_usage(text == self._typed[0])

    def _tell_usage(self, known: bool) -> None:
        words = usage(self.command or self.text) if known else ""
        self.query_one(Candidates).show((words,) if words else (), -1)

    def action_recall(self, step: int) -> None:
        """Go back in the history, among lines that begin as this one; down chooses in the menu."""
        if (step < 0 or self._picked >= 0) and self._recalled < 0 and self._pick(-step):
            return
        answer = self.input
        if self._recalled < 0 or answer.value != self._shown:
            self._typed, self._recalled = (answer.value, answer.cursor_position), -1
        lines = [line for line in self._known() if line.startswith(self._typed[0])]
        self._recalled = max(-1, min(self._recalled + step, len(lines) - 1))
        text = lines[self._recalled] if self._recalled >= 0 else self._typed[0]
        answer.value = self._shown = text
        answer.cursor_position = len(text)

    def _known(self) -> list[str]:
        """Lines of the history that answer this question, the latest first."""
        begin = f"{self.command} " if self.command else ""
        lines = self._line.history.lines
        return [line.removeprefix(begin) for line in lines if line.startswith(begin)]

    def _offered(self) -> list[str]:
        """Names in the menu that contain the typed text, those that begin with it first."""
        typed = self._typed[0] if self._picked >= 0 else self.input.value
        found = (name for name in self._menu if typed in name)
        return sorted(found, key=lambda name: not name.startswith(typed))

    def _pick(self, step: int) -> bool:
        """Put another answer of the menu into the line; False without any."""
        answer = self.input
        if not (names := self._offered()):
            return False
        if self._picked < 0:
            self._typed = answer.value, answer.cursor_position
        self._picked = max(-1, min(self._picked + step, len(names) - 1))
        text = names[self._picked] if self._picked >= 0 else self._typed[0]
        answer.value = self._shown = text
        answer.cursor_position = len(text)
        self.query_one(Menu).show(names, self._menu, self._picked)
        return True

    def _forget(self) -> None:
        self._completion, self._recalled, self._shown, self._picked = None, -1, "", -1
        self.query_one(Candidates).show((), -1)
        self.query_one(Menu).show(self._offered(), self._menu, -1)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.query_one(ErrorLine).hide()
        if event.value != self._shown:
            self._forget()
            if event.value and self.is_open:
                self._suggest(event.value)
        if self.is_open:
            self.post_message(self.Edited(self.command, event.value))

    def _suggest(self, text: str) -> None:
        """Suggest the rest of the line: from the history, or the first candidate."""
        known = next((line for line in self._known() if line.startswith(text)), "")
        if not known and self.input.cursor_at_end:
            found = self._line.complete(self.command, text, len(text))
            typed = text[found.begin :]
            first = next((one for one in found.candidates if one.startswith(typed)), "")
            known = found.applied(text, len(text), first)[0] if typed and first else ""
        if len(known) > len(text):
            self.input.post_message(SuggestionReady(text, known))
