"""Reads text, JSON and TOML files. Mistakes in a file have its line and column."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from bpf.errors import FileTextError, UsageError, did_you_mean
from probes.config.config_errors import ConfigFault
from probes.config.positions import Keys, Position, positions
from probes.config.trusted_file import open_trusted

_TOML_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def read_text(path: Path, limit: int, where: str) -> str:
    """Return a text of at most `limit` bytes. Raises UsageError, which begins with `where`."""
    data = read_bytes(path, limit, where)
    if why := why_no_text(data, limit):
        raise UsageError(f"{where}: {why}")
    return data.decode()


def read_bytes(path: Path, limit: int, where: str) -> bytes:
    """Return a file of at most `limit` bytes. Raises UsageError, which begins with `where`."""
    try:
        with open(path, "rb", opener=open_trusted) as file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        folder = path.parent
        names = [file.name for file in folder.glob(f"*{path.suffix}")] if folder.is_dir() else []
        raise UsageError(
            f"{where}: {error.strerror}", hint=did_you_mean(path.name, sorted(names))
        ) from None
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    if len(data) > limit:
        raise UsageError(f"{where}: it has more than {limit >> 20} MiB")
    return data


def why_no_text(data: bytes, limit: int) -> str:
    """Return why `data` is not a text of `limit` bytes at most; empty if it is."""
    if len(data) > limit:
        return f"it has more than {limit >> 20} MiB"
    if b"\0" in data:
        return "it is binary, no text"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return f"it is no UTF-8 text (line {line})"
    return ""


@dataclass(frozen=True)
class Document:
    """A JSON or TOML file."""

    path: Path
    text: str
    data: object

    @cached_property
    def _places(self) -> Mapping[Keys, Position]:
        return positions(self.text, toml=self.path.suffix == ".toml")

    def error(self, fault: ConfigFault) -> FileTextError:
        """Return a fault as an error with its line and column."""
        places = self._places
        known = next(
            (end for end in range(len(fault.keys), -1, -1) if fault.keys[:end] in places), None
        )
        offset = 0
        if known is not None:
            place = places[fault.keys[:known]]
            whole = known == len(fault.keys)
            offset = place.value if whole and not fault.at_key else place.key
            if whole and fault.column and place.characters:
                offset = place.characters[min(fault.column, len(place.characters)) - 1]
        return FileTextError(str(self.path), fault.said, self.text, offset, hint=fault.hint)


def read_document(path: Path, limit: int, what: str) -> Document:
    """Return a JSON or TOML file, by the end of its name.

    `what` is the expected content, such as `a configuration`. Raises UsageError, for a mistake in
    the file with line and column.
    """
    parsers = {".json": _json, ".toml": _toml}
    if path.suffix not in parsers:
        raise UsageError(f"{path}: {what} ends in .toml or .json")
    text = read_text(path, limit, str(path))
    try:
        return Document(path, text, parsers[path.suffix](text, str(path)))
    except ValueError:
        raise UsageError(f"{path}: a number has too many digits") from None
    except RecursionError:
        raise UsageError(f"{path}: it is nested too deeply") from None


def _json(text: str, where: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                raise UsageError(f"{where}: key {key!a} is given twice")
            table[key] = value
        return table

    def no_number(name: str) -> NoReturn:
        raise UsageError(f"{where}: {name} is no number in JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise FileTextError(where, error.msg, text, error.pos) from None


def _toml(text: str, where: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_PLACE.search(str(error))
        message = str(error)[: found.start()] if found else str(error)
        offset = len(text)
        if found and found["line"]:
            before = text.split("\n")[: int(found["line"]) - 1]
            offset = sum(len(line) + 1 for line in before) + int(found["column"]) - 1
        raise FileTextError(where, message, text, offset) from None
