"""`f1`: an explanation of the widget with the focus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text
from textual.widget import Widget
from textual.widgets import Input, TextArea

from app.commands import REGISTRY, ParameterKind
from app.console.dialogs import glossary
from app.console.dialogs.help_box import HelpBox
from app.console.prompt.prompt import Prompt
from widgets.status import StatusStrip
from widgets.table.table import VirtualTable

Section = tuple[str, Sequence[tuple[str, str]]]
"""A title, and names with their meanings."""
_WIDE = 18


class FocusHelp(HelpBox):
    """An explanation of the widget with the focus."""

    def __init__(self, focused: Widget | None, mode: str, key_of: Callable[[str], str]) -> None:
        super().__init__()
        self._sections = help_of(focused, mode, key_of)
        self.title_text = self._sections[0][0]

    def text(self) -> Iterator[Text | Table]:
        for number, (title, lines) in enumerate(self._sections):
            if number:
                yield Text(f"\n{title}", "bold underline")
            grid = Table.grid(padding=(0, 2))
            grid.add_column(style="bold", width=_WIDE if any(name for name, _ in lines) else 0)
            grid.add_column()
            for name, what in lines:
                grid.add_row(Text(name), Text(what))
            yield grid


def help_of(focused: Widget | None, mode: str, key_of: Callable[[str], str]) -> list[Section]:
    """Explain a widget, or the screen `mode` if nothing has the focus.

    `key_of` gives the key of a command.
    """
    if isinstance(focused, VirtualTable):
        lines = [(column.title or column.id, column.help) for column in focused.columns
                 if column.help]  # fmt: skip
        return [(f"Columns of {focused.id}", lines)]
    if isinstance(focused, StatusStrip):
        return [("Health", glossary.HEALTH)]
    if isinstance(focused, TextArea):
        commands = [(key_of(name), what) for name, what in glossary.EDITOR_COMMANDS]
        return [("The editor", [*glossary.EDITOR, *commands])]
    if isinstance(focused, Input):
        return _of_prompt(focused)
    return [(mode.capitalize(), [(key_of("help.keys"), "The keys of this screen")])]


def _of_prompt(answer: Input) -> list[Section]:
    found: list[Section] = []
    prompt = next((one for one in answer.ancestors if isinstance(one, Prompt)), None)
    command = REGISTRY.get(prompt.command) if prompt is not None else None
    if command is not None:
        found.append((command.usage, [("", f"{command.title}. {command.help}".rstrip())]))
        if any(each.kind is ParameterKind.FILTER for each in command.parameters):
            found.append(("Terms of a filter", glossary.FILTER))
        if command.name == "trigger.add":
            found.append(("A policy", glossary.POLICY))
    return [*found, ("Keys", glossary.PROMPT)]
