"""Keys and commands: their list over the screen, and the commands that open such boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.commands.keys import spoken
from app.commands.registry import REGISTRY
from app.config.keymap import BoundKey, Keymap
from app.console.dialogs.boxes import CELLS, HelpBox
from app.console.protocol import Console
from app.console.screen import front_screen
from app.console.screens import SCREENS
from app.console.tasks import Task
from bpf.errors import UsageError

_EVERYWHERE = "Everywhere"
_PARTS: dict[str, tuple[str, ...]] = {
    "Looking": ("view.pause", "view.columns", "view.copy", "view.export", "time."),
    "Screens": ("view.",),
    _EVERYWHERE: (),
    "In tables": ("table.", "pane."),
}
"""Sections of the common commands, by the beginnings of their names; the first that fits counts."""
_KEYS_CELLS, _NAME_CELLS = 13, 22
_MOST_COLUMNS = 2


class KeysScreen(HelpBox):
    """A list of keys over the screen."""

    def __init__(self, screen: str, keymap: Keymap, offers: Callable[[str], bool]) -> None:
        """`offers` says whether a command means anything now."""
        super().__init__()
        self._of, self._keymap, self._offers = screen, keymap, offers
        self._columns = 1
        self.title_text = f"Keys of {screen.capitalize()}"

    def on_mount(self) -> None:
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        room = self.app.size.width
        self._columns = max(1, min(_MOST_COLUMNS, room // CELLS))
        self.query_one(".box").styles.width = CELLS * self._columns

    def text(self) -> Iterator[Table]:
        """Yield a table whose columns have some sections each."""
        sections = list(self._sections())
        height = sum(2 + len(lines) for _, lines in sections) / self._columns
        columns: list[list[Text | Table]] = [[]]
        filled = 0.0
        for title, lines in sections:
            if len(columns) < self._columns and filled + len(lines) / 2 > height * len(columns):
                columns.append([])
            filled += 2 + len(lines)
            columns[-1] += self._section(title, lines, first=not columns[-1])
        grid = Table.grid(padding=(0, 2), expand=True)
        for _ in columns:
            grid.add_column(ratio=1)
        grid.add_row(*(Group(*column) for column in columns))
        yield grid

    def _sections(self) -> Iterator[tuple[str, Sequence[tuple[str, ...]]]]:
        """Yield titles and lines."""
        own = self._keymap.of(self._of)
        hidden = {bound.key for bound in own}
        parts: dict[str, list[BoundKey]] = {title: [] for title in _PARTS}
        for bound in self._keymap.of(""):
            offered = bound.command is None or self._offers(bound.command.name)
            if offered and bound.key not in hidden:
                name = bound.command.name if bound.command is not None else ""
                begun = (title for title, begins in _PARTS.items() if name.startswith(begins))
                parts[next(begun, _EVERYWHERE)].append(bound)
        yield SCREENS[self._of].title if self._columns > 1 else "", _commands(own)
        if (signs := SCREENS[self._of].signs) is not None:
            yield signs
        for title, part in parts.items():
            if lines := _commands(part):
                yield title, lines

    def _section(
        self, title: str, lines: Sequence[tuple[str, ...]], *, first: bool
    ) -> list[Text | Table]:
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(style="bold", width=_KEYS_CELLS, no_wrap=True)
        grid.add_column(ratio=1)
        muted = self.get_component_rich_style("help--muted", partial=True)
        grid.add_column(style=muted, no_wrap=True, width=_NAME_CELLS)
        for keys, what, *name in lines:
            grid.add_row(Text(keys), Text(what), Text("".join(name)))
        above = "" if first else "\n"
        return [Text(f"{above}{title}", "bold underline"), grid] if title else [grid]


def _commands(bound: Iterable[BoundKey]) -> list[tuple[str, ...]]:
    """Return a line for each command: its keys, title and name."""
    keys: dict[tuple[str, str], list[str]] = {}
    for each in bound:
        if each.lines or each.keys:
            name = each.command.name if each.command is not None else ""
            keys.setdefault((each.title, name), []).append(each.key)
    return [(spoken(",".join(of)), *deed) for deed, of in keys.items()]


class DialogCommands:
    """Runs the commands that open the prompt or a dialog, and imports rare dialogs."""

    def __init__(self, console: Console, offers: Callable[[str], bool]) -> None:
        """`offers` says whether a command means anything now."""
        self._console, self._offers = console, offers

    def do_app_prompt(self, text: str = "") -> None:
        if text in REGISTRY and REGISTRY[text].parameters:
            text += " "
        prompt = front_screen(self._console.app).prompt
        prompt.ask("", ":", "a command; tab completes it", text)

    def do_time_ask(self) -> None:
        self.do_app_prompt("time.go")

    def do_help_keys(self) -> None:
        app, keymap = self._console.app, self._console.keymap
        app.push_screen(KeysScreen(app.current_mode, keymap, self._offers))

    def do_help_focus(self) -> None:
        from app.console.dialogs.focus_help import FocusHelp  # it imports an editor's parser

        app, owners = self._console.app, self._console.time.frame.owners
        more = [owners.help()] if owners and app.current_mode in ("overview", "flows") else ()
        focused, mode = app.screen.focused, app.current_mode
        app.push_screen(FocusHelp(focused, mode, self._console.key_of, more))

    def do_probe_info(self) -> None:
        from app.console.dialogs.program_info import LocalHooks, ProgramInfoScreen

        plane = self._console.plane
        if not isinstance(plane, LocalHooks):
            raise UsageError("the hooks' run time is known on their own host only")
        info = ProgramInfoScreen(
            plane.hooks(),
            plane.memory(),
            lambda: self._console.time.frame.pulses,
            plane.budget,
            plane.cost,
        )
        self._console.app.push_screen(info)

    def do_dns_show(self) -> None:
        """Start the probe unless it runs, and show what it counts."""
        from app.commands.remote import add_ready_probe
        from app.console.dialogs.dns import PROBE, DnsScreen

        console = self._console

        def ask() -> None:
            if PROBE not in {each.name for each in console.plane.probes()}:
                add_ready_probe(console.plane, PROBE)

        def show(_: None) -> None:
            console.app.push_screen(DnsScreen(lambda: console.time.frame))

        task = Task("the count of DNS")
        console.tasks.run(console.app, task, ask, show, console.complain, of_command=True)

    def do_app_palette(self) -> None:
        from app.console.dialogs.palette import Palette

        self._console.app.push_screen(Palette())
