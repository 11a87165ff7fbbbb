"""Quantities as people type and read them: one reader, and one text of each value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeVar

from bpf.errors import TextError, did_you_mean

NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"\s*({NUMBER})(?![0-9.])\s*")
_MINOR = re.compile(r"[a-zA-Z]+(?=[0-9.])")
"""A unit of time that a smaller one follows."""
TIMES_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9}
TIMES = {name: ns / 1e9 for name, ns in TIMES_NS.items()}
"""In seconds."""
DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXES = DECIMAL | BINARY
COUNTS = {prefix: scale for prefix, scale in _PREFIXES.items() if prefix}
SIZES = {f"{prefix}B": scale for prefix, scale in _PREFIXES.items()} | COUNTS
"""In bytes."""
BIT_RATES = {
    f"{prefix}{unit}": scale * bits
    for unit, bits in (("bit", 1), ("bit/s", 1), ("bps", 1), ("B/s", 8))
    for prefix, scale in _PREFIXES.items()
} | COUNTS
"""In bits per second."""
RATES = COUNTS | {f"{prefix}/s": scale for prefix, scale in _PREFIXES.items()}
"""In events per second."""
SHARES = {"%": 0.01}
_Scale = TypeVar("_Scale")


def quantity(
    text: str, units: Mapping[str, float], usual: float | None = 1.0, at: int = 0
) -> float:
    """Return the number of `64MiB`, `1.5 GB`, `500us` or `1h30m` in the base unit of `units`.

    A number without a unit has the unit `usual`. The quantity begins at index `at`. Raises
    TextError.
    """
    hint = f"units are {', '.join(filter(None, units))}" if units else ""
    if (found := _NUMBER.match(text, at)) is None:
        raise TextError(f"{shown(text[at:].strip())} is not a number", text, at + 1, hint=hint)
    begin = found.end()
    more = _MINOR.match(text, begin) if "s" in units else None
    unit = more[0] if more else text[begin:].rstrip()
    scale = scale_of(unit, units) if unit else usual
    if scale is None:
        problem = f"{shown(unit)} is no unit here" if unit else "a unit is missing"
        raise TextError(problem, text, begin + 1, hint=did_you_mean(unit, units, hint))
    value = float(found[1]) * scale
    if math.isinf(value):
        raise TextError(f"{shown(text.strip())} is too large", text, at + 1)
    if more:
        smaller = {name: length for name, length in units.items() if length < scale}
        value += quantity(text, smaller, None, more.end())
    return value


def scale_of(unit: str, units: Mapping[str, _Scale]) -> _Scale | None:
    """Return the entry of a unit; None unless it is the only one of these letters.

    Beside bits, `b` and `B` differ: `Mb` and `MB` are 8 to 1.
    """
    alike = [name for name in units if name.lower() == unit.lower()]
    name = unit if unit in units or len(alike) != 1 else alike[0]
    bits = "bit" in units and "bit" not in name
    return units.get(name) if not bits or name.count("B") == unit.count("B") else None


def seconds(given: str | float) -> float:
    """Return the seconds of `1.5`, `nan` or `500ms`. Raises TextError."""
    try:
        return float(given)
    except ValueError:
        return quantity(str(given), TIMES)


def byte_count(text: str) -> int:
    """Return the bytes of `256MiB`, `1.5 GB` or `4096`. Raises TextError."""
    return int(quantity(text, SIZES))


def shown(what: object) -> str:
    """Return a quoted part of a text for messages, cut if it is long."""
    text = str(what)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
