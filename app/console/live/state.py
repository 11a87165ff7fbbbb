"""The state that probes' threads fill, and the immutable frames that screens show."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.console.live.flows import Focus, LiveFlows, LiveView
from app.console.live.overview_feed import FLOW, LivePulses, Pulses
from app.console.live.owners import LiveOwners, OwnerView
from app.console.live.paths import LivePaths, PathView
from probes.flow.kinds import INTERFACES, REPEATED
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE
from probes.monitor.state import PROBE as MONITOR
from probes.snapshot import (
    REMOVED,
    Event,
    Loss,
    Losses,
    LossReason,
    Snapshot,
    add_losses,
    loss_subject,
    lost_of,
)
from probes.sockets.records import OWNERSHIP_TABLE
from probes.sockets.records import PROBE as SOCKETS

MAX_EVENTS = 2000
_OWNERS_WITHIN = 0.1
"""Seconds in which owners usually follow their flows."""
_RANKS = {FLOW: 3, MONITOR: 2, "path": 1}
"""The status strip shows the window of the probe with the highest rank."""
_WINDOWS = 1200
"""Windows that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class MonitorView:
    """Tables of the monitor until a moment, oldest window first."""

    metrics: tuple[Snapshot, ...] = ()
    policies: tuple[Snapshot, ...] = ()
    triggers: tuple[Snapshot, ...] = ()
    """Only of windows with transitions."""

    @property
    def now_utc_ns(self) -> int:
        """End of the last window by the clock of the measuring host; 0 before the first."""
        last = (table[-1].end_utc_ns for table in (self.metrics, self.policies) if table)
        return max(last, default=0)


class LiveMonitor:
    """Keeps windows of the monitor. The probe's thread calls `add`, any thread calls `view`."""

    def __init__(self) -> None:
        self._tables = {
            name: deque[Snapshot](maxlen=_WINDOWS)
            for name in (METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE)
        }
        self._view: MonitorView | None = None
        """The present view; None since the last table."""
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._view = None
            table = self._tables[snapshot.metric]
            if table and snapshot.window < table[-1].window:
                # The monitor restarted, and counts from one.
                table.clear()
            table.append(snapshot)

    def view(self) -> MonitorView:
        """Return the present view; the same object until the next table."""
        with self._lock:
            if self._view is None:
                self._view = MonitorView(*(tuple(table) for table in self._tables.values()))
            return self._view


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Everything that screens show, at a moment; immutable, so a pause keeps one."""

    flows: LiveView
    paths: PathView
    events: tuple[Event, ...]
    """Newest first."""
    metrics: tuple[Snapshot, ...] = ()
    """The last table of each metric of each probe."""
    monitor: MonitorView = field(default_factory=MonitorView)
    last: Snapshot | None = None
    """The window that ends at the moment, without its rows; None before the first."""
    at: float = 0.0
    """Arrival of `last`, `time.monotonic()`."""
    lost: int = 0
    """Packets, and results of probes, lost until the moment."""
    pulses: Pulses = field(default_factory=Pulses)
    owners: OwnerView = field(default_factory=OwnerView)
    parts: tuple[HostFrame, ...] = ()
    """The frames of several hosts that this one is made of; empty for one host."""
    missing: tuple[str, ...] = ()
    """Hosts that were chosen and that this frame lacks."""

    @property
    def utc_ns(self) -> int:
        """End of the window by the clock of the measuring host; 0 before the first window."""
        return self.last.end_utc_ns if self.last is not None else 0

    @property
    def hosts(self) -> tuple[HostFrame, ...]:
        """The frame of each host; a single host has an empty name."""
        return self.parts or (HostFrame("", self),)

    def of(self, host: str) -> Frame | None:
        """Return the part of a host, or None; without a name, the frame itself."""
        parts = (part.frame for part in self.parts if part.host == host)
        return next(parts, None) if host else self


@dataclass(frozen=True, slots=True, eq=False)
class HostFrame:
    """The frame of one host of a fleet."""

    host: str
    frame: Frame
    shift_ns: int = 0
    """From its CLOCK_MONOTONIC to UTC, by the clock here: the hub corrects the times of items."""


@dataclass(slots=True)
class LiveState:
    """The present. Any thread calls `take`; screens read frames."""

    arrival: Callable[[Snapshot], float] = lambda _: time.monotonic()
    """Returns the arrival of a window, `time.monotonic()`."""
    last: Snapshot | None = None
    """The last window of the probe with the highest rank, without rows."""
    last_at: float = 0.0
    """Arrival of `last`, `time.monotonic()`: its own times may be another host's."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """Losses since the start of the run."""
    _flows: LiveFlows = field(default_factory=LiveFlows)
    _paths: LivePaths = field(default_factory=LivePaths)
    _monitor: LiveMonitor = field(default_factory=LiveMonitor)
    _owners: LiveOwners = field(default_factory=LiveOwners)
    _pulses: LivePulses = field(default_factory=LivePulses)
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    _newest_first: tuple[Event, ...] | None = ()
    """The events, as frames share them; None after another event."""
    _metrics: dict[tuple[str, str, str], Snapshot] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def focus_flows(self, focus: Focus) -> None:
        """Set which flows come first if the table cannot hold every flow."""
        self._flows.focus = focus

    def begin(self, losses: Losses | None) -> None:
        """Add the windows until the first frame at once; with losses, in the middle of a run."""
        self.lost_until_now(losses or {})
        self._flows.begin(late=losses is not None)

    def lost_until_now(self, losses: Losses) -> None:
        """Set the losses since the start of the run."""
        self.losses = dict(losses)

    def take(self, item: Snapshot | Event) -> None:
        """Add a published window or event."""
        if isinstance(item, Event):
            if (item.source, item.text) == (SOCKETS, REMOVED):
                self._owners.clear()
            with self._lock:
                self._log(item)
            return
        came_at = self.arrival(item)
        self._pulses.add(item, came_at)
        if not item.is_metric:
            views: dict[str, LiveFlows | LivePaths | LiveMonitor | LiveOwners] = {
                FLOW: self._flows,
                "path": self._paths,
                MONITOR: self._monitor,
                SOCKETS: self._owners,
            }
            view = views.get(item.probe)
            if view is not None and item.metric not in (REPEATED, INTERFACES):
                view.add(item)
        with self._lock:
            if item.is_metric:
                self._metrics[item.probe, item.side, item.metric] = item
            if self.last is None or _rank(item) >= _rank(self.last):
                # Views keep the rows: frames must not keep them twice.
                self.last = replace(item, rows=item.rows[:0].copy())
                self.last_at = came_at
            add_losses(self.losses, item.losses)
            if item.lost.packets:
                what = ", ".join(
                    f"{loss.packets} {reason.label}"
                    for reason, loss in item.losses.items()
                    if reason.is_loss
                )
                lost = "results" if item.probe == "path" else "packets"
                text = f"{lost} lost in window {item.window}: {what}"
                event = Event(
                    item.end_utc_ns, "warning", item.probe, text, loss_subject(item.side),
                    value=item.lost.packets, unit=lost,
                )  # fmt: skip
                self._log(event)

    def shown_after(self, item: Snapshot | Event) -> float:
        """Return the seconds until screens should show an item; infinite if another one follows.

        The owners of a window come right after its flows: one update of the screen shows both.
        """
        if isinstance(item, Event) or item.probe not in (FLOW, SOCKETS):
            return 0.0
        if item.probe == SOCKETS:
            return 0.0 if item.metric == OWNERSHIP_TABLE else math.inf
        return _OWNERS_WITHIN if self._owners.view() else 0.0

    def _log(self, event: Event) -> None:
        self._events.append(event)
        self._newest_first = None

    def frame(self) -> Frame:
        """Return the present frame."""
        with self._lock:
            if self._newest_first is None:
                self._newest_first = tuple(reversed(self._events))
            return Frame(
                self._flows.view(), self._paths.view(), self._newest_first,
                tuple(self._metrics.values()), self._monitor.view(), self.last, self.last_at,
                lost_of(self.losses).packets, self._pulses.view(), self._owners.view(),
            )  # fmt: skip


def _rank(snapshot: Snapshot) -> int:
    return 0 if snapshot.is_metric else _RANKS.get(snapshot.probe, 0)
