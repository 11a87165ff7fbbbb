"""Windows of the monitor, as screens show them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE
from probes.snapshot import Snapshot

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
