"""Reads text, JSON and TOML files. Each mistake in a file is a UsageError of one line."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import NoReturn

from bpf.errors import UsageError, did_you_mean

_TOML_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def read_text(path: Path, limit: int, where: str) -> str:
    """Return a text of at most `limit` bytes. Raises UsageError, which begins with `where`."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{where}: it is no regular file")
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        folder = path.parent
        names = [file.name for file in folder.glob(f"*{path.suffix}")] if folder.is_dir() else []
        raise UsageError(
            f"{where}: {error.strerror}", hint=did_you_mean(path.name, sorted(names))
        ) from None
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    if why := why_no_text(data, limit):
        raise UsageError(f"{where}: {why}")
    return data.decode()


def _open(path: str, flags: int) -> int:
    """Open a file; the open of a pipe without a writer does not block."""
    return os.open(path, flags | os.O_NONBLOCK)


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


def read_data(path: Path, limit: int, what: str) -> object:
    """Return the value in a JSON or TOML file, by the end of its name.

    `what` is the expected content, such as `a configuration`. Raises UsageError, for a mistake in
    the file with line and column.
    """
    parsers = {".json": _json, ".toml": _toml}
    if path.suffix not in parsers:
        raise UsageError(f"{path}: {what} ends in .toml or .json")
    text = read_text(path, limit, str(path))
    try:
        return parsers[path.suffix](text, str(path))
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
        raise UsageError(f"{where}:{error.lineno}:{error.colno}: {error.msg}") from None


def _toml(text: str, where: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _TOML_PLACE.search(str(error))
        message = str(error)[: found.start()] if found else str(error)
        end = f"{text.count(chr(10)) + 1}:{len(text) - text.rfind(chr(10))}"
        place = f"{found['line']}:{found['column']}" if found and found["line"] else end
        raise UsageError(f"{where}:{place}: {message}") from None
