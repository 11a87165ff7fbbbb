"""Options of exporters: fields of a dataclass, read from an output's URL or its table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bpf.errors import UsageError, did_you_mean
from bpf.quantities import TIMES, byte_count, quantity

_TRUTH = {"on": True, "true": True, "yes": True, "1": True,
          "off": False, "false": False, "no": False, "0": False}  # fmt: skip
_READERS: Mapping[object, tuple[Callable[[str], Any], str]] = {
    str: (str, "a text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: _TRUTH[text.lower()], "on or off"),
    tuple: (lambda text: tuple(filter(None, map(str.strip, text.split(",")))), "names with commas"),
}
_T = TypeVar("_T")


class OptionError(UsageError):
    """A mistake in an option of an output."""

    def __init__(self, key: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key
        """The option; `url` or `name` for these."""


def option(
    default: Any, about: str, *, read: Callable[[str], Any] | None = None, secret: bool = False,
    file: bool = False,
) -> Any:  # fmt: skip
    """Return a field of a dataclass of options.

    `read` parses its text and raises UsageError; by default the field's type does. The values of
    a `secret` option are shown nowhere. `file`: its value is the name of a file of the host.
    """
    metadata = {"help": about, "read": read, "secret": secret, "file": file}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def duration(text: str) -> float:
    """Return the seconds of `250ms`, `15s`, `1h30m` or `15`. Raises TextError."""
    return quantity(text, TIMES)


@dataclass(frozen=True, slots=True)
class ExporterOptions:
    """Options of every output."""

    queue: int = option(
        32 << 20, "Memory for records that wait; the oldest go first.", read=byte_count
    )

    def check(self) -> None:
        """Raise OptionError for options that do not fit together."""


O = TypeVar("O", bound=ExporterOptions)  # noqa: E741 - as other generic options


def read_options(kind: type[O], given: Mapping[str, str]) -> O:
    """Return the options of a class from texts. Raises OptionError with the key and the value."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    values = {}
    for name, text in given.items():
        if name not in fields:
            hint = did_you_mean(name, [*fields, "name"])
            raise OptionError(name, f"no option {name!r}", hint=hint)
        read = fields[name].metadata["read"]
        values[name] = _read(name, text, read) if read else _typed(name, text, hints[name])
    made = kind(**values)
    made.check()
    return made


def secrets(kind: type[ExporterOptions]) -> frozenset[str]:
    """Return the names of the options whose values are shown nowhere."""
    return frozenset(each.name for each in dataclasses.fields(kind) if each.metadata["secret"])


def names_files(options: ExporterOptions) -> bool:
    """Whether an option that is given is a file of the host."""
    return any(
        each.metadata["file"] and getattr(options, each.name)
        for each in dataclasses.fields(options)
    )


def text_of(value: object) -> str:
    """Return the text of a value from TOML. Raises UsageError for a table."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if not isinstance(value, (str, int, float)):
        raise UsageError("is neither a text, a number, true, false nor a list of texts")
    return str(value)


def _read(name: str, text: str, read: Callable[[str], _T]) -> _T:
    try:
        return read(text)
    except UsageError as error:
        raise OptionError(
            name, f"option {name}: {text!r}: {error.message}", hint=error.hint
        ) from None


def _typed(name: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise OptionError(name, f"option {name}: {text!r} is not one of {known}")
        return text
    read, words = _READERS[get_origin(kind) or kind]
    try:
        return read(text)
    except (KeyError, ValueError):
        raise OptionError(name, f"option {name}: {text!r} is not {words}") from None
