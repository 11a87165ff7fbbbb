"""Traffic and health of probes, of each window, for screen 1."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from bpf.arrays import Array, Rows
from probes.drops.counted import PROBE as DROPS
from probes.drops.counted import REASONS_TABLE, Dropped, by_reason
from probes.flow.kinds import INTERFACES
from probes.flow.records import FlowDirection
from probes.monitor.state import METRICS_TABLE
from probes.monitor.state import PROBE as MONITOR
from probes.snapshot import Loss, Losses, Snapshot, add_losses, lost_of

FLOW = "flow"
"""Name of the probe that counts flows."""
_BY_PROTOCOL = ("packets", "tcp_packets", "udp_packets", "icmp_packets")
_BY_DIRECTION = ("in_bytes", "in_packets", "out_bytes", "out_packets")
TRAFFIC = np.dtype(
    [("end_ns", "i8"), ("seconds", "f8")]
    + [(name, "u8") for name in (*_BY_DIRECTION, *_BY_PROTOCOL, "lost")]
)
"""Packets and bytes of a window, by direction and protocol; ICMP of both IP versions. `end_ns` is
CLOCK_MONOTONIC; `lost` counts packets that the other fields lack."""
WINDOWS = 1200
"""Windows that are kept."""
_FEW = 64
"""First capacity, in windows."""
_ICMP = (1, 58)
_TCP, _UDP = 6, 17


@dataclass(frozen=True, slots=True)
class Pulse:
    """Health of a probe, by its windows."""

    name: str
    generation: int
    interval: float
    """Seconds of the longest window of this generation: many windows end early."""
    poll: float
    """Seconds of the last swap and drain."""
    occupancy: float
    """Used share of its fullest table, 0 to 1."""
    came_at: float
    """Arrival of the last window, `time.monotonic()`."""
    end_utc_ns: int
    """End of that window."""
    window: int
    last: Losses
    """Losses of the last window."""
    losses: Losses
    """Losses since the start."""
    side: str = ""
    """Direction of the last table; empty for a built-in probe's."""

    @property
    def share(self) -> float:
        """Share of its interval that polling takes."""
        return self.poll / self.interval if self.interval > 0 else 0.0

    @property
    def lost(self) -> Loss:
        """All losses since the start."""
        return lost_of(self.losses)


@dataclass(frozen=True, slots=True, eq=False)
class Pulses:
    """Traffic and probes at a moment; immutable."""

    probes: Mapping[str, Pulse] = field(default_factory=dict)
    """By name, in the order of their first windows."""
    flows: Rows[TRAFFIC] = field(default_factory=lambda: np.empty(0, TRAFFIC))
    """Windows of the flow probe, dtype TRAFFIC (n,), oldest first."""
    monitor: Array = field(default_factory=lambda: np.empty(0, TRAFFIC))
    """Windows of the monitor, which sees only incoming packets."""
    dropped: tuple[Dropped, ...] = ()
    """Drops of the kernel in the last window of their probe, the largest first."""

    links: Snapshot | None = None
    """Last table of interfaces, in a run on several."""

    @property
    def both_ways(self) -> bool:
        """Whether `traffic` has outgoing packets."""
        return FLOW in self.probes or bool(len(self.flows))

    @property
    def traffic(self) -> Rows[TRAFFIC]:
        """Windows of the probe that sees more, dtype TRAFFIC (n,), oldest first."""
        return self.flows if self.both_ways else self.monitor


class _Tail:
    """The last windows. Arrays that it gave share its memory, which is never written again."""

    def __init__(self) -> None:
        self._rows = np.empty(_FEW, TRAFFIC)
        self._size = 0

    def with_row(self, row: Rows[TRAFFIC]) -> Array:
        """Return the windows with one more; only the new one if it is older than them."""
        if self._size and self._rows["end_ns"][self._size - 1] >= row["end_ns"][0]:
            # The probe restarted, or the clock went back.
            self._rows, self._size = np.empty_like(self._rows), 0
        if self._size == len(self._rows):
            last = self._rows[-WINDOWS:]
            self._rows, self._size = np.empty(2 * len(last), TRAFFIC), len(last)
            self._rows[: len(last)] = last
        self._rows[self._size] = row[0]
        self._size += 1
        return self._rows[max(0, self._size - WINDOWS) : self._size]


class LivePulses:
    """Builds Pulses from windows. Probes' threads call `add`, any thread calls `view`."""

    def __init__(self) -> None:
        self._view = Pulses()
        self._flows, self._monitor = _Tail(), _Tail()
        self._lock = threading.Lock()

    def view(self) -> Pulses:
        return self._view

    def add(self, snapshot: Snapshot, came_at: float) -> None:
        """`came_at`: its arrival, `time.monotonic()`."""
        with self._lock:
            probes = self._view.probes
            pulse = _pulse(probes.get(snapshot.probe), snapshot, came_at)
            view = replace(self._view, probes=MappingProxyType({**probes, pulse.name: pulse}))
            if (snapshot.probe, snapshot.metric) == (FLOW, ""):
                view = replace(view, flows=self._flows.with_row(_of_flows(snapshot)))
            elif (snapshot.probe, snapshot.metric) == (FLOW, INTERFACES):
                view = replace(view, links=snapshot)
            elif snapshot.probe == MONITOR and snapshot.metric == METRICS_TABLE:
                row, metrics = _window(snapshot), snapshot.rows[:1]
                for name in _BY_PROTOCOL:
                    row[name] = metrics[name]
                row["in_packets"], row["in_bytes"] = metrics["packets"], metrics["bytes"]
                view = replace(view, monitor=self._monitor.with_row(row))
            elif (snapshot.probe, snapshot.metric) == (DROPS, REASONS_TABLE):
                view = replace(view, dropped=by_reason(snapshot))
            self._view = view


def _pulse(before: Pulse | None, snapshot: Snapshot, came_at: float) -> Pulse:
    # Each table of a window is a snapshot.
    same = before if before and before.window == snapshot.window else None
    known = before if before and before.generation == snapshot.generation else None
    losses, last = dict(before.losses if before else {}), dict(same.last if same else {})
    for total in (losses, last):
        add_losses(total, snapshot.losses)
    seconds = max(snapshot.seconds, known.interval if known else 0.0)
    poll = max((snapshot.swap_ns + snapshot.drain_ns) / 1e9, same.poll if same else 0.0)
    occupancy = max(snapshot.occupancy, same.occupancy if same else 0.0)
    return Pulse(
        snapshot.probe, snapshot.generation, seconds, poll, occupancy, came_at,
        snapshot.end_utc_ns, snapshot.window, last, losses, snapshot.side,
    )  # fmt: skip


def _window(snapshot: Snapshot) -> Rows[TRAFFIC]:
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
    for rest in snapshot.rest:
        way = "out" if rest.direction == "egress" else "in"
        row["packets"] += rest.packets
        row[f"{way}_packets"] += rest.packets
        row[f"{way}_bytes"] += rest.bytes
    sums = np.bincount(snapshot.rows["protocol"], packets, 256)
    row["tcp_packets"], row["udp_packets"] = sums[_TCP], sums[_UDP]
    row["icmp_packets"] = sums[list(_ICMP)].sum()
    return row
