"""Text over the screen, that is gone with a key."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from widgets.screen import DiffModalScreen


class HelpBox(DiffModalScreen[None]):
    """A box in the middle, as high as it must be; where that is too high it is scrolled."""

    BINDINGS = [
        Binding("escape,f1,question_mark,q,enter", "dismiss", "Close"),
        Binding("j,space", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]
    DEFAULT_CSS = """
    HelpBox { align: center middle; }
    HelpBox > VerticalScroll {
        width: 80; max-width: 100%; height: auto; max-height: 100%; scrollbar-size-vertical: 0;
        padding: 0 1; background: $panel; border: round $primary;
        border-title-color: $text-primary; border-subtitle-color: $text-muted;
    }
    """
    title_text = ""
    """Stands in the border."""

    def text(self) -> Iterable[Text | Table]:
        """What is to be read."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        box = VerticalScroll(Static(Group(*self.text())))
        box.border_title = self.title_text
        box.border_subtitle = "j k go on, esc closes this"
        yield box

    def action_scroll(self, pages: int) -> None:
        """Go on in the text, or back."""
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(1, box.size.height - 1), animate=False)
