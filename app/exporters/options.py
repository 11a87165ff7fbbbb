"""Options of exporters: fields of a dataclass, read from an output's URL or its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bpf.errors import UsageError, did_you_mean
from bpf.quantities import TIMES, byte_count, quantity
from probes.config.options import setting, settings_of


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
    """Return a field of a dataclass of options, as `setting` does; a `file` is one of the host."""
    metavar = "FILE" if file else "on|off" if isinstance(default, bool) else ""
    return setting("Outputs", default, about, metavar, read=read, secret=secret)


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
    known = settings_of(kind)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            hint = did_you_mean(name, [*known, "name"])
            raise OptionError(name, f"no option {name!r}", hint=hint)
        each = known[name]
        if each.many:
            values[name] = tuple(filter(None, map(str.strip, text.split(","))))
            continue
        try:
            values[name] = each.of_text(text)
        except UsageError as error:
            colon, hint = (":", error.hint) if each.read else ("", "")
            message = f"option {name}: {text!r}{colon} {error.message}"
            raise OptionError(name, message, hint=hint) from None
    made = kind(**values)
    made.check()
    return made


def secrets(kind: type[ExporterOptions]) -> frozenset[str]:
    """Return the names of the options whose values are shown nowhere."""
    return frozenset(name for name, each in settings_of(kind).items() if each.secret)


def names_files(options: ExporterOptions) -> bool:
    """Whether an option that is given is a file of the host."""
    known = settings_of(type(options))
    return any(each.metavar == "FILE" and getattr(options, name) for name, each in known.items())


def text_of(value: object) -> str:
    """Return the text of a value from TOML. Raises UsageError for a table."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if not isinstance(value, (str, int, float)):
        raise UsageError("is neither a text, a number, true, false nor a list of texts")
    return str(value)
