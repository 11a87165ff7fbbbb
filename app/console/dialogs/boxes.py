"""Boxes over a screen: pages of text, facts asked for each second, and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ScreenResultType
from textual.widget import Widget
from textual.widgets import Static

from app.config.model import Ui
from bpf.errors import ProbedeckError, printable
from bpf.quantities import REPLACED, byte_size, si
from probes.config.options import settings_of
from probes.reports import OutputState, OutputStatus
from widgets.table.rows import Column, Rows
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffModalScreen

CELLS = 80


class BoxScreen(DiffModalScreen[ScreenResultType]):
    """A screen with a box, the widget of class `box`.

    In a terminal that is no wider than the box, it has no sides: they would cost two cells a line.
    """

    DEFAULT_CSS = f"""
    BoxScreen > .box {{
        width: {CELLS}; max-width: 100%; height: auto; max-height: 100%;
        background: $panel; border: round $primary;
        border-title-color: $text-primary; border-subtitle-color: $text-muted;
    }}
    BoxScreen.-narrow > .box {{ border-left: none; border-right: none; }}
    """

    # Textual also calls the handlers of base classes.

    def on_mount(self) -> None:
        self._fit_sides()

    def on_resize(self) -> None:
        self._fit_sides()

    def _fit_sides(self) -> None:
        # Breakpoints would come after the first frame.
        self.set_class(self.app.size.width <= CELLS, "-narrow")


class HelpBox(BoxScreen[None]):
    """A box in the middle, as high as its text; the user scrolls a longer one."""

    BINDINGS = [
        Binding("escape,f1,question_mark,q,enter", "dismiss", "Close"),
        Binding("j,space", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]
    COMPONENT_CLASSES = {"help--muted"}
    DEFAULT_CSS = """
    HelpBox { align: center middle; }
    HelpBox > .box { scrollbar-size-vertical: 0; padding: 0 1; }
    HelpBox > .help--muted { color: $text-muted; }
    """
    title_text = ""

    def text(self) -> Iterable[Text | Table]:
        """Return the paragraphs and tables of the text."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        box = VerticalScroll(_Lines(lambda: Group(*self.text())), classes="box")
        box.border_title = Content(self.title_text)
        yield box

    @property
    def _box(self) -> VerticalScroll:
        return self.query_one(VerticalScroll)

    def on_mount(self) -> None:
        self.watch(self._box, "scroll_y", self._tell_more, init=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self._tell_more)

    def renew(self) -> None:
        """Show the present text."""
        if self.is_mounted:
            self._box.query_one("*").refresh(layout=True)
            self.call_after_refresh(self._tell_more)

    def _tell_more(self) -> None:
        below = round(self._box.max_scroll_y - self._box.scroll_offset.y)
        more = f"▼ {below} more lines: j, back: k, " if below > 0 else "back: k, "
        begins = not self._box.max_scroll_y
        self._box.border_subtitle = f"{'' if begins else more}esc closes this"

    def action_scroll(self, pages: int) -> None:
        box = self._box
        box.scroll_relative(y=pages * max(1, box.size.height - 1), animate=False)


class _Lines(Widget):
    """A text in the colours of the theme."""

    DEFAULT_CSS = "_Lines { height: auto; }"

    def __init__(self, text: Callable[[], RenderResult]) -> None:
        super().__init__()
        self._text = text

    def render(self) -> RenderResult:
        return self._text()


class SettingsBox(HelpBox):
    """A list of the options of `[ui]`."""

    title_text = "Settings: set OPTION VALUE"

    def __init__(self, ui: Ui) -> None:
        super().__init__()
        self._ui = ui

    def text(self) -> Iterator[Table]:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column()
        for name, each in settings_of(Ui).items():
            value = getattr(self._ui, name)
            text = str(value).lower() if isinstance(value, bool) else str(value) or "none"
            choices = f" ({each.metavar})" if each.metavar else ""
            grid.add_row(Text(name), Text(text), Text(f"{each.help}{choices}"))
        yield grid


_PERIOD = 1.0


class PolledBox(HelpBox):
    """A box of facts that may come from another host."""

    def __init__(self, title: str, ask: Callable[[], Text]) -> None:
        super().__init__()
        self._named, self._asked, self._shown = title, ask, Text()

    def on_mount(self) -> None:
        self._box.border_title = Content(self._named)
        self._ask()
        self.set_interval(_PERIOD, self._ask)

    def text(self) -> Iterator[Text]:
        yield self._shown

    @work(thread=True, exclusive=True, group="polled")
    def _ask(self) -> None:
        try:
            self._shown = self._asked()
        except ProbedeckError as error:
            self._shown = Text(str(error), "bold")
        self.app.call_from_thread(self.renew)


_NONE = "No output runs. Start one: :output.add URL, --output URL or [[outputs]]."


def page(outputs: Sequence[OutputStatus]) -> Text:
    """Return the outputs: a line of numbers each, then its URL, and why it fails."""
    if not outputs:
        return Text(_NONE)
    text = Text()
    titles = f"{'Output':<16}{'State':<12}{'Delivered':>11}{'Undelivered':>13}{'Waiting':>9}"
    text.append(f"{titles}{'Memory':>10}\n", "bold")
    for each in outputs:
        waiting = byte_size(each.queued_bytes)
        text.append(f"{printable(each.name, REPLACED):<15.15} {each.state:<12}")
        text.append(f"{si(each.delivered):>11}{si(each.lost):>13}{si(each.queued):>9}{waiting:>10}")
        text.append(f"\n  {printable(each.url, REPLACED)}\n", "dim")
        if each.reason:
            style = "bold" if each.state is OutputState.FAILING else "dim"
            text.append(f"  {printable(each.reason, REPLACED)}\n", style)
        if each.lost:
            why = ", ".join(f"{count} {reason}" for reason, count in each.undelivered.items())
            text.append(f"  undelivered: {printable(why, REPLACED)}\n")
    text.rstrip()
    return text


_OTHER_LINES = 3
"""Lines of the box without the list and the help: two borders, and a gap."""


class ListBox(BoxScreen[ScreenResultType]):
    """A box in the middle, as high as its list; the keys of tables move in it."""

    BINDINGS = [
        Binding("escape,q", "dismiss", "Cancel"),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("home,g,pageup", "move(-100)", show=False),
        Binding("end,G,pagedown", "move(100)", show=False),
    ]
    DEFAULT_CSS = """
    ListBox { align: center middle; }
    ListBox > .box { padding: 0 1; }
    ListBox VirtualTable { background: $panel; }
    ListBox Static { height: auto; color: $text-muted; margin-top: 1; }
    """
    help_text: ClassVar[str]
    """Keys and their actions."""
    columns: ClassVar[tuple[Column[Any], ...]]

    @property
    def title_text(self) -> str:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(self.title_text)
            yield VirtualTable(self.columns)
            yield Static(self.help_text, markup=False)

    @property
    def listed(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def rows(self) -> Rows:
        """Return the rows of the list."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self._fit()

    def show(self) -> None:
        """Show the present rows."""
        self.listed.show(self.rows())
        self._fit()

    def _fit(self) -> None:
        help_lines = self.help_text.count("\n") + 1
        room = max(2, self.size.height - _OTHER_LINES - help_lines)
        self.listed.styles.height = min(1 + self.listed.source.rows, room)

    def action_move(self, rows: int) -> None:
        self.listed.action_move(rows)
