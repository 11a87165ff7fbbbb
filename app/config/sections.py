"""The sections of `config.toml` whose keys are the operator's own: keys, macros, columns, filters.

Each is read as far as it is right; what is not is handed to `complain`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.config.model import Binding, Settings
from app.config.toml_lines import TomlDocument
from app.console.screens import TABLES
from app.files import expand
from bpf.errors import UsageError, did_you_mean

Complain = Callable[[UsageError], None]


def keys(
    document: TomlDocument, table: Mapping[str, Any], complain: Complain
) -> Mapping[str, Mapping[str, Binding]]:
    """What keys do, by screen and key; what these are is looked at by `check_keys`."""
    found: dict[str, dict[str, Binding]] = {}
    for name, value in table.items():
        screen, bound = (name, value) if isinstance(value, dict) else ("", {name: value})
        for key, does in bound.items():
            at = ("keys", screen, key) if screen else ("keys", key)
            _bind(document, at, does, found.setdefault(screen, {}), complain)
    return found


def check_keys(document: TomlDocument, settings: Settings, complain: Complain) -> None:
    """Whether there are such keys, commands, screens and tapes, and none is in another's way."""
    from app.config.keymap import Keymap

    Keymap(settings, lambda at, error: complain(document.wrong(at, error)))


def _bind(
    document: TomlDocument, at: tuple[str, ...], value: object, into: dict[str, Binding],
    complain: Complain,
) -> None:  # fmt: skip
    if isinstance(value, str):
        into[at[-1]] = value
    elif isinstance(value, list) and all(isinstance(each, str) for each in value):
        into[at[-1]] = tuple(value)
    else:
        hint = "it is what the key does: a command, or a list of commands"
        complain(document.wrong(at, UsageError("is neither a text nor a list of texts", hint=hint)))


def macros(
    document: TomlDocument, table: Mapping[str, Any], complain: Complain
) -> Mapping[str, str]:
    """Files of tapes, by name."""
    found = {}
    for name, text in _texts(document, "macros", table, complain).items():
        try:
            found[name] = beside(document.path, text)
            tape_beside(document.path, text)
        except UsageError as error:
            complain(document.wrong(("macros", name), error))
    return found


def tape_beside(origin: Path, name: str) -> str:
    """The path of a tape that `origin` names. Raises UsageError where there is no such file."""
    path = beside(origin, name)
    if not os.path.isfile(path):
        raise UsageError("there is no such file", hint=f"looked for {path}")
    return path


def columns(
    document: TomlDocument, table: Mapping[str, Any], complain: Complain
) -> Mapping[str, tuple[str, ...]]:
    """Columns, by table."""
    found = {}
    for name, value in table.items():
        try:
            found[name] = _columns(name, value)
        except UsageError as error:
            complain(document.wrong(("columns", name), error))
    return found


def _columns(name: str, value: object) -> tuple[str, ...]:
    if name not in TABLES:
        raise UsageError("there is no such table", hint=did_you_mean(name, TABLES))
    if not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise UsageError("is no list of columns' names")
    TABLES[name].check(tuple(value))
    return tuple(value)


def filters(
    document: TomlDocument, table: Mapping[str, Any], complain: Complain
) -> Mapping[str, str]:
    """Filters, by name; of what rows they are is not looked at."""
    # numpy, which who has set none does without.
    from probes.filter import check

    found = {}
    texts = _texts(document, "filters", table, complain)
    for name, text in texts.items():
        try:
            check(text, texts)
            found[name] = text
        except UsageError as error:
            complain(document.wrong(("filters", name), error))
    return found


def _texts(
    document: TomlDocument, section: str, table: Mapping[str, Any], complain: Complain
) -> Mapping[str, str]:
    found = {}
    for name, value in table.items():
        if isinstance(value, str):
            found[name] = value
        else:
            complain(document.wrong((section, name), UsageError("is not a text")))
    return found


def beside(origin: Path, name: str) -> str:
    """Return the path of a file that `origin` names: `~` is the user's home, and a relative path
    begins beside `origin`. Raises UsageError for `~NAME` of no account."""
    return os.path.normpath(origin.absolute().parent / expand(name))


READERS: Mapping[str, Callable[[TomlDocument, Mapping[str, Any], Complain], Any]] = {
    "keys": keys, "macros": macros, "columns": columns, "filters": filters,
}  # fmt: skip
