"""A monitor whose packets and time come from a capture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probes.monitor.engine import Engine
from probes.monitor.policy_log import PolicyLog
from probes.monitor.probe import MonitorProbe
from probes.monitor.records import METRIC


class CapturedMonitor(MonitorProbe):
    """A monitor for several captures in turn, which are attached to nothing."""

    def restart(self, now: Callable[[], int]) -> None:
        """Begin anew with the same policies, without a window. Keep time by `now` (see
        `keep_time`)."""
        with self._lock:
            policies = [status.policy for status in self._engine.policies()]
            self._engine = Engine()
            self._log = PolicyLog(self._engine, self._utc)
            self._sketches.clear()
            self.counters.recent.clear()
            self.keep_time(now)
            for policy in policies:
                self._engine.set(policy, self._now())
            self.router.activate(self._engine.active())

    def rest(self, count: int) -> int:
        """End up to `count` windows in which no packet came, without a look at the kernel or a
        snapshot. The first one ends now. Returns how many have ended."""
        with self._lock:
            end_ns, length_ns = self._now(), self._now() - self._start_ns
            recent = self.counters.rest()
            taken, transitions = self._engine.rest(end_ns, length_ns / 1e9, count, recent)
            self._apply(transitions, np.zeros((), METRIC), self._start_ns, end_ns)
            self.transitions, self._start_ns = transitions, self._start_ns + taken * length_ns
            return taken
