"""What the screens show, and how the probes' threads hand it over."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from probes.flow.live import LiveFlows
from probes.snapshot import Event, Loss, LossReason, Snapshot

MAX_EVENTS = 2000


@dataclass(slots=True)
class State:
    """Filled by `take`, called from any thread; read by the screens."""

    flows: LiveFlows = field(default_factory=LiveFlows)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    """Newest last."""
    last: Snapshot | None = None
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """Since the start."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, item: Snapshot | Event) -> None:
        """Take in what a probe published."""
        if isinstance(item, Event):
            with self._lock:
                self.events.append(item)
            return
        self.flows.add(item)
        with self._lock:
            self.last = item
            for reason, loss in item.losses.items():
                self.losses[reason] = self.losses.get(reason, Loss()) + loss
            if item.lost.packets:
                what = ", ".join(
                    f"{loss.packets} {reason.name.lower().replace('_', ' ')}"
                    for reason, loss in item.losses.items()
                    if reason.is_loss
                )
                text = f"packets lost in window {item.window}: {what}"
                self.events.append(Event(item.end_utc_ns, "warning", item.probe, text))

    def recent_events(self) -> tuple[Event, ...]:
        """Newest first."""
        with self._lock:
            return tuple(reversed(self.events))

    @property
    def lost(self) -> int:
        """Packets lost since the start."""
        return sum(loss.packets for reason, loss in self.losses.items() if reason.is_loss)
