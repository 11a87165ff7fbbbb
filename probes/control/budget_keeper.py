"""The steps of the CPU budget, and its thread: it measures the time of user space and of the
kernel, and gives it to the governor."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, cast

from bpf.abi import ProgType
from bpf.programs.trial import floor_ns
from bpf.quantities import percent
from bpf.requirements import losses
from bpf.syscall import enable_run_time_stats, opened
from probes.control.budget import SOURCE, Governor, Resource, Step
from probes.control_plane import Listener
from probes.flow.probe import FlowProbe
from probes.hooks.interface_hook import InterfaceHook
from probes.snapshot import Event, Item, LossReason, Snapshot
from probes.sockets.records import PROBE as SOCKETS

if TYPE_CHECKING:
    from probes.control.running_probe import RunningProbe
    from probes.monitor.control.service import MonitorService
    from probes.sockets.probe import SocketsProbe

OWNERS_EVERY = 4
"""Windows of flows for one with owners."""
LONGER = 4
"""How many times as long windows of flows are."""
_LONGEST_S = 300.0


class BudgetHost(Protocol):
    """Parts of a controller that the steps turn."""

    def built_in(self, name: str) -> RunningProbe | None:
        """Return a built-in probe that runs; None if it does not."""

    def monitored(self) -> MonitorService | None:
        """Return the monitor; None if it does not run."""


def flow_probe(host: BudgetHost) -> FlowProbe | None:
    """Return the flow probe; None if it does not run."""
    running = host.built_in(FlowProbe.name)
    return cast(FlowProbe, running.probe) if running else None


_USER = frozenset({Resource.USER})
_BOTH = frozenset(Resource)


def _owners(host: BudgetHost, on: bool) -> None:
    if running := host.built_in(SOCKETS):
        cast("SocketsProbe", running.probe).every = OWNERS_EVERY if on else 1


def _longer(host: BudgetHost, on: bool) -> None:
    if running := host.built_in(FlowProbe.name):
        running.interval = min(running.probe.interval * (LONGER if on else 1), _LONGEST_S)


def _applications(host: BudgetHost, on: bool) -> None:
    if service := host.monitored():
        service.hold_applications(on)


def _monitor(host: BudgetHost, on: bool) -> None:
    if service := host.monitored():
        service.probe.suspended = on


def _flows(host: BudgetHost, on: bool) -> None:
    if flows := flow_probe(host):
        flows.turn_off(on)


def _has_flows(host: BudgetHost) -> bool:
    return flow_probe(host) is not None


def _runs_applications(host: BudgetHost) -> bool:
    service = host.monitored()
    return service is not None and bool(service.probe.router.running())


STEPS: tuple[Step[BudgetHost], ...] = (
    Step(
        "owners", f"owners of flows only in each window of {OWNERS_EVERY}",
        "owners of flows in every window", _USER,
        lambda host: host.built_in(SOCKETS) is not None, _owners,
    ),
    Step(
        "windows", f"windows of flows last {LONGER} times as long",
        "windows of flows have their own length", _USER, _has_flows, _longer,
    ),
    Step(
        "largest", "windows have their largest flows only, and count the packets of the others",
        "windows have all flows", _USER, _has_flows, lambda host, on: None, limits_rows=True,
    ),
    Step(
        "applications", "applications of policies get no packets", "applications get packets",
        _BOTH, _runs_applications, _applications,
    ),
    Step(
        "monitor", "the monitor sees no packets", "the monitor sees packets",
        _BOTH, lambda host: host.monitored() is not None, _monitor,
    ),
    Step(
        "flows", "packets are counted in no flow", "packets are counted in flows",
        _BOTH, _has_flows, _flows,
    ),
)  # fmt: skip
"""The steps of a run, in their order; they end in the opposite order."""


_TICK_S = 1.0
_SURE = 0.05
"""Share of a core from which the first seconds of an alarm fit, too."""
_KERNEL_TICKS = 5
"""Ticks from one measurement of the kernel's share to the next."""


class KeptHost(BudgetHost, Protocol):
    """A controller, as the budget needs it."""

    governor: Governor[BudgetHost] | None

    def listen(self, listener: Listener) -> None: ...

    def publish(self, item: Item) -> None: ...

    def hooks(self) -> Sequence[InterfaceHook]: ...


class BudgetKeeper:
    """Keeps a controller within a share of a core."""

    def __init__(
        self, host: KeptHost, share: float, *, draws: bool, is_usual: bool = False
    ) -> None:
        """`draws`: whether the main thread of this process draws a console. `is_usual`: whether
        nobody asked for the share; then only the doctor tells which rights are missing."""
        self._host, self._share, self._is_usual = host, share, is_usual
        self.used = CollectorTime(draws=draws)
        """Returns the CPU seconds of user space so far."""
        self._governor = Governor[BudgetHost](host, share, STEPS, host.publish)
        self._stopping = threading.Event()
        self._kernel: KernelTime | None = None
        self._thread = threading.Thread(target=self._run, name="budget", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the budget during the block."""
        if flows := flow_probe(self._host):
            flows.most_rows = lambda: self._governor.most_rows(time.monotonic(), self.used())
        self._host.listen(self._take)
        self._host.governor = self._governor
        # Modules and probes stay. To look through them for garbage takes 40 ms, 2 % of two seconds.
        gc.freeze()
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            gc.unfreeze()

    def _take(self, item: Item) -> None:
        if not isinstance(item, Snapshot) or (item.probe, item.metric) != (FlowProbe.name, ""):
            return
        lost = sum(loss.packets for loss in item.losses.values())
        packets = int(item.rows["packets"].sum()) + lost
        cut = LossReason.BUDGET in item.losses and len(item.rows) > 0
        seconds = max(item.seconds, 1e-3)
        self._governor.window(time.monotonic(), len(item.rows), packets / seconds, cut=cut)

    def _run(self) -> None:
        if self._share < _SURE:
            text = f"below {percent(_SURE)}, the first seconds of an alarm may use more"
            self._host.publish(Event.now("warning", SOURCE, text))
        try:
            self._kernel = KernelTime()
        except OSError as error:
            lost = losses("budget")
            text = lost or f"only user space has a budget: no times ({error.strerror})"
            if not (lost and self._is_usual):
                self._host.publish(Event.now("warning", SOURCE, text))
        ticks = 0
        while not self._stopping.wait(_TICK_S):
            ticks += 1
            kernel = None if ticks % _KERNEL_TICKS else self._kernel_share()
            self._governor.tick(time.monotonic(), self.used(), kernel)

    def _kernel_share(self) -> float | None:
        try:
            return self._kernel.share(self._host.hooks()) if self._kernel else None
        except OSError:
            return None  # A hook was detached meanwhile.


_COLLECTORS = ("poll ", "output ", "health ", "hooks", "tables", "api", "budget")
"""How names of threads begin whose work returns with each window."""
_PER_THREAD, _SCHEDULED = 4, 2
"""Bits of a clock's number: CPUCLOCK_PERTHREAD, CPUCLOCK_SCHED (include/linux/posix-timers.h)."""
_SAMPLE_S = 0.05


class CollectorTime:
    """CPU seconds of this process without the console and without work by request.

    Threads of libc, such as the visitors of a grace period, belong to the collector. Compile
    helpers are other processes, and work by request.
    """

    def __init__(self, *, draws: bool) -> None:
        """`draws`: whether the main thread draws a console. Otherwise it writes tables."""
        self._draws = draws
        self._seen: dict[int, float] = {}
        self._others = 0.0
        self._lock = threading.Lock()
        self._began = 0.0
        self._began = self()

    def __call__(self) -> float:
        """Return the seconds since the start."""
        with self._lock:
            seen: dict[int, float] = {}
            for thread in threading.enumerate():
                is_main = thread is threading.main_thread()
                collects = not self._draws if is_main else thread.name.startswith(_COLLECTORS)
                if (number := thread.native_id) is None or collects:
                    continue
                with suppress(OSError):  # It has ended.
                    # The clock of pthread_getcpuclockid.
                    clock = ~number << 3 | _PER_THREAD | _SCHEDULED
                    seen[number] = time.clock_gettime(clock)
                    self._others += max(0.0, seen[number] - self._seen.get(number, 0.0))
            self._seen = seen
            return time.process_time() - self._others - self._began


class KernelTime:
    """The share of a core that the programs of hooks take, by the kernel's run-time statistics.

    They cover all programs of a chain, on the real packets. They are on for 50 ms at a time, as
    they cost each packet some 60 ns; their own part of the measured time is subtracted.
    """

    def __init__(self) -> None:
        """Raises OSError without the right to turn statistics on."""
        self._floor_ns = floor_ns(ProgType.SCHED_CLS, by_statistics=True)

    def share(self, hooks: Sequence[InterfaceHook]) -> float:
        """Measure for 50 ms. Raises OSError."""
        with opened(enable_run_time_stats()):
            began, before = time.monotonic_ns(), _totals(hooks)
            time.sleep(_SAMPLE_S)
            passed_ns, after = time.monotonic_ns() - began, _totals(hooks)
        spent = 0.0
        for number in before.keys() & after.keys():
            ns, runs = (now - then for now, then in zip(after[number], before[number], strict=True))
            spent += max(0.0, ns - runs * self._floor_ns)
        return spent / passed_ns


def _totals(hooks: Collection[InterfaceHook]) -> dict[int, tuple[int, int]]:
    """Return nanoseconds and runs of each hook's chain, by the id of its program."""
    infos = [hook.chain.info() for hook in hooks]
    return {info.id: (info.run_time_ns, info.run_count) for info in infos}
