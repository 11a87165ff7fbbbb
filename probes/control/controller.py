"""The controller: built-in probes and their services, beside users' probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from bpf.attach.group import InterfaceGroup
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError
from bpf.maps.kinds import unlock
from bpf.quantities import duration
from probes.control.builtin_probes import (
    FLOW_PROBE,
    MONITOR_PROBE,
    PATH_PROBE,
    RING_PROBE,
    SEGMENT_PROBE,
    BuiltinEntry,
    O,
    P,
    ProbeHost,
    optional,
)
from probes.control.probe_runner import ProbeRunner
from probes.control.services import JobLosses, PathControl, SegmentService
from probes.control.trials import passes
from probes.flow.filter import FlowFilter
from probes.hooks import on_best_hook
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.options import MonitorOptions
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.traced import Traced
from probes.reports import BudgetUse, Compatibility, Replacement
from probes.ring.options import RingOptions
from probes.ring.service import RingService
from probes.segment.options import SegmentOptions
from probes.snapshot import NOT_COUNTED, Event, Item, Snapshot
from probes.switches import SWITCHES, ProbePlace

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.control.budget import Governor
    from probes.control.budget_keeper import BudgetHost
    from probes.control.running_probe import RunningProbe
    from probes.monitor.applications.application import ApplicationProbe
    from probes.monitor.control.service import MonitorService
    from probes.monitor.policy import Policy
    from probes.monitor.sketch import Sketch
    from probes.ring.probe import RingProbe
    from probes.segment.probe import SegmentProbe

_LONGEST_WAIT_S = 1.0
"""Longest wait for a window of flows; the monitor's kernel programs count on meanwhile."""
_OVERLAP = 0.1
"""Windows that overlap by a smaller share of the shorter one only end or begin together."""


@runtime_checkable
class ListeningProbe(Protocol):
    """An optional probe that takes what other probes publish."""

    @property
    def has_ended(self) -> bool: ...

    def take(self, item: Item) -> None: ...


class Controller(ProbeRunner):
    """The `ControlPlane` of this host."""

    def __init__(self, *, by_link: bool = True) -> None:
        unlock()
        super().__init__(Compiler(), by_link=by_link)
        self._compiler.warn = lambda text: self.publish(Event.now("warning", "compiler", text))
        self.paths = PathControl(
            self._changing, self._hooks, self._running,
            lambda name, options: self.start(PATH_PROBE, name, options), self._remove,
            self._pop_running,
        )  # fmt: skip
        """Path tracing: for policies, also if the controller is read-only."""
        self.governor: Governor[BudgetHost] | None = None
        """Keeps the CPU budget of the run; None without a budget."""
        self._service: MonitorService | None = None
        self.allow_actions = False
        """Whether policies of a monitor that starts later may act on packets."""

        def start_segment(options: SegmentOptions) -> SegmentProbe:
            self._refuse_changes()
            interface = self.paths.interface
            if interface is None:
                raise UsageError("no interface is watched whose packets could be compared")
            if isinstance(interface, InterfaceGroup):
                raise UsageError(
                    f"a segment is of one interface, and {interface.name} may be several",
                    hint="run probedeck with -i NAME on this host",
                )
            return self.start(SEGMENT_PROBE, interface.name, options)

        def end_segment() -> None:
            text = "ends: nobody has renewed its lease"
            self.publish(Event.now("info", SEGMENT_PROBE.name, text))
            self._remove(SEGMENT_PROBE.name)

        segments = SegmentService(
            self._changing, start_segment, end_segment, lambda: self._probe_of(SEGMENT_PROBE)
        )
        self.segment, self.measure_segment = segments.segment, segments.measure_segment

        def start_ring(options: RingOptions) -> RingProbe:
            if self.paths.interface is None:
                raise UsageError("no interface is watched whose packets could be kept")
            return self.start(RING_PROBE, self.paths.interface.name, options)

        self.packets = packets = RingService(
            self._changing, start_ring, lambda: self._remove(RING_PROBE.name),
            lambda: self._probe_of(RING_PROBE), self._refuse_changes, self.publish,
        )  # fmt: skip
        """The packet ring: for policies, also if the controller is read-only."""
        self.ring, self.kept_packets = packets.ring, packets.kept_packets
        self.keep_packets, self.release_packets = packets.keep_packets, packets.release_packets
        self.write_packets = packets.write_packets
        self._job_losses = JobLosses(self.publish)
        self._listening: dict[str, ListeningProbe] = {}
        """By name, the optional probes that were started last; they may have ended."""

    def start(
        self,
        entry: BuiltinEntry[P, O],
        interface_name: str,
        options: O,
        *,
        first: float | None = None,
    ) -> P:
        """Start a built-in probe on an interface. Its first window lasts `first` seconds, if given.

        Raises UsageError for an unknown interface or impossible options, and KernelError or
        ProbedeckError if it can't attach.
        """
        interface = self._hooks.find(interface_name)
        with self._changing:
            self._running.refuse_twice(entry.name)
            used = self._memory_used()
            host = ProbeHost(self._compiler, self._hooks, self.memory_limit, used, self.publish)
            probe = on_best_hook(entry.prepare(host, interface, options))
            running = self._running.start(probe, first)
            if entry.passes_all:
                running.verdicts = passes(probe.programs())
        self._job_losses.tell(entry.name)
        if isinstance(interface, InterfaceGroup) and interface.is_everywhere:
            self._job_losses.tell("namespaces")
        return probe

    def budget(self) -> BudgetUse:
        return self.governor.state() if self.governor else BudgetUse()

    def built_in(self, name: str) -> RunningProbe | None:
        """Return a built-in probe that runs; None if it does not."""
        return self._running.built_in(name)

    def _probe_of(self, entry: BuiltinEntry[P, O]) -> P | None:
        running = self.built_in(entry.name)
        return cast(P, running.probe) if running else None

    @property
    def interval(self) -> float:
        intervals = {running.name: running.interval for running in self._running}
        return intervals.get(FLOW_PROBE.name) or max(intervals.values(), default=0.0)

    @property
    def capture(self) -> str:
        probe = self._probe_of(FLOW_PROBE)
        return probe.capture.text if probe else ""

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        self._refuse_changes()
        self._running.find(FLOW_PROBE.name)
        probe = self._probe_of(FLOW_PROBE)
        if probe is None:
            raise UsageError(f"probe {FLOW_PROBE.name} is not the built-in one")
        seconds = probe.reconfigure(capture)
        what = capture.text or "every flow"
        text = f"generation {probe.generation} counts {what}; it took {duration(seconds)}"
        self.publish(Event.now("info", FLOW_PROBE.name, text))
        return Replacement(probe.generation, seconds, Compatibility())

    @property
    def path_options(self) -> PathOptions:
        return self.paths.options

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        self._refuse_changes()
        self.paths.change(options)

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        self._refuse_changes()
        self.paths.trace(destination, flow, own)

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        self._refuse_changes()
        self.paths.untrace(destination, flow)

    def traced(self) -> tuple[Traced, ...]:
        return self.paths.traced()

    def watch_metrics(
        self,
        interface_name: str,
        options: MonitorOptions = MonitorOptions(),  # noqa: B008 - immutable
        *,
        policies: Sequence[Policy] = (),
        profiles: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        applications: Sequence[ProbeConfig] = (),
        late: bool = False,
    ) -> None:
        """Start the monitor on an interface (S2). `late`: built-in applications are loaded when a
        policy first needs them, and an end of the run does not wait for the other policies.

        Raises UsageError for an unknown interface and for policies that don't fit, KernelError or
        ProbedeckError if it can't attach. On an error, nothing of it runs on.
        """
        from probes.monitor.control.service import MonitorService

        with self._changing, ExitStack() as undo:
            probe = self.start(MONITOR_PROBE, interface_name, options)
            undo.callback(self._remove, MONITOR_PROBE.name)
            if options.allow_actions:
                self._job_losses.tell("actions")
            service = self._service = MonitorService(self, probe, profiles)
            for application in applications:
                self.add(application)
            for policy in () if late else policies:
                service.set_policy(policy)
            undo.pop_all()
        for policy in policies if late else ():
            with self._changing:
                if self._is_closing or self.monitored() is not service:
                    return
                service.set_policy(policy, late=True)
        if note := probe.offload:
            self.publish(Event.now("warning", MONITOR_PROBE.name, note))

    def switch(self, name: str, on: bool) -> None:
        self._refuse_changes()
        switch = SWITCHES[name]
        with self._changing:
            running = self._running.get(name)
            runs = running is not None and running.probe.builtin
            if on and not runs:
                flows = self._probe_of(FLOW_PROBE)
                names = {
                    ProbePlace.WATCHED: self.paths.interface.name if self.paths.interface else "",
                    ProbePlace.FLOWS: flows.interface.name if flows else "",
                    # Each namespace has this one.
                    ProbePlace.HOST: "lo",
                }
                if not (interface := names[switch.place]):
                    raise UsageError(switch.lacks)
                probe = self.start(optional(switch), interface, self.interval or 1.0)
                if isinstance(probe, ListeningProbe):
                    # An ended probe takes nothing.
                    self.listen(probe.take)
                    self._listening[name] = probe
            elif runs and not on:
                self._remove(name)

    def looks_for_owners(self) -> bool:
        """Whether windows of flows get owners: the probe of sockets has not ended."""
        probe = self._listening.get("sockets")
        return probe is not None and not probe.has_ended

    def monitor(self) -> MonitorInfo | None:
        service = self.monitored()
        return service.info() if service else None

    def load_application(self, config: ProbeConfig) -> None:
        """Load an application for a policy, also if the controller is read-only."""
        on_best_hook(lambda: self._add(config, force=False))

    def applications(self) -> Sequence[ApplicationProbe]:
        from probes.monitor.applications.application import ApplicationProbe

        every = [running.probe for running in self._running]
        return [probe for probe in every if isinstance(probe, ApplicationProbe)]

    def flow_windows(
        self, interface: str, start_ns: int, end_ns: int
    ) -> tuple[Sequence[Snapshot], str]:
        running, probe = self._running.get(FLOW_PROBE.name), self._probe_of(FLOW_PROBE)
        if running is None or probe is None:
            return (), "no flow probe runs"
        if probe.interface.name != interface:
            return (), f"the flow probe watches {probe.interface.name}, not {interface}"
        in_time = running.wait_for(end_ns, _LONGEST_WAIT_S)
        windows = [
            window
            for window in self.history.snapshots(FLOW_PROBE.name, "")
            if min(window.end_ns, end_ns) - max(window.start_ns, start_ns)
            > _OVERLAP * min(window.end_ns - window.start_ns, end_ns - start_ns)
        ]
        if not windows:
            return (), "the flow probe's window did not end in time"
        notes = [
            "" if in_time else "the newest flows are missing",
            f"only flows of the capture {probe.capture.text}" if probe.capture else "",
            f"other flows are {NOT_COUNTED}" if any(window.cut for window in windows) else "",
        ]
        return windows, ", ".join(filter(None, notes))

    def set_policy(self, policy: Policy) -> PolicyInfo:
        """Add or replace a policy. If no monitor runs, start one on the interface of tracing.

        A refused policy starts neither a monitor nor applications.
        """
        self._refuse_changes()
        with self._changing:
            if self.monitored() is None and (interface := self.paths.interface):
                from probes.monitor.policy import BUILT_IN, check_names

                check_names(policy, BUILT_IN, {})
                ingress = self.paths.options.ingress
                monitor = MonitorOptions(ingress=ingress, allow_actions=self.allow_actions)
                self.watch_metrics(interface.name, monitor, policies=[policy])
                return self._monitored().policy(policy.name)
            return self._monitored().set_policy(policy)

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        self._refuse_changes()
        service = self.monitored()
        if service and not force and (policy := service.active_policy(name)):
            raise UsageError(
                f"{name} is not removed: the active policy {policy} runs it",
                hint=f"deactivate or remove {policy} first; --force removes {name} anyway",
            )
        return self._remove(name)

    def remove_policy(self, name: str) -> None:
        self._refuse_changes()
        with self._changing:
            self._monitored().remove_policy(name)

    def activate_policy(self, name: str) -> PolicyInfo:
        self._refuse_changes()
        service = self._monitored()
        service.probe.activate(name)
        return service.policy(name)

    def deactivate_policy(self, name: str) -> PolicyInfo:
        self._refuse_changes()
        service = self._monitored()
        service.probe.deactivate(name)
        return service.policy(name)

    def stop_actions(self) -> int:
        self._refuse_changes()
        service = self.monitored()
        return service.probe.stop_actions() if service else 0

    def sketch(self, windows: int = 1) -> Sketch:
        return self._monitored().probe.sketch(windows)

    def failure(self) -> ProbedeckError | None:
        """Return the error that ended the flow probe, or all probes; None while one runs."""
        failures = {running.name: running.failure for running in self._running}
        own = failures.get(FLOW_PROBE.name)
        if own or not failures or not all(failures.values()):
            return own
        return next(iter(failures.values()))

    def monitored(self) -> MonitorService | None:
        """Return the monitor; None if it does not run."""
        service = self._service
        return service if service and service.probe is self._probe_of(MONITOR_PROBE) else None

    def _monitored(self) -> MonitorService:
        if service := self.monitored():
            return service
        raise UsageError("no monitor runs", hint="start with --monitor, or with a policy")
