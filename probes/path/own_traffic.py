"""Own traffic of path tracing, by destination: a separate table, about once a second."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import numpy as np

from probes.path.records import TRACE, Array
from probes.path.traced import Traced

_PERIOD_NS = 950_000_000
"""A little under a second, because polls come every 0.25 s."""
_COUNTERS = {
    "packets": "packets", "probes": "sent", "probe_bytes": "sent_bytes", "answers": "matched",
    "answer_bytes": "matched_bytes", "unmatched": "unmatched", "foreign": "foreign",
}  # fmt: skip
"""Field of TRACE, and the counter of Traced whose growth it is."""


class OwnTraffic:
    """Turns counters since the begin of tracing into rows of a period."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._before: dict[str, Traced] = {}
        self._leaving: list[Array] = []

    def leave(self, traced: Traced) -> None:
        """Keep the last row of a destination that is traced no longer."""
        self._leaving.append(_row(traced, self._before.pop(traced.destination, None)))

    def rows(self, traced: Iterable[Traced], now_ns: int) -> Array | None:
        """Return rows of dtype TRACE (n,) of the period, which ends now; None if it goes on."""
        if now_ns - self._since_ns < _PERIOD_NS and not self._leaving:
            return None
        found = {each.destination: each for each in traced}
        made = [_row(each, self._before.get(name)) for name, each in found.items()]
        rows = np.concatenate([np.empty(0, TRACE), *made, *self._leaving])
        rows["since_ns"] = self._since_ns
        self._before, self._leaving, self._since_ns = found, [], now_ns
        return rows


def _row(now: Traced, before: Traced | None) -> Array:
    row = np.zeros(1, TRACE)
    packed = ipaddress.ip_address(now.destination).packed
    row["destination"] = np.frombuffer(packed.ljust(16, b"\0"), "u1")
    row["version"] = 4 if len(packed) == 4 else 6
    row["routers"] = now.length
    for name, counter in _COUNTERS.items():
        row[name] = getattr(now, counter) - (getattr(before, counter) if before else 0)
    return row
