"""Quantities as people type and read them: one reader, and one text of each value.

A value that is not a number, or not finite, is written as "-".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeVar

from bpf.errors import TextError, UsageError, did_you_mean

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
_SI = ("", "k", "M", "G", "T", "P", "E")
_IEC = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_ROUNDS_UP = 999.5
"""From here on three digits would read 1000, so the next prefix is used."""
MISSING = "-"
"""Text of a missing value."""
ELLIPSIS = "…"
REPLACED = "·"
"""Replacement, on screens, of a character that must not reach the terminal."""
_SHOWN = re.compile(r"([<>≥~+-]*)(\d+(?:\.\d+)?)( ?)([dhm](?=\d\d[hms]$)|[^\d\s]\S*)?(\d\d[hms])?")
"""Sign, digits, gap, unit, and the minor part of a duration."""
_zone: list[tzinfo | None] = [UTC]
"""The zone of all clocks; None is the zone of this host."""


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


def core_share(text: str) -> float:
    """Return the share of a core of `2%`, 0 of `off`. Raises TextError."""
    share = 0.0 if text == "off" else quantity(text, SHARES, None)
    if share and not 0.001 <= share <= 64:
        raise TextError(f"{shown(text)} is not between 0.1% and 6400%", text, 1)
    return share


def shown(what: object) -> str:
    """Return a quoted part of a text for messages, cut if it is long."""
    text = str(what)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# Texts


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
    if (found := _SHOWN.fullmatch(text)) is None:
        return ""
    sign, number, gap, unit, rest = found.groups(default="")
    value = float(number)
    whole = "<1" if 0 < value < 0.5 else f"{value:.0f}"
    numbers = (number,) if rest else (number, f"{value:.1f}", whole)
    shorter = (sign + digits + space + unit for space in (gap, "") for digits in numbers)
    return next((each for each in shorter if len(each) <= cells), ELLIPSIS)


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


_SECOND = 10**9
_DAY = 86400 * _SECOND
_CLOCK = re.compile(
    r"(?:(\d{4}-\d\d-\d\d)[T ])?([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?"
)
_HINT = "12:30:05 or how long ago: 30s, 5m, 1h30m"


def moment(text: str, now_utc_ns: int, offset_ns: int = 0) -> int:
    """Return nanoseconds since the epoch; `offset_ns` leads from UTC to the zone of the time of
    day. Raises UsageError.

    A time of day later than now is yesterday's. Whole seconds mean the end of that second, so that
    no event with the same clock time is later.
    """
    if text[:1].isdigit() and ":" not in text:
        return now_utc_ns - round(quantity(text, TIMES_NS, None))
    if (clock := _CLOCK.fullmatch(text)) is None:
        raise UsageError(f"{text!r} is no time", hint=_HINT)
    hours, minutes, seconds = (int(part or 0) for part in clock.groups()[1:4])
    time = (hours * 3600 + minutes * 60 + seconds) * _SECOND
    today = now_utc_ns - (now_utc_ns + offset_ns) % _DAY
    begin = today + time if today + time <= now_utc_ns else today + time - _DAY
    if clock[1]:
        try:
            day = datetime.fromisoformat(clock[1]).replace(tzinfo=UTC)
        except ValueError:
            raise UsageError(f"{text!r} is no time", hint=_HINT) from None
        begin = int(day.timestamp()) * _SECOND - offset_ns + time
    fraction = clock[5]
    return begin + (int(fraction.ljust(9, "0")) if fraction else _SECOND - 1)
