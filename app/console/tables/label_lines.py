"""Lines of a label and a text, as details have them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from bpf.errors import printable
from bpf.quantities import REPLACED

Line = tuple[str, str, str]
"""Label, text and style."""
_LABEL = 9


def labelled(lines: Iterable[Line], label: int = _LABEL) -> Table:
    """Return lines with labels of `label` cells; a long text goes on below, beside the labels."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", width=label)
    table.add_column(overflow="fold")
    for name, text, style in lines:
        table.add_row(name, Text(printable(text, REPLACED), style))
    return table
