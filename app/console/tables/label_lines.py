"""Lines of a label and a text, as details have them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from widgets.format import REPLACED, safe

_LABEL = 9


def labelled(lines: Iterable[tuple[str, str, str]]) -> Table:
    """Of each line its label, text and style; what is too long goes on below, beside the labels."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", width=_LABEL)
    table.add_column(overflow="fold")
    for label, text, style in lines:
        table.add_row(label, Text(safe(text, REPLACED), style))
    return table
