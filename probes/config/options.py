"""Options: fields of a dataclass, declared with the thing that they configure.

A field that `setting` makes is an option of the command line with its help, a key of a TOML file, a
variable PROBEDECK_*, a line of `config init`, a value of `path.set` and a property of the API. The
first paint imports this module, so it imports little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from bpf.errors import TextError, UsageError, did_you_mean
from bpf.quantities import seconds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PREFIX = "PROBEDECK_"
_TRUTH = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip
_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
Value = bool | int | float | str | list[Any]
T = TypeVar("T", bound="DataclassInstance")


def setting(
    group: str, default: Any, about: str, metavar: str = "", *, usual: str = "",
    flags: tuple[str, ...] = (), read: Callable[[str], Value] | None = None, secret: bool = False,
) -> Any:  # fmt: skip
    """Return a field of a dataclass of options.

    `group` is the heading of its help text `about`, `usual` the default in words. `flags` replace
    the flags that are made of the field's name. `read` parses its text and raises UsageError; by
    default the field's type does. The value of a `secret` is shown nowhere.
    """
    metadata = {
        "help": about, "group": group, "metavar": metavar, "usual": usual, "flags": flags,
        "read": read, "secret": secret,
    }  # fmt: skip
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def part(options: type[Any]) -> Any:
    """Return a field whose value is an object of another class of options.

    Its settings stand among the other settings of this class, and have its prefix in their names.
    """
    return dataclasses.field(default_factory=options, metadata={"part": options})


def as_given(options: type[Any], name: str) -> Any:
    """Return a field for a setting of another class; the help names the default of that class.

    Without a value, a flag is False, and another setting None.
    """
    field = next(each for each in dataclasses.fields(options) if each.name == name)
    if isinstance(field.default, bool):
        return dataclasses.field(default=field.default, metadata=field.metadata)
    metadata = {**field.metadata, "usual": str(field.default)}
    return dataclasses.field(default=None, metadata=metadata)


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
    read: Callable[[str], Value] | None
    secret: bool
    prefix: str
    type: Any
    """The type in the dataclass."""

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
        if self.read:
            return self.read(text)
        try:
            if self.metavar == "SECONDS":
                return seconds(text)
            return self._one(_TRUTH[text.lower()] if self.kind is bool else self.kind(text))
        except (KeyError, ValueError):
            named = self.metavar.replace("|", " or ") if self.kind is bool else ""
            raise UsageError(f"is not {named or _CALLED[self.kind]}") from None

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


def settings_of(options: type[Any]) -> Mapping[str, Setting]:
    """Return the settings among the fields of a dataclass, by name.

    If the class has a `PREFIX`, its options and variables begin with it. If it has `FIRST`, the
    settings of these names come first.
    """
    # mypy takes a dataclass with fields for unhashable.
    return _settings_of(cast(Any, options))


@cache
def _settings_of(options: Any) -> Mapping[str, Setting]:
    hints, prefix = get_type_hints(options), getattr(options, "PREFIX", "")
    found: dict[str, Setting] = {}
    for each in dataclasses.fields(options):
        if inner := each.metadata.get("part"):
            below = {_prefixed(s.prefix, s.name): s for s in settings_of(inner).values()}
            found |= {n: dataclasses.replace(s, name=n, prefix="") for n, s in below.items()}
        elif each.metadata:
            found[each.name] = _setting(each, hints[each.name], prefix)
    return MappingProxyType({n: found[n] for n in (*getattr(options, "FIRST", ()), *found)})


def values_of(options: DataclassInstance) -> dict[str, Any]:
    """Return the values of the settings, by name."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        if inner := each.metadata.get("part"):
            prefix = getattr(inner, "PREFIX", "")
            found |= {_prefixed(prefix, name): of for name, of in values_of(value).items()}
        elif each.metadata:
            found[each.name] = value
    return found


def made(options: type[T], values: Mapping[str, Any]) -> T:
    """Return the options of a class from values by name. The class need not have every name."""
    known, given = settings_of(options), dict[str, Any]()
    for each in dataclasses.fields(options):
        if inner := each.metadata.get("part"):
            begin = _prefixed(getattr(inner, "PREFIX", ""), "")
            below = {n.removeprefix(begin): v for n, v in values.items() if n.startswith(begin)}
            given[each.name] = made(inner, below)
        elif each.name in known.keys() & values.keys():
            value = given[each.name] = values[each.name]
            if value is not None and issubclass(known[each.name].type, StrEnum):
                given[each.name] = known[each.name].type(value)
    return options(**given)


def changed(options: T, text: str) -> T:
    """Return options after changes such as `guarded=all rate=50`. Raises TextError."""
    kind = type(options)
    values: dict[str, Any] = {}
    known = settings_of(kind)
    at = 0
    for word in text.split():
        at = text.index(word, at)
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            hint = did_you_mean(name, known)
            raise TextError(f"{word!r} is no NAME=VALUE of an option", text, at + 1, hint=hint)
        try:
            values[name] = known[name].of_text(value)
        except UsageError as error:
            said = error.within(text, at + len(name) + 1)
            problem = f"{name} {said.problem}"
            raise TextError(problem, text, said.column, hint=said.hint) from None
        at += len(word)
    return dataclasses.replace(options, **values_of(made(kind, values_of(options) | values)))


def changes(options: type) -> Iterator[str]:
    """Yield changes for `changed`, as far as their values are known: `guarded=all`, `rate=`."""
    for name, each in settings_of(options).items():
        for value in each.choices or (("true", "false") if each.kind is bool else ("",)):
            yield f"{name}={value}"


def _setting(field: dataclasses.Field[Any], hint: Any, prefix: str) -> Setting:
    many = get_origin(hint) in (list, tuple)
    if many:
        hint = get_args(hint)[0]
    elif NoneType in (of := get_args(hint)):
        (hint,) = (each for each in of if each is not NoneType)
    choices, of_field = (), hint if isinstance(hint, type) else str
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
    return Setting(field.name, hint, many, choices, default, prefix=prefix, type=of_field, **given)


def _prefixed(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if prefix else name


def _flag(name: str, kind: type) -> str:
    """Return the option of a field; a flag also has its opposite, which overrides a file."""
    option = name.replace("_", "-")
    bare = option.removeprefix("no-")
    opposite = bare if bare != option else f"no-{option}"
    return f"--{option}/--{opposite}" if kind is bool else f"--{option}"
