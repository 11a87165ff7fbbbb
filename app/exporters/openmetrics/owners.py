"""Series of the largest owners of flows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, Series
from app.outputs.view import is_table
from probes.flow.records import Array
from probes.snapshot import Snapshot
from probes.sockets.records import OWNERS_TABLE, OWNERSHIP_TABLE, PROBE, Reason

_FIELDS = ("comm", "user", "unit", "container", "pod")
"""Fields of OWNER for the labels of a series. The process's number is no label: processes that
start again and again would make series without end."""
_OTHER = ("other", "", "", "", "")
_MEMORY_S = 60.0
"""Time constant of the rate by which owners are compared."""
_HELD_S = 60.0
"""An owner keeps its series at least so long, so that few series come and go."""
_PAST = 10
"""Owners that lost their series and are remembered, for each owner that has one."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Held:
    """The series of one owner."""

    since_s: float = 0.0
    rate: float = 0.0
    """Bytes a second of about the last minute."""
    packets: int = 0
    bytes: int = 0


class OwnerSeries(Series):
    """Packets and bytes of the largest owners since each got its series, and of all others.

    An owner that gets a series starts at 0, and no counter ever falls: the rate of every series is
    right at all times.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._held: dict[Labels, _Held] = {}
        self._past: dict[Labels, _Held] = {}
        """Owners that lost their series, the latest last. A series that comes again goes on."""
        self._others = _Held()
        self._seen = False

    def take(self, item: Snapshot) -> None:
        if is_table(item, PROBE, OWNERS_TABLE):
            self._seen = True
            self._take_owners(item.rows, item.end_ns / 1e9, item.seconds)
        elif is_table(item, PROBE, OWNERSHIP_TABLE):
            for row in item.rows:
                reason = Reason(int(row["reason"])).column
                self.add(of.OWNERSHIP_PACKETS, reason, by=int(row["packets"]))
                self.add(of.OWNERSHIP_BYTES, reason, by=int(row["bytes"]))

    def _take_owners(self, rows: Array, now_s: float, seconds: float) -> None:
        sums: dict[Labels, list[int]] = {}
        for row in rows:
            labels = tuple(row[name].decode(errors="replace") for name in _FIELDS)
            total = sums.setdefault(labels, [0, 0])
            total[0] += int(row["packets"])
            total[1] += int(row["bytes"])
        kept = math.exp(-seconds / _MEMORY_S)
        for labels, held in self._held.items():
            new = sums.get(labels, (0, 0))[1] / seconds if seconds else 0.0
            held.rate = kept * held.rate + (1 - kept) * new
        for labels, (packets, size) in sorted(sums.items(), key=lambda each: -each[1][1]):
            held = self._held.get(labels) or self._place(labels, size, now_s, seconds)
            held.packets += packets
            held.bytes += size

    def _place(self, labels: Labels, size: int, now_s: float, seconds: float) -> _Held:
        """Return a new series for an owner, or that of the others."""
        rate = size / seconds if seconds else 0.0
        if len(self._held) >= self._most:
            free = (each for each in self._held.items() if now_s - each[1].since_s >= _HELD_S)
            least = min(free, key=lambda each: each[1].rate, default=None)
            if least is None or least[1].rate >= rate:
                return self._others
            self._past[least[0]] = self._held.pop(least[0])
            if len(self._past) > _PAST * self._most:
                del self._past[next(iter(self._past))]
        held = self._past.pop(labels, None) or _Held()
        held.since_s, held.rate = now_s, rate
        return self._held.setdefault(labels, held)

    def samples(self) -> Iterator[Sample]:
        everyone = {**self._held, _OTHER: self._others} if self._seen else {}
        for labels, held in everyone.items():
            yield of.OWNER_PACKETS(*labels, value=held.packets)
            yield of.OWNER_BYTES(*labels, value=held.bytes)
        yield from super().samples()
