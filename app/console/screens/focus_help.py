"""`f1`: what the thing that has the focus is, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Input, Static, TextArea

from app.commands import REGISTRY, Kind
from app.console import glossary
from app.console.prompt import Prompt
from widgets.screen import DiffModalScreen
from widgets.status import StatusStrip
from widgets.table import VirtualTable

Section = tuple[str, Sequence[tuple[str, str]]]
"""A title, and names with what they mean."""
_WIDE = 18


class FocusHelp(DiffModalScreen[None]):
    """Text over the screen."""

    BINDINGS = [Binding("escape,f1,q,enter", "dismiss", "Close")]
    CSS = """
    FocusHelp { align: center middle; }
    FocusHelp > VerticalScroll {
        width: 80; max-width: 100%; height: auto; max-height: 100%; scrollbar-size-vertical: 1;
        padding: 0 1; background: $panel; border: round $primary;
    }
    """

    def __init__(self, focused: Widget | None, mode: str) -> None:
        super().__init__()
        self._sections = help_of(focused, mode)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Group(*_drawn(self._sections)))


def help_of(focused: Widget | None, mode: str) -> list[Section]:
    """What is to be said of a widget; of the screen `mode` where nothing has the focus."""
    if isinstance(focused, VirtualTable):
        known = glossary.COLUMNS.get(focused.id or "", {})
        columns = ((column.title or column.id, column.id) for column in focused.columns)
        lines = [(title, known[name]) for title, name in columns if name in known]
        return [(f"Columns of {focused.id}", lines)]
    if isinstance(focused, StatusStrip):
        return [("Health", glossary.HEALTH)]
    if isinstance(focused, TextArea):
        return [("The editor", glossary.EDITOR)]
    if isinstance(focused, Input):
        return _of_prompt(focused)
    return [(mode.capitalize(), [("?", "The keys of this screen")])]


def _of_prompt(answer: Input) -> list[Section]:
    found: list[Section] = []
    prompt = next((one for one in answer.ancestors if isinstance(one, Prompt)), None)
    command = REGISTRY.get(prompt.command) if prompt is not None else None
    if command is not None:
        found.append((command.usage, [("", f"{command.title}. {command.help}".rstrip())]))
        if any(each.kind is Kind.FILTER for each in command.parameters):
            found.append(("Terms of a filter", glossary.FILTER))
    return [*found, ("Keys", glossary.PROMPT)]


def _drawn(sections: Sequence[Section]) -> Iterator[Text | Table]:
    for title, lines in sections:
        yield Text(title, "bold underline")
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", width=_WIDE if any(name for name, _ in lines) else 0)
        grid.add_column()
        for name, what in lines:
            grid.add_row(Text(name), Text(what))
        yield grid
        yield Text()
    yield Text.assemble(("esc", "bold"), " closes this; ", ("?", "bold"), " has the screen's keys")
