"""Windows of a capture, which end by its clock: flows, metrics and policies of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probes.flow.probe import FlowProbe
from probes.monitor.condition.terms import MAX_BYTES
from probes.monitor.control.culprits import Culprits
from probes.monitor.engine import Engine, PolicyTransition
from probes.monitor.finding import Finding
from probes.monitor.policy_log import PolicyLog
from probes.monitor.probe import MonitorProbe
from probes.monitor.records import METRIC
from probes.poller import Publish
from probes.snapshot import Event, Snapshot

JOINED = 60
"""Most windows that are joined, see PolicyRunner."""
_JOINED_AFTER_NS = 600 * 1_000_000_000
QUIET = 4
"""Most frames of a quiet window. One more would hide no error of an estimate."""


@dataclass(frozen=True, slots=True)
class Told:
    """A transition of a policy in a capture."""

    seconds: float
    """From the first frame to the end of the window that caused it."""
    transition: PolicyTransition
    finding: Finding | None = None
    """Culprits, if the policy begins."""


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

    def is_dull(self, recent: float) -> bool:
        """Whether no quiet window activates a policy; `recent`: see `Condition.never_holds`."""
        with self._lock:
            return self._engine.is_dull(QUIET + 1, recent)

    def recent(self) -> float:
        """Return the limit of metrics of several windows, if the present window ended now."""
        return self.counters.recent_limit(self._current.parts[0].half.sketches)


class CaptureWindows:
    """The windows of one capture."""

    def __init__(
        self, flow: FlowProbe, monitor: CapturedMonitor, rest_ns: int, begin_ns: int,
        publish: Publish,
    ) -> None:  # fmt: skip
        self._flow, self._monitor, self._publish = flow, monitor, publish
        self._rest_ns = rest_ns
        self._dull = -1.0
        """Largest `recent` for which the present windows are dull; below 0: they are not quiet."""
        self._begin_ns = begin_ns
        self._length_ns = round(monitor.options.interval * 1e9)
        self._start_ns, self.end_ns = begin_ns, begin_ns + self._length_ns
        """The present windows, by the capture's clock."""
        self.skipped_ns = 0
        self.told: list[Told] = []
        self.busiest: dict[str, str] = {}
        self._most = -1
        """Packets of the window with most packets."""
        self.errors: list[str] = []
        """Conditions that could not be evaluated."""
        self._flows: list[Snapshot] = []
        """Flows of the present window."""
        self._now_ns = begin_ns
        flow.keep_time(self._now)
        monitor.restart(self._now)
        monitor.find = Culprits(self, monitor).find

    def _now(self) -> int:
        return self._now_ns

    def flow_windows(
        self, interface: str, start_ns: int, end_ns: int
    ) -> tuple[Sequence[Snapshot], str]:
        """As a controller for `Culprits`: return the flows of the present window."""
        if not self._flows:
            self._read_flows()
        return self._flows, ""

    def relieve(self, time_ns: int) -> None:
        """Empty the flow tables before the end of the window."""
        self._now_ns = max(self._now_ns, time_ns)
        self._read_flows()

    def _read_flows(self) -> None:
        for item in self._flow.export():
            self._publish(item)
        self._flows.append(self._flow.latest[0])

    def advance(self, time_ns: int, near: Sequence[tuple[int, int]]) -> None:
        """End windows until `time_ns` lies in the present one, or join the window of `time_ns` to
        it. `near` are the next frames' times and lengths: more than a quiet window has, or none."""
        length_ns = self._length_ns
        end_ns = time_ns - (time_ns - self.end_ns) % length_ns + length_ns
        last_ns = self._start_ns + JOINED * length_ns
        sizes = [size for at_ns, size in near if at_ns < end_ns]
        quiet = 0 < len(sizes) <= QUIET and max(sizes) <= MAX_BYTES
        quiet = quiet and time_ns - self._begin_ns >= _JOINED_AFTER_NS
        if self._dull >= 0:
            if quiet and end_ns <= last_ns and self._is_dull():
                self.end_ns = end_ns
                return
            self.end_ns = min(last_ns, end_ns - length_ns)
        self.end()
        self._skip(time_ns)
        self._start_ns, self._dull = self.end_ns - length_ns, -1.0
        if quiet:
            self._is_dull()

    def _is_dull(self) -> bool:
        recent = self._monitor.recent() + QUIET
        if recent > self._dull and self._monitor.is_dull(recent):
            self._dull = recent
        return recent <= self._dull

    def _skip(self, time_ns: int) -> None:
        """End the windows without frames before `time_ns`."""
        empty = (time_ns - self.end_ns) // self._length_ns + 1
        if empty <= 0:
            return
        left = min(empty, self._rest_ns // self._length_ns + 1)
        # Beyond, a condition has forgotten everything.
        skipped_ns = (empty - left) * self._length_ns
        while left:
            self._now_ns = self.end_ns
            taken = self._monitor.rest(left)
            self._note()
            left -= taken
            self._now_ns += (taken - 1) * self._length_ns
            self.end_ns += (taken - 1) * self._length_ns
        self.skipped_ns += skipped_ns
        self.end_ns += skipped_ns
        self._now_ns += skipped_ns
        # The next window begins here.
        self._monitor.keep_time(self._now)
        self._flow.keep_time(self._now)

    def end(self) -> None:
        """End the present windows as one."""
        self._now_ns = self.end_ns
        self._monitor.joined = (self.end_ns - self._start_ns) // self._length_ns
        self._read_flows()
        items = self._monitor.export()
        for item in items:
            self._publish(item)
        self.errors += [x.text for x in items if isinstance(x, Event) and x.severity == "error"]
        packets = int(self._monitor.latest[0].rows["packets"][0])
        if packets > self._most:
            self._most = packets
            outcomes = ((each.policy.name, each.outcome) for each in self._monitor.statuses())
            self.busiest = {name: outcome.summary for name, outcome in outcomes if outcome}
        self._note()

    def _note(self) -> None:
        """Keep the transitions of the window that has ended, and begin the next one."""
        if self._monitor.transitions:
            findings = {each.policy.name: each.finding for each in self._monitor.policies()}
            seconds = (self.end_ns - self._begin_ns) / 1e9
            for each in self._monitor.transitions:
                finding = findings[each.policy] if each.begins else None
                self.told.append(Told(seconds, each, finding))
        self._flows.clear()
        self.end_ns += self._length_ns
