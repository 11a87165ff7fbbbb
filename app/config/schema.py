"""Settings, read from the dataclasses of options: names, types, choices, defaults and help.

One field is an option of the command line, a key of `config.toml` and a variable PROBEDECK_*.
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
from bpf.quantities import seconds

PREFIX = "PROBEDECK_"
_TRUTH = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip
_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
Value = bool | int | float | str | list[Any]


def setting(
    group: str, default: Any, about: str, metavar: str = "", *, usual: str = "",
    flags: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """Return a field of a dataclass of options.

    `group` is the heading of its help text `about`, `usual` the default in words. `flags` replace
    the flags that are made of the field's name.
    """
    metadata = {"help": about, "group": group, "metavar": metavar, "usual": usual, "flags": flags}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a dataclass of options."""

    name: str
    kind: type[bool | int | float | str]
    """Type of a value, or of each value in a list."""
    many: bool
    choices: tuple[str, ...]
    """The possible values; empty if every value of the type is possible."""
    default: Value | None
    """None: no value; `usual` describes the effect."""
    help: str
    group: str
    metavar: str
    usual: str
    """The default in words, if that says more than its value."""
    flags: tuple[str, ...]
    prefix: str

    @property
    def variable(self) -> str:
        return PREFIX + _prefixed(self.prefix, self.name).upper()

    @property
    def bare(self) -> Setting:
        """The same setting with an option without the prefix."""
        if not self.prefix:
            return self
        return dataclasses.replace(self, flags=(_flag(self.name, self.kind),))

    @property
    def words(self) -> str:
        """Return the possible values in words."""
        named = self.metavar.split("|") if "|" in self.metavar else ()
        one = " | ".join(self.choices or named) or _CALLED[self.kind]
        return f"a list, each {one}" if self.many else one

    def of_toml(self, value: object) -> Value:
        """Return the value from a file. Raises UsageError, which does not contain the value."""
        if not self.many:
            return self._one(value)
        if not isinstance(value, list):
            raise UsageError("is no list", hint=f"it is {self.words}")
        return [self._one(each) for each in value]

    def of_text(self, text: str) -> Value:
        """Return the value from a variable; each line of it is one value of a list."""
        if self.many:
            return [self._read(line) for line in text.splitlines() if line.strip()]
        return self._read(text)

    def _read(self, text: str) -> Value:
        try:
            if self.metavar == "SECONDS":
                return seconds(text)
            return self._one(_TRUTH[text.lower()] if self.kind is bool else self.kind(text))
        except (KeyError, ValueError):
            raise UsageError(f"is not {_CALLED[self.kind]}") from None

    def _one(self, value: object) -> Value:
        # In TOML, 1 is also a number with a fraction; a Python bool is an int, but no number here.
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.metavar == "SECONDS" and isinstance(value, str):
            value = self._read(value)
        if type(value) is not self.kind:
            raise UsageError(f"is not {_CALLED[self.kind]}")
        if self.choices and value not in self.choices:
            hint = did_you_mean(str(value), self.choices)
            # The error lists the choices: the hint names the nearest one, or nothing.
            hint = hint if hint.startswith("did") else ""
            raise UsageError(f"is not one of {', '.join(self.choices)}", hint=hint)
        return value


@cache
def settings_of(options: type) -> Mapping[str, Setting]:
    """Return the fields of a dataclass of options, by name.

    If the class has a `PREFIX`, its options and variables begin with it.
    """
    hints = get_type_hints(options)
    fields = dataclasses.fields(options)
    prefix = getattr(options, "PREFIX", "")
    return MappingProxyType({e.name: _setting(e, hints[e.name], prefix) for e in fields})


def _setting(field: dataclasses.Field[Any], hint: Any, prefix: str) -> Setting:
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
    if choices and default is not None:
        default = str(default)
    given = dict(field.metadata)
    given["flags"] = given["flags"] or (_flag(_prefixed(prefix, field.name), hint),)
    given["metavar"] = given["metavar"] or "|".join(choices)
    return Setting(field.name, hint, many, choices, default, prefix=prefix, **given)


def _prefixed(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def _flag(name: str, kind: type) -> str:
    """Return the option of a field; a flag also has its opposite, which overrides a file."""
    option = name.replace("_", "-")
    bare = option.removeprefix("no-")
    opposite = bare if bare != option else f"no-{option}"
    return f"--{option}/--{opposite}" if kind is bool else f"--{option}"
