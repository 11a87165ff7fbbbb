"""What screen 1 keeps of each window: how much passed, and whether its probe keeps up."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from probes.flow.records import Array, FlowDirection
from probes.monitor.state import METRICS_TABLE
from probes.monitor.state import PROBE as MONITOR
from probes.snapshot import Loss, Losses, Snapshot, add_losses, lost_of

FLOW = "flow"
"""Name of the probe that counts flows."""
TRAFFIC = np.dtype(
    [
        ("end_ns", "i8"),
        ("seconds", "f8"),
        ("in_bytes", "u8"),
        ("in_packets", "u8"),
        ("out_bytes", "u8"),
        ("out_packets", "u8"),
        ("packets", "u8"),
        ("tcp_packets", "u8"),
        ("udp_packets", "u8"),
        ("icmp_packets", "u8"),
        ("lost", "u8"),
    ]
)
"""One window's packets and bytes, by direction and by protocol; ICMP is that of both IP versions.
`end_ns` is CLOCK_MONOTONIC, `lost` counts packets that are in none of the others."""
WINDOWS = 1200
"""That are looked back at."""
_FEW = 64
"""That there is room for at first."""
_ICMP = (1, 58)
_TCP, _UDP = 6, 17


@dataclass(frozen=True, slots=True)
class Pulse:
    """Whether a probe keeps up, by the windows that came of it."""

    name: str
    generation: int
    interval: float
    """Seconds: the longest window of this generation, as windows end early for many reasons."""
    poll: float
    """Seconds that the last swap and drain took."""
    occupancy: float
    """How full its fullest table was, 0 to 1."""
    came_at: float
    """When its last window came, `time.monotonic()`."""
    end_utc_ns: int
    """When that window ended."""
    window: int
    last: Losses
    """Of the last window."""
    losses: Losses
    """Since the start."""

    @property
    def share(self) -> float:
        """Of its interval, that polling takes."""
        return self.poll / self.interval if self.interval > 0 else 0.0

    @property
    def lost(self) -> Loss:
        """Since the start."""
        return lost_of(self.losses)


@dataclass(frozen=True, slots=True, eq=False)
class Pulses:
    """Traffic and probes at a moment. Never changed."""

    probes: Mapping[str, Pulse] = field(default_factory=dict)
    """By name, in the order in which they came."""
    flows: Array = field(default_factory=lambda: np.empty(0, TRAFFIC))
    """dtype TRAFFIC (n,), oldest first: windows of the flow probe."""
    monitor: Array = field(default_factory=lambda: np.empty(0, TRAFFIC))
    """Those of the monitor, which sees incoming packets only."""

    @property
    def both_ways(self) -> bool:
        """Whether there is outgoing traffic in `traffic`."""
        return FLOW in self.probes

    @property
    def traffic(self) -> Array:
        """dtype TRAFFIC (n,), oldest first, of who sees more."""
        return self.flows if self.both_ways else self.monitor


class _Tail:
    """The last windows. What it gave is never written again, so that all of it shares memory."""

    def __init__(self) -> None:
        self._rows = np.empty(_FEW, TRAFFIC)
        self._size = 0

    def with_row(self, row: Array) -> Array:
        """The windows with one more; that one alone where its time is before theirs."""
        if self._size and self._rows["end_ns"][self._size - 1] >= row["end_ns"][0]:
            # The probe was started anew, or time was turned back.
            self._rows, self._size = np.empty_like(self._rows), 0
        if self._size == len(self._rows):
            last = self._rows[-WINDOWS:]
            self._rows, self._size = np.empty(2 * len(last), TRAFFIC), len(last)
            self._rows[: len(last)] = last
        self._rows[self._size] = row[0]
        self._size += 1
        return self._rows[max(0, self._size - WINDOWS) : self._size]


class LivePulses:
    """Takes in every probe's windows. `add` is called by their threads, `view` by any."""

    def __init__(self) -> None:
        self._view = Pulses()
        self._flows, self._monitor = _Tail(), _Tail()
        self._lock = threading.Lock()

    def view(self) -> Pulses:
        return self._view

    def add(self, snapshot: Snapshot) -> None:
        """Take in a table of a window."""
        with self._lock:
            view = self._view
            pulse = _pulse(view.probes.get(snapshot.probe), snapshot)
            probes = MappingProxyType({**view.probes, pulse.name: pulse})
            if snapshot.probe == FLOW and not snapshot.is_metric:
                flows = self._flows.with_row(_of_flows(snapshot))
                self._view = replace(view, probes=probes, flows=flows)
            elif snapshot.probe == MONITOR and snapshot.metric == METRICS_TABLE:
                monitor = self._monitor.with_row(_of_monitor(snapshot))
                self._view = replace(view, probes=probes, monitor=monitor)
            else:
                self._view = replace(view, probes=probes)


def _pulse(before: Pulse | None, snapshot: Snapshot) -> Pulse:
    same = before is not None and before.window == snapshot.window
    losses = dict(before.losses) if before else {}
    # A window of several tables comes as several snapshots.
    last = dict(before.last) if before and same else {}
    for total in (losses, last):
        add_losses(total, snapshot.losses)
    known = before is not None and before.generation == snapshot.generation
    poll = (snapshot.swap_ns + snapshot.drain_ns) / 1e9
    return Pulse(
        snapshot.probe,
        snapshot.generation,
        max(snapshot.seconds, before.interval if before and known else 0.0),
        max(poll, before.poll) if before and same else poll,
        max(snapshot.occupancy, before.occupancy) if before and same else snapshot.occupancy,
        time.monotonic(),
        snapshot.end_utc_ns,
        snapshot.window,
        last,
        losses,
    )


def _window(snapshot: Snapshot) -> Array:
    row = np.zeros(1, TRAFFIC)
    row["end_ns"], row["seconds"] = snapshot.end_ns, snapshot.seconds
    row["lost"] = snapshot.lost.packets
    return row


def _of_flows(snapshot: Snapshot) -> Array:
    row = _window(snapshot)
    if not len(snapshot.rows):
        return row
    packets, size = (np.ascontiguousarray(snapshot.rows[name]) for name in ("packets", "bytes"))
    leaving = snapshot.rows["direction"] == FlowDirection.EGRESS
    row["packets"] = packets.sum()
    row["out_packets"], row["out_bytes"] = packets[leaving].sum(), size[leaving].sum()
    row["in_packets"] = row["packets"] - row["out_packets"]
    row["in_bytes"] = size.sum() - row["out_bytes"]
    protocols = snapshot.rows["protocol"]
    row["tcp_packets"] = packets[protocols == _TCP].sum()
    row["udp_packets"] = packets[protocols == _UDP].sum()
    row["icmp_packets"] = packets[np.isin(protocols, _ICMP)].sum()
    return row


def _of_monitor(snapshot: Snapshot) -> Array:
    row, metrics = _window(snapshot), snapshot.rows[:1]
    for name in ("packets", "tcp_packets", "udp_packets", "icmp_packets"):
        row[name] = metrics[name]
    row["in_packets"], row["in_bytes"] = metrics["packets"], metrics["bytes"]
    return row
