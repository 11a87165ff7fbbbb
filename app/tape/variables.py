"""Variables of tapes: `$NAME` and `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.tape.line import TapeLine
from bpf.errors import UsageError, did_you_mean

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_USE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([^}]*)\}?)", re.ASCII)


def variables_of(given: Iterable[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE`. Raises UsageError."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (sign and _NAME.fullmatch(name)):
            hint = "such as --set HOST=10.0.0.1"
            raise UsageError(f"--set {text!r} is no NAME=VALUE", hint=hint)
        found[name] = value
    return found


def expanded(line: TapeLine, variables: Mapping[str, str]) -> str:
    """Return a line with the values of its variables. Refuses unknown variables."""
    if line.over or "$" not in line.text:
        return line.text

    def value(use: re.Match[str]) -> str:
        if use[1]:
            return "$"
        name = use[2] or use[3] or ""
        if name not in variables:
            hint = did_you_mean(name, variables, f"--set {name or 'NAME'}=VALUE gives it a value")
            line.refuse(f"there is no variable {use[0]!r}", use.start(), hint=hint)
        return variables[name]

    return _USE.sub(value, line.text)
