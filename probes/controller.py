"""The controller: the one compile helper, the hooks, and every probe that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from bpf import interface as interfaces
from bpf.attach import Hook
from bpf.compiler import Compiler
from bpf.errors import DeckError
from bpf.interface import Interface
from probes.flow import Direction, FlowFilter, FlowProbe
from probes.hook import HookPoint
from probes.probe import Poller
from probes.snapshot import Event, History, Snapshot

Listener = Callable[[Snapshot | Event], None]


class Controller:
    """Runs probes, and tells its listener of each window and event, from the probes' threads."""

    def __init__(self, *, by_link: bool = True) -> None:
        self.history = History()
        """The last snapshots of every probe."""
        self._by_link = by_link
        self._compiler = Compiler()
        self._points: dict[tuple[int, Hook], HookPoint] = {}
        self._probes: list[tuple[FlowProbe, Poller]] = []
        self._listener: Listener = lambda _: None

    def listen(self, listener: Listener) -> None:
        """Have `listener` called, by any thread, with all that is published from now on."""
        self._listener = listener

    def watch_flows(
        self,
        interface_name: str,
        *,
        interval: float = 1.0,
        ingress: Hook = Hook.XDP,
        capture: FlowFilter = FlowFilter(),  # noqa: B008 - immutable
        first: float | None = None,
    ) -> FlowProbe:
        """Start the flow probe on an interface; `ingress` is XDP or TC_INGRESS.

        Windows last `interval` seconds, the first one `first` where it is given.

        Raises UsageError for an unknown interface, KernelError or DeckError where it can't attach.
        """
        interface = interfaces.find(interface_name)
        if not interface.ethernet:
            # XDP promises an Ethernet header; drivers of such interfaces differ in what they give.
            ingress = Hook.TC_INGRESS
        points = [
            (self._point(interface, ingress), Direction.INGRESS),
            (self._point(interface, Hook.TC_EGRESS), Direction.EGRESS),
        ]
        # Attached last: what does not compile must not touch the interface.
        probe = FlowProbe(self._compiler, interface, points, capture)
        try:
            for point, _ in points:
                self._attach(point)
        except DeckError:
            probe.close()
            raise
        poller = Poller(probe, interval, self.publish, first=first)
        self._probes.append((probe, poller))
        poller.start()
        return probe

    def publish(self, item: Snapshot | Event) -> None:
        """Keep a snapshot in the history, and tell the listener."""
        if isinstance(item, Snapshot):
            self.history.append(item)
        self._listener(item)

    def modes(self) -> dict[str, str]:
        """How each hook in use is attached, by the hook's name."""
        return {point.hook.value: point.mode for point in self._points.values()}

    def hooks(self) -> Sequence[HookPoint]:
        """Every hook in use."""
        return tuple(self._points.values())

    def failure(self) -> DeckError | None:
        """Why a probe ended by itself; None while all run."""
        return next((poller.failure for _, poller in self._probes if poller.failure), None)

    def close(self) -> None:
        """Poll every probe a last time, publish that, and detach everything."""
        for _, poller in self._probes:
            poller.stop()
        for probe, _ in self._probes:
            probe.close()
        self._probes.clear()
        for point in self._points.values():
            point.close()
        self._points.clear()
        self._compiler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _point(self, interface: Interface, hook: Hook) -> HookPoint:
        key = (interface.index, hook)
        if key not in self._points:
            self._points[key] = HookPoint(interface, hook)
        return self._points[key]

    def _attach(self, point: HookPoint) -> None:
        if point.attachment is None:
            note = point.attach(by_link=self._by_link).note
            text = f"{point.hook.value}: {point.mode}" + (f" ({note})" if note else "")
            self.publish(Event.now("info", point.interface.name, text))
