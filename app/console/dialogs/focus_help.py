"""`f1`: an explanation of the widget with the focus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text
from textual.widget import Widget
from textual.widgets import Input, TextArea

from app.commands.model import ParameterKind
from app.commands.registry import REGISTRY
from app.console.dialogs.boxes import HelpBox
from app.console.prompt.prompt import Prompt
from widgets.table.header import title_of
from widgets.table.table import VirtualTable

Section = tuple[str, Sequence[tuple[str, str]]]
"""A title, and names with their meanings."""
_WIDE = 18
_EDITOR = (
    ("ctrl+z, ctrl+y", "Undo, redo"),
    ("ctrl+a, ctrl+e", "Begin, end of the line"),
    ("ctrl+k, ctrl+u", "Delete to the end, to the beginning of the line"),
    ("ctrl+d, ctrl+w", "Delete the next character, the word before"),
    ("shift+arrows", "Select"),
    ("ctrl+x, c, v", "Cut, copy, paste"),
)
_EDITOR_COMMANDS = (
    ("program.next_direction", "The probe's other direction: incoming or outgoing packets"),
    ("program.panel", "The next panel: log, difference, swap report, metrics, events"),
    ("program.next_error", "To the next problem"),
    ("program.compile", "Compile and verify; nothing that runs is touched"),
    ("program.swap", "Swap in; no packet is lost"),
    ("program.rollback", "Back to the generation before"),
    ("program.revert", "Back to the source that runs"),
    ("program.save", "Write this source to a file"),
    ("program.external", "Open it in $EDITOR"),
    ("program.leave", "To the list of programs, where ? has the other keys"),
)
"""Commands that are useful in the editor; help shows them with the user's keys."""
_PROMPT = (
    ("tab", "Complete; again: the next one"),
    ("up, down", "The history"),
    ("enter", "Run it"),
    ("esc", "Cancel"),
)
_FILTER = (
    ("tcp 443", "Protocol, port, host: terms that all must hold"),
    ("dport:80,443", "One of these; sport: port: too, and ranges 8000-8100"),
    ("src:10.0.0.0/8", "An address or prefix; dst: net: host: too"),
    ("host:/regex/", "Address or name matches"),
    ("rate>1M rtt>50ms", "Numbers with units: bytes packets age idle loss jitter"),
    ("proto:udp ip:6 dir:in", "Also by version and direction"),
    ("proc:nginx unit:web", "Owner: also pid: user: container: pod:"),
    ("limit:receiver", "Limit of the connection; also retrans>1%"),
    ("!tcp", "All but these"),
)
"""The language of filters, by example."""
_POLICY = (
    ("NAME: ... -> ...", "While the condition holds, the applications after the arrow run"),
    ("packets > 1000", "Of a window: packets bytes flows, tcp_packets udp_bytes icmp_..."),
    ("packets on udp", "Of a selection: also bytes flows sources destinations ports top_source"),
    ("rate(bytes)>1Mbit/s", "Per second; also avg min max sum(x, 60s), of the last windows"),
    ("5 * baseline(60s)", "Compared with the usual value; and, or, not join conditions"),
    ("always, operator", "In place of a condition: permanent; only by key o"),
    ("until flows < 100", "End; hold 5s: least time on; cooldown 10s: least time off"),
    ("-> accounting, dns", "Also heavy_hitters half_open port_scan tcp_health, and trace:3"),
    ("on tcp port:443", "Only these packets"),
)
"""The language of policies, by example."""


class FocusHelp(HelpBox):
    """An explanation of the widget with the focus."""

    def __init__(
        self, focused: Widget | None, mode: str, key_of: Callable[[str], str],
        more: Sequence[Section] = (),
    ) -> None:  # fmt: skip
        """`more` are sections about what the screen shows now."""
        super().__init__()
        self._sections = [*more, *help_of(focused, mode, key_of)]
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
        explained = [column for column in focused.columns if column.help]
        lines = [(title_of(column) or column.id, column.help) for column in explained]
        return [(f"Columns of {focused.id}", lines)]
    if isinstance(focused, TextArea):
        commands = [(key_of(name), what) for name, what in _EDITOR_COMMANDS]
        return [("The editor", [*_EDITOR, *commands])]
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
            found.append(("Terms of a filter", _FILTER))
        if command.name == "trigger.add":
            found.append(("A policy", _POLICY))
    return [*found, ("Keys", _PROMPT)]
