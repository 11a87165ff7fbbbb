"""Policies over a capture, without an interface: its packets and its clock.

The programs of the monitor and of the flow probe run by PROG_TEST_RUN, and windows end by the
capture's clock.
"""

from __future__ import annotations

import select
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from itertools import chain
from typing import Self

import numpy as np

from app.lab.capture import MAX_LATE_NS, CaptureFile, open_capture
from app.lab.frames import BatchesAhead, FrameBatch
from app.lab.frames.feed import FrameFeed
from app.lab.frames.windows import QUIET, CapturedMonitor, CaptureWindows, Told
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
from probes.monitor.info import MonitorInfo
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.poller import Publish

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
_MIN_WINDOWS = 4
"""Empty windows that are never skipped: a baseline needs three."""


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
            chains = {point.hook: point.chain for point in hooks.in_use()}
            self._run = FrameRunner(chains[Hook.XDP].fd)
            self._send = FrameRunner(chains[Hook.TC_EGRESS].fd) if local else None
            self._feed: FrameFeed | None = None
            """None if frames go one by one."""
            if not local:
                with suppress(OSError):
                    self._feed = FrameFeed(chains[Hook.XDP].head_fd, self._clock)
                    stack.callback(self._feed.close)
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
            return self.run(capture.batches()).noting(capture.defects)

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
        self, batches: Iterable[FrameBatch], publish: Publish = lambda item: None
    ) -> CaptureResult:
        """Run all frames of a capture through the programs, and evaluate each window.

        `publish` gets the tables and events of the windows, as of a run.

        The first window begins with the first frame. A long time without frames is left out once
        every condition has forgotten the frames before it.
        """
        ahead = BatchesAhead(batches)
        first = next(ahead, None)
        if not first:
            return CaptureResult((), 0, 0.0, {}, ())
        first_ns = int(first.times_ns[0])
        # Policies give the time 0 a special meaning, so the first frame is at 1 s or later.
        shift_ns = max(0, _SECOND - first_ns)
        begin_ns = last_ns = first_ns + shift_ns
        windows = CaptureWindows(self._flow, self._monitor, self._rest_ns, begin_ns, publish)
        shortest, longest = FrameRunner.shortest, FrameRunner.longest
        count = filled = too_short = too_long = missing = backwards = 0
        for batch in chain([first], ahead):
            lengths, times_ns, of_batch = batch.lengths, batch.times_ns, len(batch.starts)
            filled += int((lengths != batch.captured).sum())
            long = lengths[lengths > longest]
            too_long += len(long)
            missing += int(long.sum()) - longest * len(long)
            stops = _stops(batch, shortest)
            fed = self._feed is not None and self._feed.load(batch)
            at = 0
            while at < of_batch:
                time_ns = int(times_ns[at]) + shift_ns
                if time_ns >= windows.end_ns:
                    near = ahead.next(batch, at, 1 + QUIET) if self._joins else []
                    windows.advance(time_ns, [(ns + shift_ns, size) for ns, size in near])
                elif time_ns < last_ns - MAX_LATE_NS:
                    # Else all frames up to the old time would be in one window.
                    shift_ns += last_ns - time_ns
                    backwards += 1
                begin = at
                if lengths[begin] < shortest:
                    too_short += 1
                    at += 1
                    continue
                at = min(
                    stops[bisect_right(stops, begin)], begin + _LOOK_FRAMES - count % _LOOK_FRAMES
                )
                later = times_ns[begin:at] >= windows.end_ns - shift_ns
                at = begin + int(later.argmax()) if later.any() else at
                self._give(batch, begin, at, shift_ns, fed)
                count += at - begin
                last_ns = int(times_ns[at - 1]) + shift_ns
                self._clock.give(last_ns)
                if not count % _LOOK_FRAMES and self._alarm.poll(0):
                    windows.relieve(last_ns)
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
            tuple(windows.told), count, seconds, windows.busiest, tuple(notes), first_ns
        )

    def _give(self, batch: FrameBatch, begin: int, end: int, shift_ns: int, fed: bool) -> None:
        """Have the programs see frames of a batch."""
        if fed and self._feed:
            self._feed.run(begin, end, shift_ns)
            return
        longest = FrameRunner.longest
        for time_ns, data, length in batch.frames(begin, end):
            data = data.ljust(min(length, longest), b"\0")[:longest]
            self._clock.give(time_ns + shift_ns)
            (self._send if self._send and self._is_outgoing(data) else self._run)(data)

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


def _stops(batch: FrameBatch, shortest: int) -> list[int]:
    """Return numbers of frames at which a run of frames may have to end, and the batch's end: too
    short frames, and those after them or after a clock that is set back."""
    is_short = batch.lengths < shortest
    is_back = np.diff(batch.times_ns) < -MAX_LATE_NS
    is_stop = is_short.copy()
    is_stop[1:] |= is_short[:-1] | is_back
    return [*np.flatnonzero(is_stop).tolist(), len(batch.starts)]


def _memory_of(policy: Policy) -> float:
    """Return for how many seconds a policy's state depends on frames."""
    conditions = [text for text in (policy.condition, policy.deactivate) if text]
    span = max((Condition.stored(text).span for text in conditions), default=0.0)
    # A baseline's windows are those after the policy's end.
    return 2 * span + policy.hold + policy.cooldown
