"""Formats of written tables.

`FORMATS` is the only list of formats: options, help texts, file names, the REST API and the
`format` key of configurations derive from it. The module loads no numpy, so help is fast.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from probes.config.formats import FORMAT_NAMES

Record = Sequence[Any] | Mapping[str, Any]

_json = json.JSONEncoder(check_circular=False).encode
_XML_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FORMULA = frozenset("=+-@\t\r'")
"""Texts that begin so get an apostrophe in front, which readers can take away again: spreadsheets
would run a formula. OWASP, CSV injection."""
_XML_START = '<?xml version="1.0" encoding="UTF-8"?>\n'


class ExportedTable(NamedTuple):
    """The rows of a metric, or of a table of a built-in probe, which has no attributes."""

    attributes: Mapping[str, str]
    """Name, kind and help of the metric."""
    rows: Sequence[Record]


class ExportedGroup(NamedTuple):
    """One direction of a probe, or one table of a built-in probe."""

    interface: str
    losses: Mapping[str, Mapping[str, int]]
    """Packets and bytes by reason."""
    tables: Mapping[str, ExportedTable]
    """By metric; the one table of a built-in probe has the empty name."""


Groups = Mapping[str, ExportedGroup]


def csv_rows(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [
            (f"'{value}" if value[:1] in _FORMULA else value)
            if isinstance(value, str)
            else _lower(value)
            if isinstance(value, bool)
            else value
            for value in row
        ]
        for row in rows
    )
    return _utf8(text.getvalue())


def _lower(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{_json(row)}\n" for row in rows).encode()


def json_items(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return ",".join(f"{_json(row)}\n" for row in rows).encode()


def xml_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return _utf8("".join(f"{_xml('row', row)}\n" for row in rows))


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _xml(name: str, value: Any) -> str:
    """Return an element. A key that is no XML name becomes `<field name="...">`, an item of a list
    `<item>`, and a control character Python's escape `\\x07`."""
    if _XML_NAME.fullmatch(name):
        start, end = f"<{name}>", f"</{name}>"
    else:
        start, end = f"<field name={_attribute(name)}>", "</field>"
    if isinstance(value, Mapping):
        inside = "".join(_xml(key, each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        inside = "".join(_xml("item", each) for each in value)
    elif value is None:
        inside = ""
    else:
        inside = escape(_xml_text(str(_lower(value))), quote=False).replace("\r", "&#13;")
    return f"{start}{inside}{end}"


def _attribute(value: object) -> str:
    text = escape(_xml_text(str(value)))
    return '"' + text.translate({ord(c): f"&#{ord(c)};" for c in "\t\n\r"}) + '"'


def _xml_text(text: str) -> str:
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def json_mark(schema: str) -> bytes:
    return _json({"schema": schema})[1:-1].encode()


def xml_begin(schema: str, header: Sequence[str]) -> bytes:
    return _utf8(f"{_XML_START}<table schema={_attribute(schema)}>\n")


def json_document(window: Mapping[str, Any], groups: Groups) -> bytes:
    """An object; under each group's name the rows of each metric, or the rows of its one table."""
    if not window:
        return b"{}\n"
    whole = {
        **window,
        "interfaces": {name: group.interface for name, group in groups.items()},
        "losses": {name: group.losses for name, group in groups.items() if group.losses},
    }
    for name, group in groups.items():
        rows = {metric: table.rows for metric, table in group.tables.items()}
        whole[name] = rows.get("", rows)
    return f"{_json(whole)}\n".encode()


def xml_document(window: Mapping[str, Any], groups: Groups) -> bytes:
    """An element `export`; in it one element a group, with its losses and its metrics or rows."""
    parts = [f"{_XML_START}<export{_attributes(window)}>\n"]
    for name, group in groups.items():
        parts.append(f"<{name} interface={_attribute(group.interface)}>\n")
        for reason, loss in group.losses.items():
            parts.append(f"<loss reason={_attribute(reason)}{_attributes(loss)}/>\n")
        for metric, table in group.tables.items():
            rows = "".join(f"{_xml('row', row)}\n" for row in table.rows)
            begin, end = f"<metric{_attributes(table.attributes)}>\n", "</metric>\n"
            parts.append(f"{begin}{rows}{end}" if metric else rows)
        parts.append(f"</{name}>\n")
    parts.append("</export>\n")
    return _utf8("".join(parts))


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f" {name}={_attribute(value)}" for name, value in values.items())


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
        encode=csv_rows,
        begin=lambda schema, header: csv_rows([header]),
        row_end=b"\n",
    ),
    Format(
        "jsonl",
        "application/x-ndjson",
        nested=True,
        encode=json_lines,
        row_end=b"}\n",
        mark=json_mark,
    ),
    Format(
        "json",
        "application/json",
        nested=True,
        encode=json_items,
        begin=lambda schema, header: b"[\n",
        separator=b",",
        end=b"]\n",
        row_end=b"}\n",
        mark=json_mark,
        document=json_document,
    ),
    Format(
        "xml",
        "application/xml",
        nested=True,
        encode=xml_rows,
        begin=xml_begin,
        end=b"</table>\n",
        row_end=b"</row>\n",
        document=xml_document,
        in_console=False,
    ),
):
    register(_format)
