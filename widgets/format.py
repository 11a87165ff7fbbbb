"""Compact text for people: three digits and a prefix, durations, harmless strings.

A value that is not a number, or not finite, is written as "-".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

_SI = ("", "k", "M", "G", "T", "P", "E")
_IEC = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_ROUNDS_UP = 999.5
"""From here on three digits would read 1000, so the next prefix is used."""
MISSING = "-"
"""Text of a missing value."""
ELLIPSIS = "…"
_NUMBER = re.compile(r"([<>≥~+-]*)(\d+(?:\.\d+)?)( ?)([dhm](?=\d\d[hms]$)|[^\d\s]\S*)?(\d\d[hms])?")
"""Sign, digits, gap, unit, and the minor part of a duration."""
REPLACED = "·"
"""Replacement of a character that must not reach the terminal."""


def si(value: float, unit: str = "") -> str:
    """`999`, `12.3 k`, `1.23 Mbit/s`: three digits and a decimal prefix."""
    return _prefixed(value, unit, 1000.0, _SI)


def signed(value: float, text: Callable[[float], str]) -> str:
    """Return a difference with its sign; `text` formats its size."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + text(abs(value))


def bit_rate(bits_per_second: float) -> str:
    """`12.3 Mbit/s`."""
    return si(bits_per_second, "bit/s")


def byte_size(count: float) -> str:
    """`1.21 MiB`: bytes with a binary prefix."""
    return _prefixed(count, "B", 1024.0, _IEC)


def duration(seconds: float) -> str:
    """`850 ns`, `12.3 us`, `3.21 ms`, `3.2 s`, `4m12s`, `1h03m`, `2d04h`."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if seconds * scale < _ROUNDS_UP:
            return f"{_three_digits(seconds * scale)} {unit}"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def milliseconds(seconds: float) -> str:
    """`0.018`, `3.21`, `12.3`, `167`: for a column whose header names the unit."""
    if not math.isfinite(seconds):
        return MISSING
    value = seconds * 1e3
    if abs(value) < 0.9995:
        return f"{value:.3f}"
    return _three_digits(value)


def age(seconds: float) -> str:
    """`12 s`, `4m`, `1h03m`, `2d04h`: whole units, as they rarely change on a screen."""
    if not math.isfinite(seconds):
        return MISSING
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}m" if whole < 3600 else duration(whole)


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


def counted(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(fraction: float) -> str:
    """`12.5 %` of a fraction of one; rounded to 0 or 100 only if it is exactly that."""
    if not math.isfinite(fraction):
        return MISSING
    value = fraction * 100
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return ">99.9 %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


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


def _prefixed(value: float, unit: str, base: float, prefixes: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return MISSING
    if value < 0:
        return "-" + _prefixed(-value, unit, base, prefixes)
    power = 0
    scaled = float(value)
    while scaled >= _ROUNDS_UP and power < len(prefixes) - 1:
        scaled /= base
        power += 1
    exact = power == 0 and scaled == int(scaled)
    number = str(int(scaled)) if exact else _three_digits(scaled)
    return f"{number} {prefixes[power]}{unit}".rstrip()


def _three_digits(value: float) -> str:
    if value < 0.005:
        return f"{value:.1g}" if value else "0"
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
