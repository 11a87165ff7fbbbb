"""A controller without a kernel: it feeds the console windows of made-up flows.

The flows are those of a busy server: most bytes belong to few flows, whose rates wander by some
percent a second and keep roughly their order. With `churn` the rates are thrown anew each second
instead, which no network does, but which is the most that a table can be asked to redraw.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.errors import ProbedeckError
from probes.control_plane import Listener
from probes.flow.records import FLOW, FlowDirection
from probes.hooks.interface_hook import InterfaceHook
from probes.monitor.info import MonitorInfo
from probes.path.records import HOP, HOPS_TABLE, ProbeOutcome
from probes.path.traced import Traced
from probes.reports import BudgetUse, MemoryUse, ProbeInfo
from probes.snapshot import Event, History, HookStatus, Loss, LossReason, Snapshot
from tests.probes.ring.fake import FakeRing

_TCP, _UDP = 6, 17
_PORTS = (443, 80, 22, 5432, 53, 8443, 9092, 16384)
_FRAME_BYTES = 900
_BIT_RATE_SCALE = 2e4
_SPREAD = 2.5
"""Of the logarithm of the rates: the largest flows of 10,000 have some 100 Mbit/s."""


def window(
    rows: Array,
    number: int = 1,
    *,
    seconds: float = 1.0,
    end_ns: int = 0,
    generation: int = 1,
    losses: Mapping[LossReason, Loss] | None = None,
) -> Snapshot:
    """A window of `rows`, dtype FLOW (n,), that ends at `end_ns` (CLOCK_MONOTONIC) or now."""
    end_ns = end_ns or time.monotonic_ns()
    return Snapshot(
        probe="flow",
        interface="eth0",
        window=number,
        generation=generation,
        start_ns=end_ns - round(seconds * 1e9),
        end_ns=end_ns,
        end_utc_ns=time.time_ns(),
        rows=rows,
        losses=losses or {},
        occupancy=0.06,
        swap_ns=60_000,
        drain_ns=2_400_000,
    )


def hops_window(rows: Array, number: int, start_ns: int, end_ns: int) -> Snapshot:
    """A window's table of the path probe, of `rows`, dtype HOP (n,)."""
    made = window(rows, number, seconds=(end_ns - start_ns) / 1e9, end_ns=end_ns)
    return replace(made, probe="path", metric=HOPS_TABLE, occupancy=0.0)


class Flows:
    """Flows that all have packets in each window, at rates that change from one to the next."""

    def __init__(
        self, count: int, *, churn: bool = False, paired: bool = False, seed: int = 1
    ) -> None:
        """`paired`: each second flow is the other direction of the flow before."""
        self._random = random = np.random.default_rng(seed)
        self._churn = churn
        self._typical = random.normal(0.0, _SPREAD, count)
        """Logarithm of the rate, in units of _BIT_RATE_SCALE, that a flow wanders around."""
        self._away = np.zeros(count)
        flow = np.arange(count)
        self._rows = rows = np.zeros(count, FLOW)
        rows["interface"] = b"eth0"
        rows["source"][:, 0], rows["destination"][:, 0] = 10, 10
        rows["source"][:, 1:4] = random.integers(0, 255, (count, 3))
        rows["destination"][:, 1:4] = random.integers(0, 4, (count, 3))
        # Never the same flow twice: the number is in the port and the address.
        rows["source"][:, 1] = flow // 60_000
        rows["source_port"] = 1024 + flow % 60_000
        rows["destination_port"] = random.choice(_PORTS, count)
        rows["protocol"] = np.where(random.random(count) < 0.8, _TCP, _UDP)
        rows["tcp_flags"] = np.where(rows["protocol"] == _TCP, 0x18, 0)
        rows["version"] = 4
        rows["direction"] = random.choice([FlowDirection.INGRESS, FlowDirection.EGRESS], count)
        if paired:
            # In few networks of many hosts, and to one address of this host.
            rows["source"][:, 1:3] = random.integers(0, 4, (count, 2))
            rows["destination"][:] = rows["destination"][0]
            rows["direction"] = FlowDirection.INGRESS
            for end, other in (("source", "destination"), ("destination", "source")):
                for field in ("", "_port"):
                    rows[end + field][1::2] = rows[other + field][::2]
            rows["protocol"][1::2] = rows["protocol"][::2]
            rows["direction"][1::2] = FlowDirection.EGRESS

    def next(self, end_ns: int) -> Array:
        """Rows of dtype FLOW (n,) of the second that ends at `end_ns`."""
        count = len(self._rows)
        if self._churn:
            self._away = self._random.normal(0.0, _SPREAD, count)
        else:
            self._away = 0.98 * self._away + self._random.normal(0.0, 0.03, count)
        rows = self._rows.copy()
        octets = np.exp(self._typical + self._away) * (_BIT_RATE_SCALE / 8)
        rows["packets"] = np.maximum(1, octets / _FRAME_BYTES)
        rows["bytes"] = np.maximum(60 * rows["packets"], octets)
        rows["first_ns"] = end_ns - 900_000_000
        rows["last_ns"] = end_ns - 1_000_000
        return rows


class Routes:
    """Destinations whose every hop is probed at a rate; round-trip times scatter, few are lost."""

    def __init__(self, destinations: int, hops: int, *, rate: int = 20, seed: int = 1) -> None:
        """`rate` is probes a second for each hop."""
        self._random = np.random.default_rng(seed)
        self._rate = rate
        self._sequence = 0
        grid = np.indices((destinations, hops)).reshape(2, -1)
        self._rows = rows = np.zeros(destinations * hops, HOP)
        rows["source"][:, :4] = (192, 0, 2, 1)
        rows["destination"][:, :3] = (198, 51, 100)
        rows["destination"][:, 3] = grid[0] + 1
        rows["protocol"], rows["version"] = _TCP, 4
        rows["source_port"], rows["destination_port"] = 40_000 + grid[0], 443
        rows["hop"] = grid[1] + 1
        rows["responder"][:, 0] = 10
        rows["responder"][:, 1] = grid[0] + 1
        rows["responder"][:, 3] = grid[1] + 1
        self._rtt_ns = (grid[1] + 1) * 2.5e6
        self.traced = tuple(
            Traced(f"198.51.100.{number}", (), hops, tuple(range(1, hops + 1)), (), 0, 0, 0)
            for number in range(1, destinations + 1)
        )

    def next(self, start_ns: int, end_ns: int) -> Array:
        """Rows of dtype HOP (n,) of the probes sent between two times (CLOCK_MONOTONIC)."""
        each = max(1, round(self._rate * (end_ns - start_ns) / 1e9))
        rows = np.tile(self._rows, each)
        number = np.repeat(np.arange(each), len(self._rows))
        rows["sent_ns"] = start_ns + number * ((end_ns - start_ns) // each)
        noise = self._random.lognormal(0.0, 0.3, len(rows))
        rows["received_ns"] = rows["sent_ns"] + (np.tile(self._rtt_ns, each) * noise).astype("i8")
        lost = self._random.random(len(rows)) < 0.01
        rows["outcome"][lost] = ProbeOutcome.UNANSWERED
        rows["received_ns"][lost] = 0
        rows["sequence"] = self._sequence + np.arange(len(rows))
        self._sequence += len(rows)
        return rows


class FakeController(FakeRing):
    """A controller without a kernel; a test publishes any item."""

    def __init__(self) -> None:
        self.history = History()
        self.late_by = 0.0
        self.read_only = ""
        self.interval = 1.0
        self.capture = ""
        self.traces: tuple[Traced, ...] = ()
        """What `traced` returns."""
        self.ended: ProbedeckError | None = None
        """What `failure` returns."""
        self._listener: Listener = lambda _: None

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def publish(self, item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            self.history.append(item)
        self._listener(item)

    def unconfined(self) -> str:
        return ""

    def hook_status(self) -> tuple[HookStatus, ...]:
        modes = {Hook.XDP: "native", Hook.TC_EGRESS: "tcx"}
        return tuple(HookStatus("eth0", hook.value, mode) for hook, mode in modes.items())

    def memory(self) -> MemoryUse:
        return MemoryUse(105 << 20, 256 << 20)

    def budget(self) -> BudgetUse:
        return BudgetUse()

    def hooks(self) -> Sequence[InterfaceHook]:
        return ()

    def probes(self) -> tuple[ProbeInfo, ...]:
        return ()

    def traced(self) -> tuple[Traced, ...]:
        return self.traces

    def monitor(self) -> MonitorInfo | None:
        return None

    def failure(self) -> ProbedeckError | None:
        return self.ended


class Feeder:
    """Publishes from its own thread, like a probe's poller."""

    def __init__(
        self, controller: FakeController, make: Callable[[int, int, int], Snapshot],
        interval: float = 1.0,
    ) -> None:  # fmt: skip
        """`make` gives window number n from its start and end, CLOCK_MONOTONIC."""
        self._controller = controller
        self._make = make
        self._interval = interval
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        end_ns = time.monotonic_ns() - round(self._interval * 1e9)
        for number in itertools.count(1):
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            start_ns, end_ns = end_ns, time.monotonic_ns()
            self._controller.publish(self._make(number, start_ns, end_ns))
            due += self._interval
