"""Boxes over the screen, and one with a text, which a key closes"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ScreenResultType
from textual.widget import Widget

from app.config.model import Ui
from probes.config.options import settings_of
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
