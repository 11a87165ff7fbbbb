"""Formats of written tables.

`FORMATS` is the only list of formats: options, help texts, file names, the REST API and the
`format` key of configurations derive from it. The module loads no numpy, so help is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.outputs import encoders
from app.outputs.encoders import Groups
from probes.config.formats import FORMAT_NAMES


@dataclass(frozen=True, slots=True)
class Format:
    """How tables become bytes.

    A file of rows is whole after each append: the new rows and `end` overwrite the old `end`.
    """

    name: str
    """The word for options and requests, and the suffix of files."""
    media_type: str
    nested: bool
    """Rows are mappings, which may hold mappings; else rows are flat sequences."""
    encode: Callable[[Iterable[Any]], bytes]
    """Encode rows, joined by `separator`."""
    begin: Callable[[str, Sequence[str]], bytes] = lambda schema, header: b""
    """Return the start of a table from its schema and header."""
    separator: bytes = b""
    end: bytes = b""
    row_end: bytes = b""
    """The end of every row, which occurs nowhere else.

    Empty if rows cannot follow rows: `encode` then gets all rows of a table at once, and a run,
    which appends, does not offer the format.
    """
    mark: Callable[[str], bytes] = lambda schema: b""
    """Return bytes that the first row of a table of this schema contains."""
    document: Callable[[Mapping[str, Any], Groups], bytes] | None = None
    """Encode a whole export: its window and its tables. None: one table after the other."""
    in_console: bool = True
    """The console exports its tables in this format."""

    @property
    def appends(self) -> bool:
        return bool(self.row_end)

    def table(self, schema: str, header: Sequence[str], rows: Iterable[Any]) -> bytes:
        return self.begin(schema, header) + self.encode(rows) + self.end


FORMATS: dict[str, Format] = {}


def register(added: Format) -> None:
    """Add a format to the list; modules that derive from the list are imported afterwards."""
    FORMATS[added.name] = added
    FORMAT_NAMES.append(added.name)


for _format in (
    Format(
        "csv",
        "text/csv",
        nested=False,
        encode=encoders.csv_rows,
        begin=lambda schema, header: encoders.csv_rows([header]),
        row_end=b"\n",
    ),
    Format(
        "jsonl",
        "application/x-ndjson",
        nested=True,
        encode=encoders.json_lines,
        row_end=b"}\n",
        mark=encoders.json_mark,
    ),
    Format(
        "json",
        "application/json",
        nested=True,
        encode=encoders.json_items,
        begin=lambda schema, header: b"[\n",
        separator=b",",
        end=b"]\n",
        row_end=b"}\n",
        mark=encoders.json_mark,
        document=encoders.json_document,
    ),
    Format(
        "xml",
        "application/xml",
        nested=True,
        encode=encoders.xml_rows,
        begin=encoders.xml_begin,
        end=b"</table>\n",
        row_end=b"</row>\n",
        document=encoders.xml_document,
        in_console=False,
    ),
):
    register(_format)
