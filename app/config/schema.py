"""Settings as the dataclasses of the options have them: names, types, choices, defaults and help.

An option of the command line, a key of `config.toml` and a variable PROBEDECK_* are one field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bpf.errors import UsageError, did_you_mean

PREFIX = "PROBEDECK_"
_TRUTH = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip
_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
Value = bool | int | float | str | list[Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a dataclass whose fields are typer's options."""

    name: str
    kind: type[bool | int | float | str]
    """Of a value; of each of them, where there may be many."""
    many: bool
    choices: tuple[str, ...]
    """Empty where every value of the type is one."""
    default: Value | None
    """None where there is none: what happens then is told by `usual`."""
    help: str
    metavar: str
    usual: str
    """What the default means, where that is more than its value."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def words(self) -> str:
        """What a value can be."""
        named = self.metavar.split("|") if "|" in self.metavar else ()
        one = " | ".join(self.choices or named) or _CALLED[self.kind]
        return f"a list, each {one}" if self.many else one

    def of_toml(self, value: object) -> Value:
        """The value that a file gives. Raises UsageError, which does not repeat it."""
        if not self.many:
            return self._one(value)
        if not isinstance(value, list):
            raise UsageError("is no list", hint=f"it is {self.words}")
        return [self._one(each) for each in value]

    def of_text(self, text: str) -> Value:
        """The value that a variable gives; where there may be many, each line is one."""
        if self.many:
            return [self._read(line) for line in text.splitlines() if line.strip()]
        return self._read(text)

    def _read(self, text: str) -> Value:
        try:
            return self._one(_TRUTH[text.lower()] if self.kind is bool else self.kind(text))
        except (KeyError, ValueError):
            raise UsageError(f"is not {_CALLED[self.kind]}") from None

    def _one(self, value: object) -> Value:
        # TOML, as Python, has 1 for a number that may have a fraction; but True is no number.
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise UsageError(f"is not {_CALLED[self.kind]}")
        if self.choices and value not in self.choices:
            hint = did_you_mean(str(value), self.choices)
            raise UsageError(f"is not one of {', '.join(self.choices)}", hint=_near(hint))
        return value


def _near(hint: str) -> str:
    """Only the nearest: what there is has been said."""
    return hint if hint.startswith("did") else ""


@cache
def hints_of(options: type) -> Mapping[str, Any]:
    """Types of the fields, with what typer is told about them."""
    return MappingProxyType(get_type_hints(options, include_extras=True))


@cache
def settings_of(options: type) -> Mapping[str, Setting]:
    """The fields of a dataclass of options, by name."""
    hints = hints_of(options)
    fields = dataclasses.fields(options)
    return MappingProxyType({each.name: _setting(each, hints[each.name]) for each in fields})


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    hint, option = get_args(hint)
    many = get_origin(hint) is list
    if many:
        (hint,) = get_args(hint)
    elif NoneType in (of := get_args(hint)):
        (hint,) = (each for each in of if each is not NoneType)
    choices: tuple[str, ...] = ()
    if get_origin(hint) is Literal:
        choices, hint = get_args(hint), str
    elif issubclass(hint, StrEnum):
        choices, hint = tuple(each.value for each in hint), str
    made = field.default_factory
    default: Any = field.default if made is dataclasses.MISSING else made()
    usual = option.show_default if isinstance(option.show_default, str) else ""
    return Setting(
        field.name, hint, many, choices, default, option.help or "", option.metavar or "", usual
    )
