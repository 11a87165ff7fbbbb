"""Errors of a configuration: all mistakes, each with its key and, in a file, line and column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, get_args, get_origin

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from bpf.errors import ProbedeckError, TextError, UsageError, did_you_mean, together
from probes.config.positions import Keys

M = TypeVar("M", bound=BaseModel)
_OWN = "probe"
_SHOWN = 40
"""Characters of an invalid value or key in a message."""
_UNKNOWN = "extra_forbidden"
_TEXTS = {
    "missing": "it is missing",
    _UNKNOWN: "no such key",
    "model_type": "must be a table of keys and values",
    "dict_type": "must be a table of keys and values",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
}
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


class ConfigFault(NamedTuple):
    """A mistake in the value of a key."""

    keys: Keys
    problem: str
    hint: str = ""
    column: int = 0
    """Column of the mistake in the value, which is `text`; 0: the whole value is wrong."""
    text: str = ""
    at_key: bool = False
    """Whether the key is wrong."""

    @property
    def said(self) -> str:
        """`policy[1].condition: 'flws' is no metric`."""
        return ": ".join(filter(None, (path_of(self.keys), self.problem)))


class FaultSource(Protocol):
    """A text with the values of keys."""

    def error(self, fault: ConfigFault) -> UsageError:
        """Return a fault as an error with its place in the text."""


class Request:
    """Values without a text around them."""

    def __init__(self, where: str) -> None:
        self._where = where

    def error(self, fault: ConfigFault) -> UsageError:
        problem = f"{self._where}: {fault.said}"
        if fault.column:
            return TextError(problem, fault.text, fault.column, hint=fault.hint)
        return UsageError(problem, hint=fault.hint)


def invalid(text: str, *, at: str = "", hint: str = "", column: int = 0) -> PydanticCustomError:
    """Return the error for a model's validator to raise; `at` is a path below the model, `column`
    the mistake's column in a text."""
    context = {"text": text, "at": at, "hint": hint, "column": column}
    return PydanticCustomError(_OWN, "{text}", context)


def validated(
    model: type[M], handler: ModelWrapValidatorHandler[M], data: object,
    faults: Sequence[ConfigFault],
) -> M:  # fmt: skip
    """Return the model of `data`. Raises ValidationError with its mistakes and with `faults`; their
    keys start at the model."""
    mistakes: list[ErrorDetails] = []
    try:
        made = handler(data)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    if not (mistakes or faults):
        return made
    details = [
        InitErrorDetails(
            type=PydanticCustomError(_OWN, "{text}", each["ctx"]) if each["type"] == _OWN
            else each["type"],
            loc=each["loc"], input=each["input"], ctx=each.get("ctx", {}),
        )
        for each in mistakes
    ]  # fmt: skip
    details += [
        InitErrorDetails(type=invalid(fault.problem, hint=fault.hint), loc=fault.keys, input=None)
        for fault in faults
    ]
    raise ValidationError.from_exception_data(model.__name__, details)


def config_error(error: ValidationError, model: type[BaseModel], where: str) -> ProbedeckError:
    """Return the mistakes of a value as one error: `where: key: text`, with hints."""
    return errors_of(faults_of(error, model), Request(where))


def errors_of(faults: Iterable[ConfigFault], source: FaultSource) -> ProbedeckError:
    return together(map(source.error, faults))


def faults_of(error: ValidationError, model: type[BaseModel]) -> Sequence[ConfigFault]:
    """Return the mistakes, a misspelled key instead of the key that is missing because of it."""
    errors = error.errors(include_url=False)
    found = [_fault(each, model) for each in errors]
    instead = {
        (*fault.keys[:-1], fault.hint.removeprefix("did you mean ").removesuffix("?"))
        for fault in found
        if fault.at_key
    }
    kept = [
        fault
        for fault, each in zip(found, errors, strict=True)
        if each["type"] != "missing" or fault.keys not in instead
    ]
    return sorted(kept, key=lambda fault: not fault.at_key)


def _fault(error: ErrorDetails, model: type[BaseModel]) -> ConfigFault:
    keys: Keys = error["loc"]
    if error["type"] == _OWN:
        own = error["ctx"]
        text = error["input"] if isinstance(error["input"], str) else ""
        keys = (*keys, *_keys(own["at"]))
        return ConfigFault(keys, own["text"], own["hint"], own["column"], text)
    return ConfigFault(keys, *_words(error, model), at_key=error["type"] == _UNKNOWN)


def _keys(path: str) -> Iterator[int | str]:
    for number, name in _PART.findall(path):
        yield int(number) if number else name


def path_of(location: Sequence[int | str]) -> str:
    """Return such as `ingress.metrics[0].map`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            shown = part if part.isprintable() else ascii(part)
            path += f".{_cut(shown)}" if path else _cut(shown)
    return path


def _words(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    kind, given = error["type"], _cut(repr(error["input"]))
    if kind == _UNKNOWN:
        key = str(error["loc"][-1])
        fields = _model_at(error["loc"][:-1], model).model_fields
        return _TEXTS[kind], did_you_mean(key, sorted(fields))
    if kind in ("literal_error", "enum"):
        choices = filter(None, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        return f"{given} is not one of its values", did_you_mean(
            str(error["input"]), sorted(choices)
        )
    if kind == "string_pattern_mismatch":
        return (
            f"{given} is not a name",
            "up to 64 letters, digits, _ . and -, the first a letter or _",
        )
    text = _TEXTS.get(kind)
    if text is None:
        asked, _, _ = error["msg"].replace("Input should be", "must be").partition(", ")
        text = f"{asked}, not {given}"
    return text[0].lower() + text[1:], ""


def _model_at(location: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    is_key = False
    for part in location:
        if is_key or isinstance(part, int):
            is_key = False  # The keys of a table such as `maps` are names.
            continue
        annotation = model.model_fields[part].annotation
        model = _model_in(annotation) or model
        is_key = get_origin(annotation) is dict
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type such as `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
