"""Policies over a capture, without an interface: its packets and its clock.

The programs of the monitor and of the flow probe run by PROG_TEST_RUN, and windows end by the
capture's clock.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Self

import numpy as np

from app.lab.capture import (
    MAX_LATE_NS,
    CapturedFrame,
    CaptureFile,
    FramesAhead,
    open_capture,
)
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.maps.kinds import unlock
from bpf.quantities import duration
from bpf.syscall import FrameRunner
from probes.flow.clock import GivenClock
from probes.flow.options import FlowOptions
from probes.flow.probe import FlowProbe
from probes.flow.records import FlowDirection, TableSizes
from probes.hooks import Hooks
from probes.monitor.condition import Condition
from probes.monitor.condition.terms import MAX_BYTES
from probes.monitor.control.culprits import Culprits
from probes.monitor.engine import Engine, PolicyTransition
from probes.monitor.finding import Finding
from probes.monitor.info import MonitorInfo
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.policy_log import PolicyLog
from probes.monitor.probe import MonitorProbe
from probes.monitor.records import METRIC
from probes.poller import Publish
from probes.snapshot import Event, Snapshot


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


_SECOND = 1_000_000_000
_NOWHERE, _DIRECTED = 0, -1
"""Index of the interface of a capture, whose packets have no direction, or have one."""
_FLOW_BYTES = 64 << 20
"""Kernel memory of the flow tables. They may be small, because nothing delays their early end."""
_LOOK_FRAMES = 1 << 13
"""Frames between two looks at the alarm of the flow tables: their overflow ring takes more."""
_TAGS = (b"\x81\0", b"\x88\xa8")
"""Ethernet types of VLAN tags."""
_SOURCES = {b"\x08\0": slice(14, 18), b"\x86\xdd": slice(10, 26)}
"""Bytes of the source address from an Ethernet type on."""
JOINED = 60
"""Most windows that are joined, see PolicyRunner."""
_JOINED_AFTER_NS = 600 * _SECOND
QUIET = 4
"""Most frames of a quiet window. One more would hide no error of an estimate."""
_MIN_WINDOWS = 4
"""Empty windows that are never skipped: a baseline needs three."""


@dataclass(frozen=True, slots=True)
class Told:
    """A transition of a policy in a capture."""

    seconds: float
    """From the first frame to the end of the window that caused it."""
    transition: PolicyTransition
    finding: Finding | None = None
    """Culprits, if the policy begins."""


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Result of policies over a capture."""

    told: tuple[Told, ...]
    frames: int
    """Frames that the programs saw."""
    seconds: float
    """From the first frame to the last."""
    busiest: Mapping[str, str]
    """By policy, why its condition held or not in the window with most packets."""
    notes: tuple[str, ...]
    """Differences between the frames of the capture and those that the programs saw."""
    begin_ns: int = 0
    """Time of the first frame, since the epoch."""
    untested: Mapping[str, str] = field(default_factory=dict)
    """By policy that was not evaluated, the reason."""

    def noting(self, defects: Iterable[str]) -> CaptureResult:
        """Return the result with defects of the file, too."""
        return replace(self, notes=(*self.notes, *defects))


class PolicyRunner:
    """Compiled and loaded programs for any number of captures, as a context manager.

    Applications do not run. Raises KernelError without the right to load programs.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        options: MonitorOptions = MonitorOptions(),  # noqa: B008 - immutable
        local: Sequence[IPv4Network | IPv6Network] = (),
        *,
        joins: bool = False,
    ) -> None:
        """Packets from the networks `local` are outgoing; without one all are incoming.

        `joins`: after ten minutes, up to JOINED quiet windows that follow each other end as one. A
        window is quiet if it has so few packets that no policy can become active. To policies the
        joined windows are as many windows with the means of their counts.
        """
        self._joins = joins
        rest = max(map(_memory_of, policies), default=0.0) + _MIN_WINDOWS * options.interval
        self._rest_ns = round(rest * 1e9)
        """Time without frames after which another empty window changes nothing."""
        self._of_owners = [policy.name for policy in policies if policy.knows_owners]
        self._local = [(each.max_prefixlen // 8, each.max_prefixlen - each.prefixlen,
                        int(each.network_address) >> each.max_prefixlen - each.prefixlen)
                       for each in local]  # fmt: skip
        """Of each network: bytes of an address, bits of a host, and the other bits."""
        outgoing = [p.name for p in policies if any(m.outgoing for m in p.metrics)]
        self._outgoing = [] if local else outgoing
        options = replace(options, ingress=Hook.XDP, offload=False)
        hooks = Hooks(attach=lambda point: None)
        unlock()
        with ExitStack() as stack:
            compiler = Compiler()
            stack.callback(compiler.close)
            interface = Interface("capture", _DIRECTED if local else _NOWHERE, ethernet=True)
            where = [(Hook.XDP, FlowDirection.INGRESS)]
            if local:
                where.append((Hook.TC_EGRESS, FlowDirection.EGRESS))
            # Before the monitor, which ends mirrored packets.
            flow = FlowOptions(options.interval, tunnels=options.tunnels)
            self._clock, memory = GivenClock(), max(_FLOW_BYTES, TableSizes.least().memory)
            self._flow = FlowProbe(
                compiler, interface, where, hooks, flow, memory=memory, clock=self._clock
            )
            stack.callback(self._flow.close)
            self._monitor = CapturedMonitor(compiler, interface, hooks, options)
            stack.callback(self._monitor.close)
            for policy in policies:
                self._monitor.set_policy(policy, ())
            # A frame has passed all programs when its call returns.
            self._flow.wait_for_packets = self._monitor.wait_for_packets = lambda: None
            run = {point.hook: FrameRunner(point.chain.fd) for point in hooks.in_use()}
            self._run, self._send = run[Hook.XDP], run.get(Hook.TC_EGRESS)
            self._alarm = select.poll()
            self._alarm.register(self._flow.alarm_fd, select.POLLIN)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run_file(self, path: str) -> CaptureResult:
        """As `run`, for a file. Raises UsageError if it is no capture."""
        with open_capture(path) as file:
            capture = CaptureFile(file, path)
            return self.run(capture).noting(capture.defects)

    @property
    def interval(self) -> float:
        """Seconds of a window."""
        return self._monitor.interval

    @property
    def has_changed(self) -> bool:
        """Whether a policy has changed its state in the window that ended last."""
        return bool(self._monitor.transitions)

    def info(self) -> MonitorInfo:
        """Return the state of the policies now."""
        monitor, options = self._monitor, self._monitor.options
        hook = monitor.points()["ingress"].hook.value
        return MonitorInfo(
            monitor.interface.name, hook, options.input, options.bits, options.interval, "",
            monitor.policies(), (), {},
        )  # fmt: skip

    def run(
        self, frames: Iterable[CapturedFrame], publish: Publish = lambda item: None
    ) -> CaptureResult:
        """Run all frames of a capture through the programs, and evaluate each window.

        `publish` gets the tables and events of the windows, as of a run.

        The first window begins with the first frame. A long time without frames is left out once
        every condition has forgotten the frames before it.
        """
        frames = FramesAhead(frames)
        if not (found := frames.next(1)):
            return CaptureResult((), 0, 0.0, {}, ())
        (first,) = found
        # Policies give the time 0 a special meaning, so the first frame is at 1 s or later.
        shift_ns = max(0, _SECOND - first.time_ns)
        begin_ns = last_ns = first.time_ns + shift_ns
        windows = _Windows(self._flow, self._monitor, self._rest_ns, begin_ns, publish)
        run, send, give = self._run, self._send, self._clock.give
        shortest, longest = FrameRunner.shortest, FrameRunner.longest
        count = filled = too_short = too_long = missing = backwards = 0
        for captured_ns, data, length in frames:
            time_ns = captured_ns + shift_ns
            if time_ns >= windows.end_ns:
                near = [(captured_ns, data, length), *frames.next(QUIET)] if self._joins else []
                windows.advance(time_ns, [(at_ns + shift_ns, size) for at_ns, _, size in near])
            elif time_ns < last_ns - MAX_LATE_NS:
                # Else all frames up to the old time would be in one window.
                shift_ns += last_ns - time_ns
                time_ns = last_ns
                backwards += 1
            if length != len(data):
                filled += 1
                data = data.ljust(min(length, longest), b"\0")
            if length > longest:
                too_long += 1
                missing += length - longest
                data = data[:longest]
            elif length < shortest:
                too_short += 1
                continue
            give(time_ns)
            if send and self._is_outgoing(data):
                send(data)
            else:
                run(data)
            count += 1
            last_ns = time_ns
            if not count % _LOOK_FRAMES and self._alarm.poll(0):
                windows.relieve(time_ns)
        windows.end()
        counts = {
            "too short for Ethernet": too_short,
            f"longer than {longest} bytes; {missing} bytes are not counted": too_long,
            "cut when they were captured and filled up with zeros": filled,
        }
        notes = windows.errors + [
            f"{number} frames {what}" for what, number in counts.items() if number
        ]
        if self._of_owners:
            notes.append(f"owners are unknown in a capture: {', '.join(self._of_owners)}")
        if self._outgoing:
            names = ", ".join(self._outgoing)
            notes.append(f"without --local a capture has no outgoing packets: {names}")
        if windows.skipped_ns:
            notes.append(f"{duration(windows.skipped_ns / 1e9)} without frames left out")
        if backwards:
            notes.append(f"the capture's clock goes back {backwards} times")
        seconds = (last_ns - begin_ns) / 1e9
        return CaptureResult(
            tuple(windows.told), count, seconds, windows.busiest, tuple(notes), first.time_ns
        )

    def _is_outgoing(self, frame: bytes) -> bool:
        at = 12
        while frame[at : at + 2] in _TAGS:
            at += 4
        place = _SOURCES.get(frame[at : at + 2])
        if place is None:
            return False
        source = frame[at + place.start : at + place.stop]
        size, number = len(source), int.from_bytes(source)
        return any(size == each and number >> host == net for each, host, net in self._local)


class _Windows:
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


def _memory_of(policy: Policy) -> float:
    """Return for how many seconds a policy's state depends on frames."""
    conditions = [text for text in (policy.condition, policy.deactivate) if text]
    span = max((Condition.stored(text).span for text in conditions), default=0.0)
    # A baseline's windows are those after the policy's end.
    return 2 * span + policy.hold + policy.cooldown
