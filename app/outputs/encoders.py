"""How rows are written: one encoder a format, for every table.

A file of any format can be added to, and is whole after each addition: its rows are lines, and what
ends a document (`]`, `</table>`) is written over.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Record = Sequence[Any] | Mapping[str, Any]
"""A row: flat, or nested."""

to_json = json.JSONEncoder(check_circular=False).encode
_XML_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
XML_START = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass(frozen=True, slots=True)
class Encoder:
    """A format. Bytes are UTF-8; what is no text (an interface may have any name) is escaped."""

    nested: bool
    """Whether rows are mappings that may hold others; else they are flat sequences."""
    begin: Callable[[str, Sequence[str]], bytes]
    """What a table begins with, from its schema and header."""
    encode: Callable[[Iterable[Any]], bytes]
    """Rows, joined by `separator`."""
    row_end: bytes
    """What every row ends with, and nothing else does."""
    mark: Callable[[str], bytes]
    """What the first row of a table of this schema contains."""
    separator: bytes = b""
    end: bytes = b""
    """What a table ends with."""


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_lower(value) for value in row] if True in map(_is_bool, row) else row for row in rows
    )
    return _utf8(text.getvalue())


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _lower(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{to_json(row)}\n" for row in rows).encode()


def _json_items(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return ",".join(f"{to_json(row)}\n" for row in rows).encode()


def _xml_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return _utf8("".join(f"{to_xml('row', row)}\n" for row in rows))


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def to_xml(name: str, value: Any) -> str:
    """An element. What can't be one's name becomes `<field name="...">`; items of a list `<item>`;
    control characters are written as in Python, `\\x07`."""
    if _XML_NAME.fullmatch(name):
        start, end = f"<{name}>", f"</{name}>"
    else:
        start, end = f"<field name={xml_attribute(name)}>", "</field>"
    if isinstance(value, Mapping):
        inside = "".join(to_xml(key, each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        inside = "".join(to_xml("item", each) for each in value)
    elif value is None:
        inside = ""
    else:
        inside = escape(_xml_text(str(_lower(value))), quote=False).replace("\r", "&#13;")
    return f"{start}{inside}{end}"


def xml_attribute(value: object) -> str:
    """In quotes."""
    text = escape(_xml_text(str(value)))
    return '"' + text.translate({ord(c): f"&#{ord(c)};" for c in "\t\n\r"}) + '"'


def _xml_text(text: str) -> str:
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


FORMATS = {
    "csv": Encoder(
        nested=False,
        begin=lambda schema, header: _csv([header]),
        encode=_csv,
        row_end=b"\n",
        mark=lambda schema: b"",  # the header is enough
    ),
    "jsonl": Encoder(
        nested=True,
        begin=lambda schema, header: b"",
        encode=_json_lines,
        row_end=b"}\n",
        mark=lambda schema: to_json({"schema": schema})[1:-1].encode(),
    ),
    "json": Encoder(
        nested=True,
        begin=lambda schema, header: b"[\n",
        encode=_json_items,
        row_end=b"}\n",
        mark=lambda schema: to_json({"schema": schema})[1:-1].encode(),
        separator=b",",
        end=b"]\n",
    ),
    "xml": Encoder(
        nested=True,
        begin=lambda schema, header: _utf8(f"{XML_START}<table schema={xml_attribute(schema)}>\n"),
        encode=_xml_rows,
        row_end=b"</row>\n",
        mark=lambda schema: b"",
        end=b"</table>\n",
    ),
}
"""By name, which is the files' ending."""
