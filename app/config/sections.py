"""The sections of `config.toml` whose keys the user chooses: keys, macros, columns, filters.

A mistake in an entry goes to `complain`; the other entries of the section stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.config.model import Binding, Settings
from app.config.paths import beside, check_tape
from app.config.toml_lines import TomlDocument
from app.console.screens import TABLES
from app.exporters.kinds import from_table, parse
from app.exporters.options import OptionError, text_of
from bpf.errors import UsageError, did_you_mean
from probes.reports import OutputConfig

OUTPUTS = "outputs"
"""The section of outputs, a list of tables."""
Complain = Callable[[UsageError], None]
Table = Mapping[str, Any]


def read_section(name: str, document: TomlDocument, table: Table, complain: Complain) -> Table:
    """Return the entries of the section `name`, one of READERS."""
    found: dict[str, Any] = {}
    if name == "keys":
        for key, value in table.items():
            screen, bound = (key, value) if isinstance(value, dict) else ("", {key: value})
            at = ("keys", screen) if screen else ("keys",)
            found.setdefault(screen, {}).update(_read(at, document, bound, complain))
        return found
    return _read((name,), document, table, complain)


def _read(
    at: tuple[str, ...], document: TomlDocument, table: Table, complain: Complain
) -> dict[str, Any]:
    found = {}
    for name, value in table.items():
        try:
            found[name] = READERS[at[0]](document, table, name, value)
        except UsageError as error:
            complain(document.wrong((*at, name), error))
    return found


def read_outputs(
    document: TomlDocument, given: object, complain: Complain
) -> tuple[OutputConfig, ...]:
    """Return the outputs of `[[outputs]]`: a URL, a name, and options as further keys."""
    if not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
        complain(document.wrong((OUTPUTS,), UsageError("is no list", hint="write [[outputs]]")))
        return ()
    found: dict[str, OutputConfig] = {}
    for number, table in enumerate(given):
        at = (OUTPUTS, number)
        texts: dict[str, str] = {}
        try:
            for key, value in table.items():
                texts[key] = _option(key, value)
            config = from_table(texts)
            name = parse(config).name or f"#{number + 1}"
            if name in found:
                raise OptionError("name", f"{name!r} is the name of another output")
            found[name] = config
        except OptionError as error:
            complain(document.wrong((*at, error.key), error))
    return tuple(found.values())


def _option(key: str, value: object) -> str:
    try:
        return text_of(value)
    except UsageError as error:
        raise OptionError(key, error.message) from None


def check(document: TomlDocument, settings: Settings, complain: Complain) -> None:
    """Check that tapes exist, and that `[keys]` names keys, commands, screens and tapes."""
    for name, path in settings.macros.items():
        try:
            check_tape(path)
        except UsageError as error:
            complain(document.wrong(("macros", name), error))
    if settings.keys:
        from app.config.keymap import Keymap

        Keymap(settings, lambda at, error: complain(document.wrong(at, error)))


def _key(document: TomlDocument, table: Table, name: str, value: object) -> Binding:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    hint = "a key has a command, or a list of commands"
    raise UsageError("is neither a text nor a list of texts", hint=hint)


def _macro(document: TomlDocument, table: Table, name: str, value: object) -> str:
    return beside(document.path, _text(value))


def _columns(document: TomlDocument, table: Table, name: str, value: object) -> tuple[str, ...]:
    if name not in TABLES:
        raise UsageError("there is no such table", hint=did_you_mean(name, TABLES))
    if not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise UsageError("is no list of columns' names")
    TABLES[name].check(tuple(value))
    return tuple(value)


def _filter(document: TomlDocument, table: Table, name: str, value: object) -> str:
    """Check a filter, whatever kind of rows it is for."""
    # Imported here: without saved filters, start-up needs no numpy.
    from probes.filter import check

    check(_text(value), {key: text for key, text in table.items() if isinstance(text, str)})
    return _text(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("is not a text")
    return value


READERS: Mapping[str, Callable[[TomlDocument, Table, str, object], Any]] = {
    "keys": _key, "macros": _macro, "columns": _columns, "filters": _filter,
}  # fmt: skip
"""The reader of an entry, by section."""
