"""Numbers of one host, from the records of its stream, and its clock."""

from __future__ import annotations

import math

from app.outputs.view import is_table
from probes.flow.probe import FlowProbe
from probes.monitor import state as monitor
from probes.monitor.state import PolicyState
from probes.snapshot import Loss, LossReason, Snapshot, add_losses

_DRIFT = 30e-6
"""Seconds per second that two clocks drift apart at most: twice PHI of RFC 5905, section 7.1."""
_SMOOTHING = 0.3
"""Weight of the last second in the bytes per second of a stream."""


class Tally:
    """Numbers of one host since the hub follows it. HostState documents the fields."""

    def __init__(self) -> None:
        self.packets_s = self.bits_s = self.received_s = 0.0
        self.flows = self.behind = 0
        self.lag_s = math.nan
        self.losses: dict[LossReason, Loss] = {}
        self.active: tuple[str, ...] = ()
        self.interfaces: tuple[str, ...] = ()
        self.received = 0
        """Bytes since the last tick."""

    def add(self, table: Snapshot) -> None:
        """Count a table of the host."""
        add_losses(self.losses, table.losses)
        if table.interface and table.interface not in self.interfaces:
            self.interfaces = tuple(sorted((*self.interfaces, table.interface)))
        if is_table(table, FlowProbe.name, ""):
            seconds = max(table.seconds, 1e-9)
            sums = {
                unit: int(table.rows[unit].sum()) + sum(getattr(one, unit) for one in table.rest)
                for unit in ("packets", "bytes")
            }
            self.packets_s, self.bits_s = sums["packets"] / seconds, 8 * sums["bytes"] / seconds
            self.flows = len(table.rows) + sum(one.flows for one in table.rest)
        elif is_table(table, monitor.PROBE, monitor.POLICIES_TABLE):
            running = [state.value for state in PolicyState if state.runs]
            names = table.rows["policy"][[one in running for one in table.rows["state"].tolist()]]
            self.active = tuple(name.decode() for name in names.tolist())

    def tick(self, seconds: float) -> None:
        """Take the bytes received in the last `seconds` into the rate."""
        self.received_s += _SMOOTHING * (self.received / seconds - self.received_s)
        self.received = 0

    def silence(self) -> None:
        """Forget rates: the host is not followed any more."""
        self.packets_s = self.bits_s = self.received_s = 0.0
        self.flows, self.active, self.lag_s = 0, (), math.nan
        self.received = 0


class ClockOffset:
    """Bounds of the other host's clock minus the clock here.

    An answer that says the other clock's time was made after its request was sent, and before it
    was received here. So each answer bounds the offset, however long it took and whichever way
    took longer. The bounds of several answers are intersected, and widen by the clocks' drift.
    """

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf
        """Seconds, at the monotonic time `_at`."""
        self._at = 0.0

    def add(self, sent_ns: int, remote_ns: int, received_ns: int, now: float) -> None:
        """Add an answer: its request was sent at `sent_ns`, it came at `received_ns`, both by the
        clock here, and says `remote_ns`: nanoseconds since the epoch. `now`: monotonic seconds."""
        low, high = (remote_ns - received_ns) / 1e9, (remote_ns - sent_ns) / 1e9
        if low > high:
            return  # the clock here was set back meanwhile
        widened = _DRIFT * (now - self._at)
        before = self._low - widened, self._high + widened
        self._low, self._high, self._at = max(low, before[0]), min(high, before[1]), now
        if self._low > self._high:
            # One of the clocks was set: earlier answers are void.
            self._low, self._high = low, high

    def at(self, now: float) -> tuple[float, float]:
        """Return the offset and its largest error in seconds; NaN and infinity before an answer."""
        if math.isinf(self._low):
            return math.nan, math.inf
        error = (self._high - self._low) / 2 + _DRIFT * (now - self._at)
        return (self._low + self._high) / 2, error
