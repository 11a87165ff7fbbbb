"""The path probe: applications' packets cause probes, and their answers become rows (S3)."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bpf import features
from bpf.arrays import Array, Rows
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError
from bpf.maps.map import Map
from bpf.programs import grace
from bpf.programs.program import Program, sized
from probes.builtin import BuiltinProbe, Generation, ProbeMaps
from probes.hooks import Hooks
from probes.path.active.finder import Finder
from probes.path.active.mtu import MtuReports, MtuSearches
from probes.path.active.own_flows import OwnFlows
from probes.path.analysis.watch import Analysis
from probes.path.events.folding import EventFolder
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.programs import (
    FUNCTION,
    HEADERS,
    MEMORY,
    PROGRAMS,
    SHARED_MAPS,
    SOURCES,
    SideProgram,
    macros,
    sizes_of,
)
from probes.path.records import (
    HOP,
    HOPS_TABLE,
    PATH,
    PATHS_TABLE,
    TRACE,
    TRACES_TABLE,
    ProbeOutcome,
    no_rows,
)
from probes.path.round_trips import EXCHANGE, EXCHANGES, SAMPLE, RoundTrips
from probes.path.slots import SLOT
from probes.path.targets import (
    SHARED,
    TARGET,
    TracedDestination,
    TracedDestinations,
    destination_of,
)
from probes.path.traced import Traced
from probes.reports import Fate
from probes.snapshot import Event, Item, Loss, LossReason

if TYPE_CHECKING:
    from probes.config.model import Side

_REPEAT_NS = 60_000_000_000
"""A warning is repeated if the last drop before it is this long ago."""


class Interference:
    """Events of one interface, each published once."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._remarked: dict[TracedDestination, int] = {}
        """Probes dropped at the last poll since tracing began, by target."""
        self._last_drop_ns = -_REPEAT_NS
        self._escaped: set[TracedDestination] = set()
        self._shared: set[TracedDestination] = set()
        """Destinations that another tracer probes, too."""

    def events(self, targets: Iterable[TracedDestination], now_ns: int) -> list[tuple[str, str]]:
        """Return severity and text of each new event."""
        found: list[tuple[str, str]] = []
        remarked = {target: target.remarked for target in targets}
        if any(count > self._remarked.get(target, 0) for target, count in remarked.items()):
            if now_ns - self._last_drop_ns >= _REPEAT_NS:
                found.append(("warning", self._dropped()))
            self._last_drop_ns = now_ns
        self._remarked = remarked
        escaped = {target for target in remarked if target.escaped}
        found += [
            (
                "error",
                f"tracing of {target.destination.text} stopped: another program on"
                f" {self._interface}'s egress sends probes on whole; attach it after probedeck,"
                " untrace and trace again",
            )
            for target in escaped - self._escaped
        ]
        self._escaped = escaped
        shared = {target for target in remarked if target.foreign}
        found += [("warning", self._told(target)) for target in shared - self._shared]
        self._shared = shared
        return found

    def _dropped(self) -> str:
        return (
            f"probes are dropped: another program on {self._interface}'s egress rewrites packet"
            " marks; attach it after probedeck"
        )

    def _told(self, target: TracedDestination) -> str:
        return (
            f"another tracer sends probes to {target.destination.text} on {self._interface},"
            " too: each has its own answers, but routers with a limit answer each less often"
        )


INTERVAL = 0.25
"""Seconds between two polls: the screen's refresh, and half the delay allowed for a route
change."""
_VIEWS = {
    "shared": SHARED, "targets": TARGET, "slots": SLOT, "exchanges": EXCHANGE, "samples": SAMPLE,
    "sampled": np.dtype("u8"),
}  # fmt: skip
"""Maps that user space reads in the kernel's memory."""
_OWN_PERIOD_NS = 950_000_000
"""Time between rows of own traffic: a little under a second, because polls come every 0.25 s."""
_COUNTERS = {
    "packets": "packets", "probes": "sent", "probe_bytes": "sent_bytes", "answers": "matched",
    "answer_bytes": "matched_bytes", "unmatched": "unmatched", "foreign": "foreign",
}  # fmt: skip
"""Field of TRACE, and the counter of Traced whose growth it is."""


class PathProbe(BuiltinProbe[SideProgram]):
    """Round-trip times of every hop to the destinations that are traced."""

    name = "path"
    function = FUNCTION
    sources = SOURCES
    metric = (HOPS_TABLE, "slots")
    needed = PROGRAMS
    kept = SHARED_MAPS
    fates: Mapping[str, Fate] = {"slots": Fate.KEPT}
    """Every probe in flight is kept."""

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        ingress: Hook,
        hooks: Hooks,
        options: PathOptions = PathOptions(),  # noqa: B008 - immutable
        *,
        memory: int = MEMORY,
    ) -> None:
        """Join the chains of both hooks, without a destination to trace yet.

        All slots together take at most `memory` bytes, or as few as the destinations need.

        If a step fails, raises ProbedeckError and leaves nothing behind.
        """
        options.check()
        _check_kernel()
        super().__init__(compiler, interface, INTERVAL)
        self.options = options
        key = secrets.randbits(64) | 1
        self._sizes = sizes_of(options, memory)
        self._macros = macros(options, interface, self._sizes[0], key)
        self._timeout_ns = round(options.timeout * 1e9)
        self._analysis = Analysis(timeout_ns=self._timeout_ns)
        self._events = EventFolder()
        self._interference = Interference(interface.name)
        self.finder = Finder(interface, key)
        self._mtu_searches = MtuSearches(interface, options.max_hops, key)
        self._mtu_reports = MtuReports()
        self._own_flows = OwnFlows(interface, self._timeout_ns, key)
        self._leaving: list[tuple[bytes, Array]] = []
        """Last rows of dtype HOP of destinations that were untraced."""
        self._quiet_ns = 0
        """When the answers to the last probes of untraced destinations have come."""
        self._maps: list[Map] = []
        self._start(hooks, {"ingress": ingress, "egress": Hook.TC_EGRESS})
        self._own_traffic = OwnTraffic(self._start_ns)

    def _make_maps(self, sides: Mapping[Side, Compiled]) -> None:
        one = next(iter(sides.values()))
        each, targets = self._sizes
        sizes = {
            "addresses": targets, "targets": targets, "slots": targets * each,
            "exchanges": targets * EXCHANGES,
        }  # fmt: skip
        self._tables = ProbeMaps(one, SHARED_MAPS, sizes)
        self._owned.callback(self._tables.close)
        for name, dtype in _VIEWS.items():
            spec = sized(one.maps[name].spec, sizes.get(name))
            self._maps.append(Map(os.dup(self._tables.fds[name]), spec, value=dtype))
            self._owned.callback(self._maps[-1].close)
        shared, table, slots, *timed = (owned.view() for owned in self._maps)
        self._round_trips = RoundTrips(self._timeout_ns, *timed)
        self._owned.callback(self._round_trips.close)
        addresses_fd = self._tables.fds["addresses"]
        self._targets = TracedDestinations(
            addresses_fd, shared, table, slots, self.options, self.finder
        )
        self._owned.callback(self._targets.close)

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[SideProgram]:
        for side, compiled in sides.items():
            next_fd = self._slots[side].stage.next_fd
            yield SideProgram(side, compiled, self._tables, next_fd)

    def _reached(self) -> Iterator[tuple[Side, Program, int]]:
        for each in self._current.parts:
            shared = self._tables.memory() if each.side == "ingress" else 0
            yield each.side, each.main, each.main.memory() + shared

    def _join(self) -> None:
        for side, program, _ in self._reached():
            slot = self._slots[side]
            # First, so that no other probe sees an answer, or a clone before it becomes a probe.
            slot.point.chain.prepend(slot.stage, program.fd)

    @property
    def is_edited(self) -> bool:
        """Whether a source that runs is not the built-in one."""
        sources = self._current.sources
        return any(sources[side] != SOURCES[side].read_text(encoding="utf-8") for side in sources)

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        """Trace every flow to an address, or only `flow`. Raises UsageError if that is impossible.

        Send the flow `own` while no application sends to the address.
        """
        with self._lock:
            found = destination_of(destination)
            target = self._targets.add(found, flow)
            if own and flow is None:
                self._own_flows.start(found, own, target)
            if self.options.mtu:
                self._mtu_searches.start(found)

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Stop tracing; probes in flight are reported with the next window."""
        with self._lock:
            target = self._targets.remove(destination_of(destination), flow)
            if target:
                now, timeout_ns = time.monotonic_ns(), self._timeout_ns
                own = self._own_flows.stop(target.destination)
                timed = self._round_trips.collect((*self._targets, target), now)
                self._round_trips.forget(target.index)
                rows = target.collect(now, timeout_ns, timed, final=True)
                self._quiet_ns = max(self._quiet_ns, target.extent.answered_by(rows))
                rows = np.concatenate([rows, timed, own], dtype=HOP)
                self._leaving.append((target.destination.address, rows))
                self._own_traffic.leave(target.summary())
                self._mtu_searches.forget(target.destination)
                self._mtu_reports.forget(target.destination)

    def wind_up(self) -> None:
        """Trace nothing any more, so that the last window has what is in flight."""
        for traced in self.traced():
            self.untrace(traced.destination)

    def traced(self) -> tuple[Traced, ...]:
        """The traced destinations, in the order of the requests."""
        with self._lock:
            searched, reported = self._mtu_searches.result, self._mtu_reports.result
            own = self._own_flows.wanted
            return tuple(
                replace(
                    target.summary(),
                    own_flow=str(own(target.destination) or ""),
                    path_mtu=reported(target.destination) or searched(target.destination),
                )
                for target in self._targets
            )

    @property
    def in_flight(self) -> int:
        """Probes without an outcome at the last poll."""
        return sum(target.flight.pending for target in self._targets)

    def _direct(self, new: Generation[SideProgram]) -> None:
        if new is not self._current:
            for part in new.parts:
                self._slots[part.side].replace(part.main.fd)
            grace.wait()

    def _end_window(self, ended: None, started_ns: int) -> tuple[Item, ...]:
        """Return rows of finished probes, and the findings about paths."""
        started = time.monotonic_ns()
        parts = [no_rows(HOP), *(rows for _, rows in self._leaving)]
        fullest, sizes = 0.0, list[tuple[str, str]]()
        self._targets.take_finder_answers()
        gone = not self.interface.name_now()  # no answer reaches its probes in flight
        before = self._round_trips.overrun
        timed = self._round_trips.collect(self._targets, started)
        timed = np.concatenate([timed, self._own_flows.rows()], dtype=HOP)
        for target in self._targets:
            rows = target.collect(started, self._timeout_ns, timed, final=gone)
            target.decide(rows, started)
            parts += [rows, target.extent.beside]
            report = target.mtu_report
            if report and self._mtu_searches.is_news(target.destination, report[0]):
                sizes += self._mtu_reports.add(target.destination, report, rows)
            fullest = max(fullest, target.flight.pending / self._targets.slots_per_target)
        parts.append(timed)
        hops = np.concatenate(parts, dtype=HOP)
        ends = bool(self._leaving)
        paths = self._analyse(hops, started)
        self.window += 1
        overrun = int((hops["outcome"] == ProbeOutcome.OVERRUN).sum())
        overrun += self._round_trips.overrun - before
        losses = {LossReason.OVERRUN: Loss(overrun)} if overrun else {}
        points = self.points().values()
        tables = [
            self._snapshot(
                hops,
                started,
                points,
                quiet_ns=started,
                losses=losses,
                occupancy=fullest,
                table=HOPS_TABLE,
            )
        ]
        if len(paths):
            tables.append(
                self._snapshot(paths, started, points, quiet_ns=started, table=PATHS_TABLE)
            )
        traced = (target.summary() for target in self._targets)
        if (own := self._own_traffic.rows(traced, started)) is not None:
            tables.append(
                self._snapshot(own, started, points, quiet_ns=started, table=TRACES_TABLE)
            )
        self.latest = tuple(tables)
        self._start_ns = started
        now = tables[0].end_utc_ns
        told = self._events.add(paths, started, final=ends)
        events = [Event(now, each.severity, self.name, *each[1:]) for each in told]
        found = self._targets.new_notes() + self._interference.events(self._targets, started)
        found += sizes + self._mtu_searches.poll() + self._own_flows.events()
        events += [Event(now, severity, self.name, text) for severity, text in found]
        return (*tables, *events)

    def _analyse(self, hops: Rows[HOP], now_ns: int) -> Rows[PATH]:
        """Rows of dtype PATH, with the last summaries of destinations that leave."""
        shortened = [target.extent.shortened for target in self._targets]
        paths = self._analysis.add(
            hops, now_ns, np.concatenate([no_rows(HOP), *shortened], dtype=HOP)
        )
        if self._leaving:
            last = self._analysis.summarise(now_ns)
            ends = (self._analysis.forget(address, now_ns) for address, _ in self._leaving)
            paths = np.concatenate([paths, last, *ends], dtype=PATH)
        self._leaving.clear()
        return paths

    def close(self) -> None:
        with self._lock:
            if any(slot.is_reached for slot in self._slots.values()):
                # No clone may come back to a hook that was left, no answer reach an application.
                self.wind_up()
                time.sleep(max(0, self._quiet_ns - time.monotonic_ns()) / 1e9)
            for sender in (self.finder, self._mtu_searches, self._own_flows):
                sender.close()
            super().close()

    def _compile(self, side: Side, source: str) -> Compiled:
        headers = {path.name: path.read_text(encoding="utf-8") for path in HEADERS}
        return self._compile_with(side, source, self._macros, headers)


def _check_kernel() -> None:
    """Raise KernelError if the kernel refuses the atomic operations of path.h."""
    try:
        features.try_atomic_exchange()
    except PermissionError:
        pass  # the next load fails for the same reason, and tells the remedy
    except OSError:
        raise KernelError(
            "path tracing needs atomic exchanges in BPF programs, which this kernel lacks",
            hint="use kernel 5.12 or newer; on arm64, 5.18",
        ) from None


class OwnTraffic:
    """Turns counters since the begin of tracing into rows of a period."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._before: dict[str, Traced] = {}
        self._leaving: list[Array] = []

    def leave(self, traced: Traced) -> None:
        """Keep the last row of a destination that is traced no longer."""
        self._leaving.append(_row(traced, self._before.pop(traced.destination, None)))

    def rows(self, traced: Iterable[Traced], now_ns: int) -> Rows[TRACE] | None:
        """Return rows of dtype TRACE (n,) of the period, which ends now; None if it goes on."""
        if now_ns - self._since_ns < _OWN_PERIOD_NS and not self._leaving:
            return None
        found = {each.destination: each for each in traced}
        made = [_row(each, self._before.get(name)) for name, each in found.items()]
        rows = np.concatenate([np.empty(0, TRACE), *made, *self._leaving])
        rows["since_ns"] = self._since_ns
        self._before, self._leaving, self._since_ns = found, [], now_ns
        return rows


def _row(now: Traced, before: Traced | None) -> Rows[TRACE]:
    row = np.zeros(1, TRACE)
    packed = ipaddress.ip_address(now.destination).packed
    row["destination"] = np.frombuffer(packed.ljust(16, b"\0"), "u1")
    row["version"] = 4 if len(packed) == 4 else 6
    row["routers"] = now.length
    for name, counter in _COUNTERS.items():
        row[name] = getattr(now, counter) - (getattr(before, counter) if before else 0)
    return row
