"""The controller: flows, paths and the monitor, beside whatever else is to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from bpf.attach import interface as interfaces
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError
from bpf.maps.memory import unlock
from bpf.programs import trial
from bpf.programs.verdict import VERDICT_PASS
from probes.control.runner import ProbeRunner
from probes.control_plane import Replacement
from probes.flow.filter import FlowFilter
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection
from probes.flow.sizes import TableSizes
from probes.memory_limit import flow_share, path_share, refuse_over, size_text
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.options import MonitorOptions
from probes.monitor.state import PROBE
from probes.path.options import PathOptions, TracedFlow
from probes.path.traced import Traced
from probes.reports import Compatibility
from probes.snapshot import Event, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.monitor.applications.application import ApplicationProbe
    from probes.monitor.policy import Policy
    from probes.monitor.service import MonitorService
    from probes.monitor.sketch import Sketch
    from probes.path.probe import PathProbe


class Controller(ProbeRunner):
    """The `ControlPlane` of this host: every probe, and those that come with probedeck."""

    def __init__(self, *, by_link: bool = True) -> None:
        unlock()
        super().__init__(Compiler(), by_link=by_link)
        self._tracing: tuple[Interface, Hook | None, PathOptions] | None = None
        """Where and how paths are traced, once that is asked for."""
        self._triggers: MonitorService | None = None

    def watch_flows(
        self,
        interface_name: str,
        *,
        interval: float = 1.0,
        ingress: Hook | None = None,
        capture: FlowFilter = FlowFilter(),  # noqa: B008 - immutable
        first: float | None = None,
    ) -> FlowProbe:
        """Start the flow probe on an interface.

        `ingress` is XDP, TC_INGRESS, or None for the hook that suits the interface.

        Windows last `interval` seconds, the first one `first` if that is given.

        Raises UsageError for an unknown interface, ProbedeckError if it can't attach.
        """
        interface = interfaces.find(interface_name)

        with self._changing:
            self._refuse_twice(FlowProbe.name)
            sizes, memory = self._flow_sizes()

            def make() -> FlowProbe:
                hook = self._hooks.choose(interface, ingress).hook
                where = ((hook, FlowDirection.INGRESS), (Hook.TC_EGRESS, FlowDirection.EGRESS))
                return FlowProbe(
                    self._compiler,
                    interface,
                    where,
                    self._hooks,
                    capture,
                    sizes,
                    memory=memory,
                    interval=interval,
                )

            probe = self._placed(make)
            running = self._run(probe, interval, first)
            running.verdicts = {  # flow.c only counts
                program.side: dict.fromkeys(
                    trial.FRAMES, VERDICT_PASS[Hook(program.hook).prog_type]
                )
                for program in probe.programs()
            }
        return probe

    def _flow_sizes(self) -> tuple[TableSizes, int]:
        """Sizes of the flow tables, which are announced before they are allocated, and the bytes
        that the tables may take."""
        used, limit = self.memory().used, self.memory_limit
        memory = flow_share(limit)
        if limit - used < memory:
            refuse_over(limit, used, TableSizes.least().memory, FlowProbe.name)
            memory = limit - used
        sizes = TableSizes.within(memory)
        text = f"the tables take {sizes.summary} (--memory: {size_text(limit)})"
        self.publish(Event.now("info", FlowProbe.name, text))
        return sizes, memory

    @property
    def interval(self) -> float:
        """Seconds of a window of the flow probe; without it the longest interval of all probes.

        0 if only exports end windows.
        """
        intervals = {name: each.interval for name, each in tuple(self._running.items())}
        return intervals.get(FlowProbe.name) or max(intervals.values(), default=0.0)

    @property
    def capture(self) -> str:
        """The filter of the flows that the flow probe counts; empty if it counts every flow."""
        running = self._running.get(FlowProbe.name)
        probe = running.probe if running else None
        return probe.capture.text if isinstance(probe, FlowProbe) else ""

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        """Have the flow probe count other flows from now on (S4.3)."""
        self._refuse_changes()
        probe = self._find(FlowProbe.name).probe
        if not isinstance(probe, FlowProbe):
            raise UsageError(f"probe {probe.name} is not the built-in one")
        seconds = probe.reconfigure(capture)
        what = capture.text or "every flow"
        text = f"generation {probe.generation} counts {what}; it took {seconds * 1e3:.0f} ms"
        self.publish(Event.now("info", FlowProbe.name, text))
        return Replacement(probe.generation, seconds, Compatibility((), (), (), ()))

    def configure_paths(
        self,
        interface_name: str,
        ingress: Hook | None = None,
        options: PathOptions = PathOptions(),  # noqa: B008 - immutable
    ) -> None:
        """Set where and how `trace` traces paths; without `ingress`, at the hook that suits.

        Raises UsageError for an unknown interface or impossible options.
        """
        options.check()
        self._tracing = interfaces.find(interface_name), ingress, options

    def trace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Trace the path of every flow to an address, or of `flow` (S3.1), from now on."""
        self._refuse_changes()
        self.trace_flow(destination, flow)

    def trace_flow(self, destination: str, flow: TracedFlow | None) -> None:
        """As `trace`, for a policy: not refused where an operator's changes are."""
        with self._changing:
            probe = self._path_probe()
            started = probe or self._start_path_probe()
            try:
                started.trace(destination, flow)
            except BaseException:
                if probe is None:
                    self._finish(self._taken_out(started.name))
                raise

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Stop that, of all its flows where none is given. The last one ends the path probe."""
        self._refuse_changes()
        self.untrace_flow(destination, flow)

    def untrace_flow(self, destination: str, flow: TracedFlow | None) -> None:
        """As `untrace`, for a policy."""
        with self._changing:
            probe = self._path_probe()
            if probe is None:
                raise UsageError("nothing is traced")
            probe.untrace(destination, flow)
            if probe.traced():
                return
            running = self._taken_out(probe.name)
        self._finish(running)

    def traced(self) -> tuple[Traced, ...]:
        """What is traced, in the order in which it was asked for."""
        probe = self._path_probe()
        return probe.traced() if probe else ()

    def watch_metrics(
        self,
        interface_name: str,
        options: MonitorOptions = MonitorOptions(),  # noqa: B008 - immutable
        *,
        policies: Sequence[Policy] = (),
        profiles: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        applications: Sequence[ProbeConfig] = (),
    ) -> None:
        """Start the monitor on an interface (S2).

        Raises UsageError for an unknown interface and for policies that don't fit, KernelError or
        ProbedeckError where it can't attach; what was begun of it is ended then.
        """
        from probes.monitor.service import MonitorService

        interface = interfaces.find(interface_name)
        with self._changing, ExitStack() as undo:
            self._refuse_twice(PROBE)
            self._refuse_memory(PROBE, options.memory)
            made = self._placed(
                lambda: MonitorService(
                    self, self._compiler, interface, self._hooks, options, profiles
                )
            )
            self._triggers = made
            self._run(made.probe, options.interval, None)
            undo.callback(self._remove, PROBE)
            for application in applications:
                self.add(application)
            for policy in policies:
                made.set_policy(policy)
            undo.pop_all()
        if note := made.probe.offload:
            self.publish(Event.now("warning", PROBE, note))

    def monitor(self) -> MonitorInfo | None:
        """The monitor, its policies and applications; None where it does not run."""
        triggers = self._triggers
        return triggers.info() if triggers else None

    def applications(self) -> Sequence[ApplicationProbe]:
        """Those that run behind the monitor."""
        from probes.monitor.applications.application import ApplicationProbe

        every = [running.probe for running in tuple(self._running.values())]
        return [probe for probe in every if isinstance(probe, ApplicationProbe)]

    def set_policy(self, policy: Policy) -> PolicyInfo:
        """Add a policy, or put it in the place of the one of this name; nothing is stopped.

        It starts the monitor where none runs, on the interface on which paths can be traced.
        """
        self._refuse_changes()
        with self._changing:
            if self._triggers is None and self._tracing:
                interface, ingress, _ = self._tracing
                self.watch_metrics(interface.name, MonitorOptions(ingress=ingress))
            return self._monitored().set_policy(policy)

    def remove_policy(self, name: str) -> None:
        """Forget a policy; applications that no other has are inactive then, and stay loaded."""
        self._refuse_changes()
        with self._changing:
            self._monitored().remove_policy(name)

    def activate_policy(self, name: str) -> PolicyInfo:
        """Have it run its applications now, until `deactivate_policy` (S2.12)."""
        self._refuse_changes()
        triggers = self._monitored()
        triggers.probe.activate(name)
        return triggers.policy(name)

    def deactivate_policy(self, name: str) -> PolicyInfo:
        """End that, or what its condition began: after its cool-down it is armed again."""
        self._refuse_changes()
        triggers = self._monitored()
        triggers.probe.deactivate(name)
        return triggers.policy(name)

    def sketch(self, windows: int = 1) -> Sketch:
        """The registers of the last windows merged, at most as many as are kept."""
        return self._monitored().probe.sketch(windows)

    def failure(self) -> ProbedeckError | None:
        """Why the flow probe, or else every probe, ended by itself; None while one runs."""
        failures = {name: running.failure for name, running in tuple(self._running.items())}
        own = failures.get(FlowProbe.name)
        if own or not failures or not all(failures.values()):
            return own
        return next(iter(failures.values()))

    def close(self) -> None:
        """Poll every probe a last time, publish that, and detach everything."""
        with self._changing:
            self._closed = True
            if self._triggers:
                self._triggers.close()
            self._untrace_all()
        super().close()

    def _remove(self, name: str) -> tuple[Snapshot, ...]:
        if name == "path":
            self._untrace_all()
        if name == PROBE and (triggers := self._triggers):
            for application in triggers.probe.router.given():
                self._remove(application)
            self._triggers = None
            triggers.close()
        return super()._remove(name)

    def _path_probe(self) -> PathProbe | None:
        running = self._running.get("path")
        if running is None or not running.probe.builtin:
            return None
        return cast("PathProbe", running.probe)

    def _untrace_all(self) -> None:
        """So that what is in flight is told with the last window."""
        if probe := self._path_probe():
            for traced in probe.traced():
                probe.untrace(traced.destination)

    def _start_path_probe(self) -> PathProbe:
        from probes.path.probe import INTERVAL, PathProbe, memory_of

        if self._tracing is None:
            raise UsageError("no interface is watched on which paths could be traced")
        self._refuse_twice(PathProbe.name)
        interface, ingress, options = self._tracing
        memory = path_share(self.memory_limit)
        self._refuse_memory(PathProbe.name, memory_of(options, memory))

        def make() -> PathProbe:
            hook = self._hooks.choose(interface, ingress).hook
            return PathProbe(self._compiler, interface, hook, self._hooks, options, memory=memory)

        probe = self._placed(make)
        self._run(probe, INTERVAL, None)
        return probe

    def _monitored(self) -> MonitorService:
        triggers = self._triggers
        if triggers is None:
            raise UsageError("no monitor runs", hint="start with --monitor, or with a policy")
        return triggers
