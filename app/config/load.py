"""Settings from `config.toml` and from PROBEDECK_* variables, which win.

The command line wins over both; see `app.cli.decorator`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.config import paths
from app.config.model import Settings
from app.config.toml_lines import TomlDocument
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.config.options import PREFIX, Setting, Value
from probes.config.trusted_file import open_trusted

Typed = Mapping[str, Mapping[str, Setting]]
"""Settings by section and name."""
NONE = "none"
"""The name of the file that stands for no file."""
_OTHERS = (
    "PROBEDECK_CONFIG", "PROBEDECK_DIFF", "PROBEDECK_COMPILE_LIMIT", "PROBEDECK_LAB_LIMIT",
)  # fmt: skip
"""Variables that are no settings: the file, whether the console sends only changes, and the limits
of slow machines."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings from the environment and the file."""

    settings: Settings = field(default_factory=Settings)
    """All sections but `ui`, which is among `values`."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """Values of options, by name."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """`FILE:LINE` or the variable's name, for each of `values`."""
    document: TomlDocument | None = None
    """The file that was read, with its lines."""
    file: str = ""
    """The path of the file; empty for NONE."""
    state: str = "as asked for"
    """State of the file, in a word or two."""
    problems: tuple[UsageError, ...] = ()

    def check(self) -> None:
        """Raise the first problem with the number of further ones."""
        if self.problems:
            first, *more = self.problems
            rest = f" (and {len(more)} more: probedeck config validate)" if more else ""
            raise UsageError(f"{first}{rest}")


def load(given: str, typed: Typed, environment: Mapping[str, str] = os.environ) -> LoadedSettings:
    """Read the settings; `given` is the file of --config, `typed` the sections whose keys are
    settings."""
    named = given or environment.get("PROBEDECK_CONFIG", "")
    warnings: list[str] = []
    problems: list[UsageError] = []
    settings, values, origins = Settings(), dict[str, Value](), dict[str, str]()
    file = "" if named == NONE else named or str(paths.config_file())
    document = None
    state = "as asked for"
    try:
        if file:
            document = _document(file, named)
            state = "used" if document else "not there"
    except UsageError as error:
        problems.append(error)
        state = "wrong"
    except ProbedeckError as error:
        warnings.append(f"{error}: it is left out")
        state = "left out"
    if document:
        settings = _read(document, typed, values, origins, problems.append)
    known = {name: each for of in typed.values() for name, each in of.items()}
    for name, setting in known.items():
        if text := environment.get(setting.variable, ""):
            try:
                values[name], origins[name] = setting.of_text(text), setting.variable
            except UsageError as error:
                problems.append(error.of(setting.variable))
    warnings += _unknown(environment, known)
    settings = replace(settings, warnings=tuple(warnings))
    return LoadedSettings(settings, values, origins, document, file, state, tuple(problems))


def in_order(problems: Iterable[ProbedeckError]) -> list[ProbedeckError]:
    """Return the problems in the order of their lines, those of the environment last."""

    def line(problem: ProbedeckError) -> float:
        found = re.match(r"[^:]+:(\d+):", problem.message)
        return int(found[1]) if found else math.inf

    return sorted(problems, key=line)


def _document(file: str, named: str) -> TomlDocument | None:
    """Return the file; None if the user's own file does not exist.

    Raises UsageError for a mistake, and if a named file does not exist. Raises ProbedeckError if
    the user's own file is not readable or not trusted.
    """
    path = Path(file)
    if not named:
        text = paths.read_private(path)
        return None if text is None else TomlDocument.of(path, text)
    try:
        with open(path, "rb", opener=open_trusted) as opened:
            return TomlDocument.of(path, paths.text_of(opened, path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _read(
    document: TomlDocument, typed: Typed, values: dict[str, Value],
    origins: dict[str, str], complain: Callable[[UsageError], None],
) -> Settings:  # fmt: skip
    from app.config.sections import OUTPUTS, READERS, check, read_outputs, read_section

    found: dict[str, Any] = {}
    for section, table in document.data.items():
        if section == OUTPUTS:
            found[section] = read_outputs(document, table, complain)
        elif section not in typed and section not in READERS:
            hint = _home_of(section, typed, (*typed, *READERS, OUTPUTS))
            error = UsageError("unknown section", hint=hint)
            complain(document.wrong((section,), error))
        elif not isinstance(table, dict):
            complain(document.wrong((section,), UsageError("is no section")))
        elif section in READERS:
            found[section] = read_section(section, document, table, complain)
        else:
            for name, value in table.items():
                try:
                    values[name] = _value(document, typed, section, name, value)
                    origins[name] = document.place((section, name))
                except UsageError as error:
                    complain(document.wrong((section, name), error))
    settings = Settings(origin=str(document.path), **found)
    check(document, settings, complain)
    return settings


def _home_of(name: str, typed: Typed, others: Iterable[str]) -> str:
    """Return a hint for an unknown name: the section of such a key, or the nearest of `others`."""
    for section, settings in typed.items():
        if name in settings:
            return f"it belongs into [{section}]"
    return did_you_mean(name, others)


def _value(document: TomlDocument, typed: Typed, section: str, name: str, given: object) -> Value:
    settings = typed[section]
    if name not in settings:
        raise UsageError("unknown key", hint=_home_of(name, typed, settings))
    setting = settings[name]
    value = setting.of_toml(given)
    kind, *words = setting.metavar.split("|")
    if kind not in ("FILE", "PATH") or value in words:
        return value
    if isinstance(value, list):
        return [paths.beside(document.path, each) for each in value]
    return paths.beside(document.path, str(value)) if value else value


def _unknown(environment: Mapping[str, str], known: Mapping[str, Setting]) -> Iterator[str]:
    """Yield warnings of unknown variables: Kubernetes sets some for a service probedeck."""
    names = [setting.variable.removeprefix(PREFIX) for setting in known.values()]
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in names and variable not in _OTHERS:
            import difflib  # as in bpf.errors

            near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
            yield f"{variable}: no setting has this name{hint}"
