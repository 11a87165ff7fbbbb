"""Numbers of one host, from the records of its stream."""

from __future__ import annotations

import math

from app.api.wire import Lost
from app.outputs.view import is_table
from probes.flow.probe import FlowProbe
from probes.monitor import state as monitor
from probes.monitor.state import PolicyState
from probes.snapshot import Loss, LossReason, Snapshot, add_losses

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
        self._received = 0
        """Bytes since the last tick."""

    def receive(self, part: bytes) -> None:
        self._received += len(part)

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

    def miss(self, lost: Lost) -> None:
        self.behind += sum(lost.windows.values())

    def tick(self, seconds: float) -> None:
        """Take the bytes received in the last `seconds` into the rate."""
        self.received_s += _SMOOTHING * (self._received / seconds - self.received_s)
        self._received = 0

    def silence(self) -> None:
        """Forget rates: the host is not followed any more."""
        self.packets_s = self.bits_s = self.received_s = 0.0
        self.flows, self.active, self.lag_s = 0, (), math.nan
        self._received = 0
