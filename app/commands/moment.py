"""Typed times: a time of day, `12:30:05`, also of a date, or an age, `30s`, `1h30m`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from bpf.errors import UsageError
from bpf.quantities import TIMES_NS, quantity

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
