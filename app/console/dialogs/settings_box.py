"""`:set`: the options of the console, with their values."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from app.config.model import Ui
from app.config.schema import settings_of
from app.console.dialogs.help_box import HelpBox


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
