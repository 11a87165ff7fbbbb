"""Destinations of this host's connections. The kernel measures their round-trip times, without a
probe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.console.live.owners import LIVE_SOCKET
from app.console.live.state import Frame
from app.console.screens.paths.hop import PathKey
from bpf.arrays import Rows
from bpf.quantities import age, duration
from bpf.sockets.diag import TCP
from probes.filter.hosts import address_text
from probes.flow.records import hash_keys
from widgets.tones import Tone

_MOST = 30
"""Destinations in the list."""
_IDLE_NS = 3_000_000_000
_QUEUE_S = 0.005
"""A delay above the least round trip that is worth a warning."""


@dataclass(frozen=True, slots=True)
class Untraced:
    """The connections to one destination; times are of the one with the most bytes."""

    key: PathKey
    rtt: float
    """Seconds; NaN before the first answer."""
    least: float
    connections: int
    bytes: int
    """Payload of both directions in the last window."""
    idle: float
    """Seconds since the last packet; 0 while packets pass."""

    @property
    def state(self) -> tuple[str, Tone]:
        if self.idle:
            return f"idle for {age(self.idle)}", Tone.MUTED
        if math.isnan(self.rtt):
            return "no answer yet", Tone.WARN
        above = max(0.0, self.rtt - self.least)
        return (
            (f"{duration(above)} above least", Tone.WARN) if above > _QUEUE_S else ("", Tone.NORMAL)
        )


def untraced(frame: Frame) -> list[Untraced]:
    """Return the largest destinations of every shown host, the largest first."""
    found = [one for part in frame.hosts for one in _of(part.frame, part.host)]
    found.sort(key=lambda one: (one.bytes, -one.idle), reverse=True)
    return found[:_MOST]


def _of(frame: Frame, host: str) -> Iterator[Untraced]:
    sockets = frame.owners.sockets
    # Listeners have no other end.
    rows = sockets[(sockets["protocol"] == TCP) & (sockets["state"] != 10)]
    if not len(rows):
        return
    far = np.zeros(len(rows), [("far", rows.dtype["far"]), ("version", "u8")])
    far["far"], far["version"] = rows["far"], rows["version"]
    groups = hash_keys(far.view("u8").reshape(len(rows), -1))
    _, inverse = np.unique(groups, return_inverse=True)
    for group in range(int(inverse.max()) + 1):
        yield _one(rows[inverse == group], frame.owners.now_ns, host)


def _one(rows: Rows[LIVE_SOCKET], now_ns: int, host: str) -> Untraced:
    amount = (rows["sent"] + rows["received"]) * (rows["seen_ns"] >= now_ns - _IDLE_NS)
    measured = np.where(rows["rtt_us"] > 0, amount + 1, 0)
    row = rows[int(measured.argmax())]
    known = bool(row["rtt_us"])
    idle_ns = now_ns - int(rows["seen_ns"].max())
    return Untraced(
        PathKey(address_text(row["far"].tobytes(), int(row["version"])), host=host),
        int(row["rtt_us"]) / 1e6 if known else math.nan,
        int(row["min_rtt_us"]) / 1e6 if known else math.nan,
        len(rows),
        int(amount.sum()),
        idle_ns / 1e9 if idle_ns > _IDLE_NS else 0.0,
    )
