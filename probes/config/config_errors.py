"""Errors of a configuration as one line: the file, the key, the mistake, and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from bpf.errors import UsageError, did_you_mean

_OWN = "probe"
_SHOWN = 40
"""Characters of an invalid value or key in a message."""
_TEXTS = {
    "missing": "it is missing",
    "extra_forbidden": "no such key",
    "model_type": "must be a table of keys and values",
    "dict_type": "must be a table of keys and values",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
}


def invalid(text: str, *, at: str = "", hint: str = "") -> PydanticCustomError:
    """Return the error for a model's validator to raise; `at` is a path below the model."""
    return PydanticCustomError(_OWN, "{text}", {"text": text, "at": at, "hint": hint})


def config_error(error: ValidationError, model: type[BaseModel], where: str) -> UsageError:
    """Return `where: key: text` and a hint for the most helpful error, and the number of others."""
    # A misspelled key causes the error of a missing key.
    first, *others = sorted(
        error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden"
    )
    context = first.get("ctx", {})
    own = first["type"] == _OWN
    path = _path(first["loc"])
    if own and context["at"]:
        path = f"{path}.{context['at']}" if path else context["at"]
    text, hint = (context["text"], context["hint"]) if own else _words(first, model)
    more = f" (and {len(others)} more)" if others else ""
    return UsageError(": ".join(filter(None, (where, path, text))) + more, hint=hint)


def _path(location: Sequence[int | str]) -> str:
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
    kind, given = error["type"], _cut(ascii(error["input"]))
    if kind == "extra_forbidden":
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
