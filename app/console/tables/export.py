"""A table as a file, and as text for the clipboard: its filtered and sorted rows and columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from textual.app import App

from app.commands.export_target import TEXT, suffix_of
from app.files import write_atomic
from bpf.errors import ProbedeckError, current, printable
from bpf.quantities import REPLACED
from widgets.table.columns import cell
from widgets.table.rows import Column, RowSource
from widgets.table.table import VirtualTable

if TYPE_CHECKING:
    from app.console.tables.sorted_table import ArrayRows, SortedTable

MOST = 74_000
"""Bytes that are copied at most: terminals cut what is more than 100 kB in base64."""
SEPARATOR = "\t"


def cell_text(source: RowSource, index: int, position: int) -> str:
    """A cell's whole text, however much of it there is room for; without control characters."""
    content = source.cells(index)[position]
    text = content if isinstance(content, str) else "".join(part for part, _ in content)
    return printable(text, REPLACED)


def row_text(table: VirtualTable, index: int) -> str:
    """The cells of the columns that are shown, with a tab between two."""
    return SEPARATOR.join(cell_text(table.source, index, p.position) for p in table.shown)


def rows_text(table: VirtualTable, most: int = MOST) -> tuple[str, int]:
    """The header and the rows from the first one, a line each, and how many `most` bytes hold."""
    header = SEPARATOR.join(printable(place.column.title, REPLACED) for place in table.shown)
    lines = [header]
    room = most - len(header.encode())
    for line in (row_text(table, index) for index in range(table.source.rows)):
        room -= 1 + len(line.encode())
        if room < 0:
            break
        lines.append(line)
    return "\n".join(lines), len(lines) - 1


_PART = 4096
"""Rows that are written at a time."""

Progress = Callable[[float], None]
"""Told how much is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class TableContent:
    """Rows and columns of a table at a moment."""

    source: ArrayRows
    columns: tuple[tuple[int, Column[Any]], ...]
    """Chosen columns with their positions among the cells, from the left."""
    drawn: frozenset[str]
    """Columns (by id) that are pictures, and have no values."""

    @classmethod
    def of(cls, table: SortedTable) -> TableContent:
        known = {column.id: place for place, column in enumerate(table.columns)}
        shown = table.chosen or [c.id for c in table.columns if not c.hidden]
        places = [known[name] for name in shown if name in known]
        columns = tuple((place, table.columns[place]) for place in places)
        drawn = frozenset(table.spec.names) - frozenset(table.spec.sortable)
        rows = table.arranged if table.whole is None else table.in_order(table.whole())
        return cls(rows, columns, drawn)


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Replace a file by `parts`, all or nothing. Raises ProbedeckError."""
    try:
        write_atomic(path, parts)
    except OSError as error:
        raise ProbedeckError(f"{path} is not written: {error.strerror}") from None


def write_view(path: Path, view: TableContent, progress: Progress = lambda share: None) -> int:
    """Write a table, in the format of the file's suffix; returns how many rows.

    Raises ProbedeckError; it can be cancelled (bpf.errors), and leaves what was there then.
    """
    suffix = suffix_of(path)
    with current().on_cancel():
        parts = _texts(view) if suffix == TEXT else _values(view, suffix)
        write(path, _watched(parts, view.source.rows, progress))
    return view.source.rows


def _watched(parts: Iterable[bytes], rows: int, progress: Progress) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        current().check()
        progress(min(1.0, number * _PART / max(1, rows)))
        yield part


def _values(view: TableContent, suffix: str) -> Iterator[bytes]:
    from app.outputs.formats import FORMATS

    written, rows = FORMATS[suffix], view.source.rows
    size = _PART if written.appends else max(1, rows)
    chosen = [(place, c) for place, c in view.columns if c.id not in view.drawn]
    fields = tuple(column.field for _, column in chosen)
    columns = []
    for place, _ in chosen:
        current().check()
        # JSON has no word for values that are not finite.
        values = view.source.values(place)
        columns.append(
            [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
        )

    def encoded(at: int) -> bytes:
        part = zip(*(column[at : at + size] for column in columns), strict=True)
        if written.nested:
            return written.encode(dict(zip(fields, row, strict=True)) for row in part)
        return written.encode(part)

    yield written.begin("", fields)
    for at in range(0, rows, size):
        yield (written.separator if at else b"") + encoded(at)
    yield written.end


def _texts(view: TableContent) -> Iterator[bytes]:
    lines = [[printable(column.title, REPLACED) for _, column in view.columns]]
    for index in range(view.source.rows):
        current().check()
        lines.append([cell_text(view.source, index, place) for place, _ in view.columns])
    widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
    looks = [(width, c.align) for width, (_, c) in zip(widths, view.columns, strict=True)]
    for at in range(0, len(lines), _PART):
        yield "".join(
            "  ".join(cell(t, *look) for t, look in zip(line, looks, strict=True)).rstrip() + "\n"
            for line in lines[at : at + _PART]
        ).encode()


_FAMILY = "font-family: Fira Code, monospace"
_INSTALLED = "font-family: DejaVu Sans Mono, Menlo, Consolas, monospace"
"""A picture loads no font from the network."""
_WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def svg(app: App[Any]) -> str:
    """Return the screen in front."""
    text = app.export_screenshot(title=f"probedeck: {app.current_mode}")
    text = _WEB_FONT.sub("", text).replace(_FAMILY, _INSTALLED)
    # Viewers without a browser's style sheets would drop leading blanks.
    return text.replace("<text class", '<text xml:space="preserve" class')


def encoded(picture: str, suffix: str) -> bytes:
    """Return an SVG in the format of a suffix, `svg` or `png`. Raises ProbedeckError."""
    if suffix == "svg":
        return picture.encode()
    try:
        import resvg_py
    except ImportError:
        hint = ".venv/bin/pip install 'resvg-py>=0.5,<0.6', or write a .svg"
        raise ProbedeckError("a .png needs the package resvg-py", hint=hint) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=picture))
