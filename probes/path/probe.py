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
from bpf.attach.attachment import Hook
from bpf.attach.chain import Stage
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError
from bpf.maps.map import Map
from bpf.programs import grace
from bpf.programs.program import sized
from probes.builtin import (
    BuiltinProbe,
    CompiledSides,
    ProbeMaps,
    check_maps,
    check_programs,
    shape_of,
)
from probes.hooks import Hooks, InterfaceHook
from probes.map_reading import LentMap, lend
from probes.path.active.finder import Finder
from probes.path.active.mtu import MtuReports, MtuSearches
from probes.path.active.own_flows import OwnFlows
from probes.path.analysis.watch import Analysis
from probes.path.events.folding import EventFolder
from probes.path.interference import Interference
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.programs import (
    FUNCTION,
    HEADERS,
    MEMORY,
    PROGRAMS,
    SHARED_MAPS,
    SOURCES,
    PathGeneration,
    SideProgram,
    macros,
)
from probes.path.records import (
    HOP,
    HOPS_TABLE,
    PATH,
    PATHS_TABLE,
    TRACE,
    TRACES_TABLE,
    Array,
    ProbeOutcome,
    no_rows,
)
from probes.path.round_trips import EXCHANGE, EXCHANGES, SAMPLE, RoundTrips
from probes.path.slots import SLOT
from probes.path.targets import SHARED, TARGET, TracedDestinations, destination_of
from probes.path.traced import Traced
from probes.reports import Compatibility, Fate, MapFate, ProgramInfo
from probes.snapshot import Event, Item, Loss, LossReason

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side

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


class PathProbe(BuiltinProbe[PathGeneration]):
    """Round-trip times of every hop to the destinations that are traced."""

    name = "path"
    function = FUNCTION

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
        self._registry = hooks
        key = secrets.randbits(64) | 1
        self._macros = macros(options, interface, memory, key)
        self._points: dict[Side, InterfaceHook] = {
            "ingress": hooks.acquire(interface, ingress),
            "egress": hooks.acquire(interface, Hook.TC_EGRESS),
        }
        self._stages: dict[Side, Stage] = {side: Stage(self.name) for side in self._points}
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
        self._joined: list[Side] = []
        self._maps: list[Map] = []
        self._tables: ProbeMaps | None = None
        self._current = PathGeneration(
            {side: path.read_text(encoding="utf-8") for side, path in SOURCES.items()}, {}
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._start_ns = time.monotonic_ns()
        self._own_traffic = OwnTraffic(self._start_ns)

    def points(self) -> Mapping[Side, InterfaceHook]:
        return self._points

    def _start(self) -> None:
        sides = self._compile_all(self._current.sources)
        with CompiledSides(self.config, FUNCTION, sides) as compiled:
            one = next(iter(compiled.sides.values()))
            targets = self._macros["TARGETS"]
            sizes = {"slots": targets * self._macros["SLOTS"], "exchanges": targets * EXCHANGES}
            self._tables = ProbeMaps(one, SHARED_MAPS, sizes)
            self._shapes = {name: shape_of(one.maps[name]) for name in self._tables.fds}
            for name, dtype in _VIEWS.items():
                spec = sized(one.maps[name].spec, sizes.get(name))
                self._maps.append(Map(os.dup(self._tables.fds[name]), spec, value=dtype))
            shared, table, slots, *timed = (owned.view() for owned in self._maps)
            self._round_trips = RoundTrips(self._timeout_ns, *timed)
            addresses_fd = self._tables.fds["addresses"]
            self._targets = TracedDestinations(
                addresses_fd, shared, table, slots, self.options, self.finder
            )
            self._shipped = {side: frozenset(one.maps) for side, one in compiled.sides.items()}
            self._current = self._load(self._current.sources, compiled.sides)
        for side, point in self._points.items():
            fd = self._current.programs[side].main.fd
            # First, so that no other probe sees an answer, or a clone before it becomes a probe.
            point.chain.prepend(self._stages[side], fd)
            self._joined.append(side)
        for point in self._points.values():
            self._registry.attach(point)

    @property
    def config(self) -> ProbeConfig:
        return self._described(self._current.sources, HOPS_TABLE, "slots", FUNCTION)

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

    def export(self) -> tuple[Item, ...]:
        """End the window: rows of finished probes, and the findings about paths."""
        with self._lock:
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
            tables = [
                self._snapshot(hops, started, losses, fullest, quiet_ns=started, table=HOPS_TABLE)
            ]
            if len(paths):
                tables.append(
                    self._snapshot(paths, started, {}, 0.0, quiet_ns=started, table=PATHS_TABLE)
                )
            traced = (target.summary() for target in self._targets)
            if (own := self._own_traffic.rows(traced, started)) is not None:
                tables.append(
                    self._snapshot(own, started, {}, 0.0, quiet_ns=started, table=TRACES_TABLE)
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

    def _analyse(self, hops: Array, now_ns: int) -> Array:
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

    def _check(self, side: Side, compiled: Compiled) -> None:
        check_programs(compiled, side, PROGRAMS[side])
        check_maps(compiled, side, self._shapes)

    def compare(self, compiled: CompiledSides) -> Compatibility:
        """`replace` would keep every probe in flight."""
        fates = (MapFate(side, "slots", Fate.KEPT, "", 0) for side in compiled.sides)
        return Compatibility(tuple(fates), (), (), ())

    def replace(self, compiled: CompiledSides) -> tuple[Item, ...]:
        """Replace the running programs by edited ones. Returns the window that so ended."""
        with self._lock:
            sources = {side: getattr(compiled.config, side).source for side in compiled.sides}
            return self._become(self._load(sources, compiled.sides))

    def programs(self) -> tuple[ProgramInfo, ...]:
        """The probe's programs in the kernel; shared tables count for ingress."""
        with self._lock:
            shared = {"ingress": self._tables.memory() if self._tables else 0}
            return tuple(
                self._program_info(side, each.main, each.memory() + shared.get(side, 0))
                for side, each in self._current.programs.items()
            )

    def _lent(self) -> Iterator[LentMap]:
        for side, each in self._current.programs.items():
            yield from lend(side, each.main, self._shipped[side])

    def close(self) -> None:
        with self._lock:
            if self._joined:
                # No clone may come back to a hook that was left, no answer reach an application.
                self.wind_up()
                time.sleep(max(0, self._quiet_ns - time.monotonic_ns()) / 1e9)
            self.finder.close()
            self._mtu_searches.close()
            self._own_flows.close()
            for side in self._joined:
                self._points[side].chain.remove(self._stages[side])
            self._joined.clear()
            for stage in self._stages.values():
                stage.close()
            self._stages.clear()
            for loaded in (self._previous, self._current):
                if loaded:
                    loaded.close()
            for owned in self._maps:
                owned.close()
            if self._current.programs:
                self._targets.close()
                self._round_trips.close()
            if self._tables:
                self._tables.close()
            for point in self._points.values():
                self._registry.release(point)
            self._points.clear()

    def _become(self, new: PathGeneration) -> tuple[Item, ...]:
        for side, point in self._points.items():
            point.chain.replace(self._stages[side], new.programs[side].main.fd)
        grace.wait()
        items = self.export()
        self._forget_previous()
        self._previous, self._current = self._current, new
        self.generation += 1
        return items

    def _load(
        self, sources: Mapping[Side, str], compiled: Mapping[Side, Compiled]
    ) -> PathGeneration:
        """Load programs for both hooks, or raise and load none."""
        assert self._tables
        programs: dict[Side, SideProgram] = {}
        try:
            for side, one in compiled.items():
                programs[side] = SideProgram(side, one, self._tables, self._stages[side].next_fd)
        except BaseException:
            PathGeneration(sources, programs).close()
            raise
        return PathGeneration(sources, programs)

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

    def rows(self, traced: Iterable[Traced], now_ns: int) -> Array | None:
        """Return rows of dtype TRACE (n,) of the period, which ends now; None if it goes on."""
        if now_ns - self._since_ns < _OWN_PERIOD_NS and not self._leaving:
            return None
        found = {each.destination: each for each in traced}
        made = [_row(each, self._before.get(name)) for name, each in found.items()]
        rows = np.concatenate([np.empty(0, TRACE), *made, *self._leaving])
        rows["since_ns"] = self._since_ns
        self._before, self._leaving, self._since_ns = found, [], now_ns
        return rows


def _row(now: Traced, before: Traced | None) -> Array:
    row = np.zeros(1, TRACE)
    packed = ipaddress.ip_address(now.destination).packed
    row["destination"] = np.frombuffer(packed.ljust(16, b"\0"), "u1")
    row["version"] = 4 if len(packed) == 4 else 6
    row["routers"] = now.length
    for name, counter in _COUNTERS.items():
        row[name] = getattr(now, counter) - (getattr(before, counter) if before else 0)
    return row
