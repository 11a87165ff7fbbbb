"""Compact text for people: clocks, harmless strings, and the texts of quantities."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from bpf.quantities import (
    MISSING,
    age,
    bit_rate,
    byte_size,
    counted,
    duration,
    milliseconds,
    percent,
    si,
    signed,
)

__all__ = [
    "ELLIPSIS",
    "MISSING",
    "REPLACED",
    "age",
    "bit_rate",
    "byte_size",
    "clock",
    "counted",
    "duration",
    "milliseconds",
    "percent",
    "safe",
    "shortened",
    "show_local_time",
    "si",
    "signed",
    "zone",
    "zone_offset_ns",
]
ELLIPSIS = "…"
_NUMBER = re.compile(r"([<>≥~+-]*)(\d+(?:\.\d+)?)( ?)([dhm](?=\d\d[hms]$)|[^\d\s]\S*)?(\d\d[hms])?")
"""Sign, digits, gap, unit, and the minor part of a duration."""
REPLACED = "·"
"""Replacement of a character that must not reach the terminal."""
_zone: list[tzinfo | None] = [UTC]
"""The zone of all clocks; None is the zone of this host."""


def show_local_time(local: bool) -> None:
    """Choose the zone of all clocks: of this host, or UTC."""
    _zone[0] = None if local else UTC


def clock(utc_ns: int, *, milliseconds: bool = False) -> str:
    """`12:30:05`: the time of day in the chosen zone of nanoseconds since the epoch."""
    text = f"{datetime.fromtimestamp(utc_ns / 1e9, _zone[0]):%H:%M:%S.%f}"
    return text[:-3] if milliseconds else text[:-7]


def zone() -> str:
    """`UTC`, or the name of this host's zone of now, such as `CET`."""
    return datetime.now(UTC).astimezone(_zone[0]).tzname() or ""


def zone_offset_ns() -> int:
    """Nanoseconds from UTC to the chosen zone."""
    offset = datetime.now(UTC).astimezone(_zone[0]).utcoffset() or timedelta()
    return round(offset.total_seconds()) * 10**9


def shortened(text: str, cells: int) -> str:
    """Return a number in at most `cells` characters: it loses digits, and never its unit.

    Without room for that it becomes an ellipsis; a text that is no number becomes empty.
    """
    if (found := _NUMBER.fullmatch(text)) is None:
        return ""
    sign, number, gap, unit, rest = found.groups(default="")
    value = float(number)
    whole = "<1" if 0 < value < 0.5 else f"{value:.0f}"
    numbers = (number,) if rest else (number, f"{value:.1f}", whole)
    shorter = (sign + digits + space + unit for space in (gap, "") for digits in numbers)
    return next((each for each in shorter if len(each) <= cells), ELLIPSIS)


def safe(text: str, replacement: str = "") -> str:
    """Replace control, escape, bidirectional and other unprintable characters.

    Lone surrogates go too: kernel names decoded with `surrogateescape` hold them, and a terminal
    cannot take them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else replacement for c in text)
