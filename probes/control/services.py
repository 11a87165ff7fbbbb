"""Path tracing and the segment probe under a controller: each runs while it is needed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from bpf.attach import rtnetlink
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Interface
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import duration
from bpf.requirements import losses
from probes.control.builtin_probes import PATH_PROBE
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.traced import Traced
from probes.poller import Publish
from probes.segment.options import LONGEST_LEASE, SegmentOptions, SegmentStatus
from probes.snapshot import Event

if TYPE_CHECKING:
    from probes.control.running_probe import RunningProbe, RunningProbes
    from probes.hooks import Hooks
    from probes.path.probe import PathProbe
    from probes.segment.probe import SegmentProbe

_UNWATCHED = "no interface is watched on which paths could be traced"


class JobLosses:
    """Publishes what jobs lose by capabilities that this process lacks, once for each job."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._told = set[str]()

    def tell(self, job: str) -> None:
        if job not in self._told and (text := losses(job)):
            self._told.add(job)
            self._publish(Event.now("warning", job, text, "privileges"))


class PathControl:
    """Starts the path probe with the first destination, and ends it after the last one.

    The controller refuses changes; policies call these methods also if it is read-only.
    """

    def __init__(
        self,
        changing: AbstractContextManager[object],
        hooks: Hooks,
        running: RunningProbes,
        start: Callable[[str, PathOptions], PathProbe],
        remove: Callable[[str], object],
        pop: Callable[[str], RunningProbe],
    ) -> None:
        """`changing` is the lock of changes. `start` starts the probe on an interface, `remove`
        ends a probe, and `pop` takes it out of the running ones."""
        self._changing, self._hooks, self._running = changing, hooks, running
        self._start, self._remove, self._pop = start, remove, pop
        self.interface: Interface | None = None
        """None if no interface is watched."""
        self.options = PathOptions()

    def configure(
        self,
        interface_name: str,
        options: PathOptions = PathOptions(),  # noqa: B008 - immutable
    ) -> None:
        """Set where and how `trace` traces paths.

        Raises UsageError for an unknown interface or impossible options.
        """
        options.check()
        self.interface, self.options = self._hooks.find(interface_name), options

    def change(self, options: PathOptions) -> None:
        """Set other options; running traces start again. See ControlPlane.path_options."""
        options.check()
        with self._changing:
            if self.interface is None:
                raise UsageError(_UNWATCHED)
            before, probe = self.options, self._probe()
            options = replace(options, ingress=before.ingress, destinations=before.destinations)
            if options == before:
                return
            if probe and probe.is_edited:
                raise UsageError(
                    "other options would replace the edited source of probe path",
                    hint="roll it back, then set them",
                )
            traced = self.traced()
            self.options = options
            try:
                self._trace_anew(traced)
            except ProbedeckError:
                self.options = before
                self._trace_anew(traced)
                raise

    def trace(self, destination: str, flow: TracedFlow | None, own: OwnFlow | None = None) -> None:
        with self._changing, ExitStack() as undo:
            probe = self._probe()
            if probe is None:
                if self.interface is None:
                    raise UsageError(_UNWATCHED)
                name = interface_to(destination, self.interface)
                probe = self._start(name, self.options)
                undo.callback(self._remove, PATH_PROBE.name)
            elif isinstance(self.interface, InterfaceGroup):
                name, taken = interface_to(destination, self.interface), probe.interface.name
                if name != taken:
                    raise UsageError(
                        f"paths are traced on {taken}, and {destination} is routed over {name}",
                        hint=f"stop tracing on {taken} first",
                    )
            probe.trace(destination, flow, own)
            undo.pop_all()

    def untrace(self, destination: str, flow: TracedFlow | None) -> None:
        with self._changing:
            probe = self._probe()
            if probe is None:
                raise UsageError("nothing is traced")
            probe.untrace(destination, flow)
            if probe.traced():
                return
            running = self._pop(probe.name)
        self._running.finish(running)

    def traced(self) -> tuple[Traced, ...]:
        probe = self._probe()
        return probe.traced() if probe else ()

    def _probe(self) -> PathProbe | None:
        running = self._running.built_in(PATH_PROBE.name)
        return cast("PathProbe", running.probe) if running else None

    def _trace_anew(self, traced: tuple[Traced, ...]) -> None:
        """End the path probe, and trace the same flows by a new one."""
        if self._probe():
            self._remove(PATH_PROBE.name)
        for each in traced:
            own = OwnFlow.parse(each.own_flow) if each.own_flow else None
            for flow in each.flows or (None,):
                self.trace(each.destination, flow, own)


def interface_to(destination: str, interface: Interface) -> str:
    """Return the interface on which to trace a destination: in a group, the one of its route.

    Raises UsageError if the route leads over another one.
    """
    if not isinstance(interface, InterfaceGroup):
        return interface.name
    try:
        upper = rtnetlink.lookup(destination).ifindex
    except OSError as error:
        raise UsageError(f"{destination} has no route: {error.strerror}") from None
    members = tuple(interface.members.values())
    direct = [each for each in members if each.interface.index == upper]
    below = (each for each in members if rtnetlink.passes(upper, each.interface.index))
    for member in (*direct, *below):
        return member.interface.name
    raise UsageError(f"{destination} is routed over no interface of {interface.name}")


class SegmentService:
    """The `SegmentControl` of this host's controller."""

    def __init__(
        self,
        changing: AbstractContextManager[object],
        start: Callable[[SegmentOptions], SegmentProbe],
        end: Callable[[], object],
        running: Callable[[], SegmentProbe | None],
    ) -> None:
        """`changing` is the controller's lock for changes. `start` starts the probe, or raises;
        `end` ends it when its lease has run out; `running` returns the probe that runs."""
        self._changing, self._start, self._end, self._running = changing, start, end, running
        self._lease_end = 0.0
        """Of the running probe, by time.monotonic(); infinite without a lease."""

    def measure_segment(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        options.check()
        if not 0 <= lease <= LONGEST_LEASE:
            raise UsageError(f"a lease of {lease:g} s is not between 0 and {LONGEST_LEASE:g}")
        with self._changing:
            running = self._running()
            if running and running.options != options:
                text = "the segment probe runs with another key, ratio, filter or interval"
                hint = "probedeck probe remove segment ends it"
                if (left := self._lease_end - time.monotonic()) < math.inf:
                    hint += f"; if its measurement was killed, it ends in {duration(max(left, 0))}"
                raise UsageError(text, hint=hint)
            probe = running or self._start(options)
            end = time.monotonic() + lease if lease else math.inf
            # Callers may share the probe: the longest of their leases counts.
            self._lease_end = max(self._lease_end, end) if running else end
            if not running:
                self._watch_lease(probe)
        return self.segment()

    def _watch_lease(self, probe: SegmentProbe) -> None:
        """End the probe once its lease has run out. A timer per probe waits for that."""
        with self._changing:
            if self._running() is not probe or self._lease_end == math.inf:
                return
            left = self._lease_end - time.monotonic()
            if left <= 0:
                self._end()
                return
        timer = threading.Timer(left, self._watch_lease, [probe])
        timer.daemon = True
        timer.start()

    def segment(self) -> SegmentStatus:
        from probes.segment.records import read_clock

        probe = self._running()
        options = probe.options if probe else None
        clock = read_clock()["value"][0]
        return SegmentStatus(
            running=probe is not None,
            key_id=options.key_id if options else "",
            ratio=options.ratio if options else 0,
            filter=options.capture if options else "",
            interval=options.interval if options else 0.0,
            interface=probe.interfaces[0].name if probe else "",
            boot=clock["boot"].tobytes().hex(),
            monotonic_ns=int(clock["monotonic"]),
            utc_ns=int(clock["utc"]),
        )
