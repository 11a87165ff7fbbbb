"""`?`: the keys of a screen and their commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.commands.keys import spoken
from app.config.keymap import BoundKey, Keymap
from app.console.dialogs.help_box import CELLS, HelpBox
from app.console.screens import SCREENS

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
