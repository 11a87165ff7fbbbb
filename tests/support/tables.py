"""Reading written tables back, by the standard library's parsers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


def rows_in(path: Path) -> list[dict[str, str]]:
    """Rows of a table of flat rows, in any format, as text; the document must be whole."""
    return [{name: _text(value) for name, value in row.items()} for row in records_in(path)]


def records_in(path: Path) -> list[dict[str, Any]]:
    """Rows of a table: flat text from CSV, values from JSON, nested elements from XML."""
    name = path.suffix[1:]
    with path.open(newline="") as file:
        if name == "csv":
            table = list(csv.DictReader(file))
            assert all(None not in row and None not in row.values() for row in table)
            return table
        if name == "jsonl":
            text = file.read()
            assert not text or text.endswith("\n")
            return [json.loads(line) for line in text.split("\n")[:-1]]
        if name == "json":
            found: list[dict[str, Any]] = json.load(file)
            return found
        root = ElementTree.parse(file).getroot()
        assert root.tag == "table"
        return [{child.tag: element_value(child) for child in row} for row in root]


def element_value(element: ElementTree.Element) -> Any:
    """Text, or the values of the child elements: a list of `item`s, or a dict."""
    if len(element) == 0:
        return element.text or ""
    if all(child.tag == "item" for child in element):
        return [element_value(child) for child in element]
    return {child.get("name", child.tag): element_value(child) for child in element}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
