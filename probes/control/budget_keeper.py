"""The thread of the CPU budget: it measures the use, and gives it to the governor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from probes.control.budget import SOURCE, Governor
from probes.control.budget_steps import STEPS, BudgetHost, flow_probe
from probes.control.cpu_use import CollectorTime, KernelTime
from probes.control_plane import Listener
from probes.flow.probe import FlowProbe
from probes.snapshot import Event, Item, LossReason, Snapshot

if TYPE_CHECKING:
    from probes.hooks.interface_hook import InterfaceHook

_TICK_S = 1.0
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

    def __init__(self, host: KeptHost, share: float, *, draws: bool) -> None:
        """`draws`: whether the main thread of this process draws a console."""
        self._host = host
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
            flows.most_rows = self._most_rows
        self._host.listen(self._take)
        self._host.governor = self._governor
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()

    def _most_rows(self) -> int:
        return self._governor.most_rows(time.monotonic(), self.used())

    def _take(self, item: Item) -> None:
        if not isinstance(item, Snapshot) or (item.probe, item.metric) != (FlowProbe.name, ""):
            return
        lost = sum(loss.packets for loss in item.losses.values())
        packets = int(item.rows["packets"].sum()) + lost
        cut = LossReason.BUDGET in item.losses and len(item.rows) > 0
        seconds = max(item.seconds, 1e-3)
        self._governor.window(time.monotonic(), len(item.rows), packets / seconds, cut=cut)

    def _run(self) -> None:
        try:
            self._kernel = KernelTime()
        except OSError as error:
            text = f"only user space has a budget: the kernel keeps no times ({error.strerror})"
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
