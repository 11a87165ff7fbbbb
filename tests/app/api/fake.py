"""A control plane without a kernel: probes that only count the windows they have ended."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bpf.compiler import CompileError, Diagnostic
from bpf.errors import KernelError, ProbedeckError, UsageError
from probes.config.map_config import MapOptions, Metric
from probes.config.model import DirectionConfig, ProbeConfig
from probes.control.trials import CutError
from probes.control_plane import Listener
from probes.flow.filter import FlowFilter
from probes.monitor.finding import Distinct, Finding, TopShare
from probes.monitor.info import ApplicationInfo, MonitorInfo, PolicyInfo
from probes.monitor.options import Input
from probes.monitor.policy import BUILT_IN, Policy, check_names
from probes.monitor.sketch import Sketch
from probes.monitor.state import PolicyState
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.traced import Traced
from probes.reports import (
    BudgetUse,
    Check,
    Compatibility,
    Cost,
    Entry,
    Fate,
    MapFate,
    MapReading,
    MapReadings,
    MemoryUse,
    NoOutputs,
    OutputControl,
    ProbeInfo,
    ProgramInfo,
    Replacement,
    Value,
)
from probes.snapshot import Event, History, HookStatus, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.probes.ring.fake import FakeRing
from tests.probes.segment.fake import FakeSegment

BROKEN = "int broken("
"""A source that holds this does not compile."""
REFUSED = "unbounded"
"""Nor does the verifier take this one."""
NO_KERNEL = "no_kernel"
"""The kernel can't run this one."""
CUTS = "cuts"
"""And this one takes every packet."""
VERIFIER_LOG = "0: (b7) r0 = 0\n; for (;;) @ probe.c:3\ninfinite loop detected at insn 2\n"
DTYPE = np.dtype([("key", "<u4"), ("value", "<u8")])
PROFILES = {"both": ("dns", "half_open")}
KEPT = MapFate("ingress", "packets", Fate.KEPT, "", 3)
LOST = MapFate("ingress", "seen", Fate.EMPTY, "value 8 bytes, was 4", 4)


def config(name: str = "counter", *, source: str = "int f() { return 2; }") -> ProbeConfig:
    """With a map that operators may write."""
    metrics = tuple(Metric(name=n, map=n, snapshot=True) for n in ("packets", "bytes"))
    return ProbeConfig(
        name=name,
        interval=0,
        ingress=DirectionConfig(interface="lo", source=source, metrics=metrics),
        maps={"allow": MapOptions(writable=True)},
    )


class FakePlane(FakeRing, FakeSegment):
    """A ControlPlane. Each window's tables have one row; its value is the window's number."""

    def __init__(self) -> None:
        self.history = History()
        self.late_by = 0.0
        self.read_only = ""
        self.unwritten: Mapping[str, int] = {}
        self.outputs: OutputControl = NoOutputs()
        self.interval = 1.0
        self.confinement = ""
        """What `unconfined` returns."""
        self.gate = threading.Event()
        """Cleared: exports and compiles wait."""
        self.gate.set()
        self.rules: dict[str, Value] = {}
        """Entries of every writable map."""
        self.source_name = "probe.c"
        """File name of a source in remarks."""
        self.captures: list[str] = []
        """Filters of flows, one after another."""
        self.busy = 0
        """How many wait or work now."""
        self.monitors = True
        self.in_use = ""
        """An application that an active policy runs."""
        """Whether the monitor runs."""
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []
        self._probes: dict[str, ProbeInfo] = {}
        self.path_options = PathOptions()
        self._traced: dict[str, tuple[TracedFlow, ...]] = {}
        self.own_flow: OwnFlow | None = None
        """Of the last request."""
        self._policies: dict[str, PolicyInfo] = {}

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def publish(self, item: Snapshot | Event) -> None:
        if isinstance(item, Snapshot):
            self.history.append(item)
        for listener in self._listeners:
            listener(item)

    def probes(self) -> tuple[ProbeInfo, ...]:
        return tuple(self._probes.values())

    def check(self, config: ProbeConfig) -> Check:
        self._work()
        warnings = self._compile(config)
        there = self._probes.get(config.name)
        compatibility = None if there is None else self._compatibility(there.config, config)
        return Check(warnings, compatibility, 0.026, (Cost("ingress", 12.5),), _cuts(config))

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        self._work()
        self._compile(config)
        _refuse_cuts(config, force)
        with self._lock:
            if config.name in self._probes:
                raise UsageError(f"a probe {config.name} runs")
            programs = tuple(
                ProgramInfo(side, d.interface, "xdp", "generic", "f", 7, 4096)
                for side, d in config.directions()
            )
            self._probes[config.name] = ProbeInfo(
                config.name, False, 1, None, 1, programs, _metrics(config), "", config
            )
            self.publish(Event.now("info", config.name, "runs"))
            return replace(self._probes[config.name], warnings=_cuts(config))

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        self._work()
        self._compile(config)
        _refuse_cuts(config, force)
        with self._lock:
            info = self._info(config.name)
            self.export(config.name)
            return self._put(info, config)

    def roll_back(self, name: str) -> Replacement:
        with self._lock:
            info = self._info(name)
            if info.previous is None:
                raise ProbedeckError(f"{name} has no generation before {info.generation}")
            self.export(name)
            return self._put(info, info.config)

    @property
    def capture(self) -> str:
        return self.captures[-1] if self.captures else ""

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        self._info("flow")
        self.captures.append(capture.text)
        return Replacement(len(self.captures) + 1, 0.001, Compatibility((), (), (), ()))

    def switch(self, name: str, on: bool) -> None:
        self.captures.append(f"{name} {on}")

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        self.own_flow = own
        flows = self._traced.get(destination)
        if flow is None or flows == ():
            self._traced[destination] = ()
        elif flow not in (flows or ()):
            self._traced[destination] = (*(flows or ()), flow)

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        flows = self._traced.get(destination)
        if flows is None or (flow and flow not in flows):
            raise UsageError(f"{destination} is not traced")
        left = tuple(each for each in flows if flow and each != flow)
        if left:
            self._traced[destination] = left
        else:
            del self._traced[destination]

    def traced(self) -> tuple[Traced, ...]:
        return tuple(
            Traced(destination, flows, 6, (1, 2, 3, 4), (5,), 100, 60, 59, 2400, 3304, 1,
                   notes=("NAT or firewall behind hop 2",))
            for destination, flows in self._traced.items()
        )  # fmt: skip

    def monitor(self) -> MonitorInfo | None:
        """Its second application's cost could not be measured."""
        if not self.monitors:
            return None
        applications = (
            ApplicationInfo("dns", "DNS flows", True, 7, 21.5),
            ApplicationInfo("half_open", "half-open TCP", False, 0, math.nan),
        )
        policies = tuple(self._policies.values())
        return MonitorInfo("lo", "xdp", Input.REGULAR, 8, 1.0, "", policies, applications, PROFILES)

    def set_policy(self, policy: Policy) -> PolicyInfo:
        self.monitors = True
        check_names(policy, BUILT_IN, PROFILES)
        ports = Distinct(2, (TopShare("tcp:1", 0.5),))
        finding = Finding("192.0.2.7 scans", "src:192.0.2.7", 300, ports=ports)
        info = PolicyInfo(policy, PolicyState.ARMED, 1, 0, False, "", 0, finding)
        self._policies[policy.name] = info
        return self._policies[policy.name]

    def remove_policy(self, name: str) -> None:
        self._policy(name)
        del self._policies[name]

    def activate_policy(self, name: str) -> PolicyInfo:
        return self._move(name, PolicyState.ACTIVE, 0, True)

    def deactivate_policy(self, name: str) -> PolicyInfo:
        return self._move(name, PolicyState.COOLDOWN, 99, False)

    def stop_actions(self) -> int:
        self._monitor()
        return 2

    def sketch(self, windows: int = 1) -> Sketch:
        """Each window has a hundred other flows."""
        self._monitor()
        hashes = np.random.default_rng(1).integers(0, 1 << 64, 100 * min(windows, 5), "u8")
        return Sketch.of(hashes, 8, "seed")

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        if name == self.in_use and not force:
            raise UsageError(f"an active policy runs {name}", hint="--force")
        with self._lock:
            tables = self.export(name)
            del self._probes[name]
            return tables

    def export(self, name: str) -> tuple[Snapshot, ...]:
        self._work()
        with self._lock:
            info = self._info(name)
            self._probes[name] = replace(info, window=info.window + 1)
            tables = window(name, info.window, info.metrics, generation=info.generation)
            for table in tables:
                self.publish(table)
            return tables

    def maps(self, name: str, most: int = 1000) -> MapReadings:
        info = self._info(name)
        rows = tuple((f"192.0.2.{n}", n * 10) for n in range(9, 0, -1))[:most]
        read = MapReading(
            "ingress", "mine", "percpu hash", "hash", 64, 9, False, 9 / 64, 4096, 3,
            columns=("key", "value"), rows=rows,
        )  # fmt: skip
        ring = MapReading("ingress", "ring", "ringbuf", "", 4096, None, False, None, 0, 0, note="?")
        return MapReadings(name, info.generation, info.window, 1.0, 7, (read, ring))

    def entries(self, name: str, map_name: str) -> list[Entry]:
        return [{"key": key, "value": value} for key, value in self.rules.items()]

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        if not isinstance(key, str):
            raise UsageError(f"map {map_name}: key: {key!r} is not of type ipv4, 4 bytes")
        self.rules[key] = value

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        return self.rules.pop(str(key), None) is not None

    def cost(self, name: str) -> tuple[Cost, ...]:
        self._info(name)
        return (Cost("ingress", 12.5),)

    def unconfined(self) -> str:
        return self.confinement

    def hook_status(self) -> tuple[HookStatus, ...]:
        return (HookStatus("lo", "xdp", "generic", "no native XDP", ("XDP program 'x' id 7",)),)

    def memory(self) -> MemoryUse:
        return MemoryUse(105 << 20, 256 << 20)

    def budget(self) -> BudgetUse:
        return BudgetUse(0.05, 0.031, 0.002, ("owners",))

    def failure(self) -> ProbedeckError | None:
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _work(self) -> None:
        self.busy += 1
        try:
            self.gate.wait()
        finally:
            self.busy -= 1

    def _info(self, name: str) -> ProbeInfo:
        if name not in self._probes:
            raise UsageError(f"no probe {name}")
        return self._probes[name]

    def _monitor(self) -> None:
        if not self.monitors:
            raise UsageError("no monitor runs")

    def _policy(self, name: str) -> PolicyInfo:
        self._monitor()
        if name not in self._policies:
            raise UsageError(f"no policy {name}")
        return self._policies[name]

    def _move(self, name: str, state: PolicyState, until: int, forced: bool) -> PolicyInfo:
        info = self._policy(name)
        moved = replace(info, state=state, until_utc_ns=until, forced=forced, cause="an operator")
        self._policies[name] = moved
        return moved

    def _put(self, info: ProbeInfo, config: ProbeConfig) -> Replacement:
        self._probes[info.name] = replace(
            self._probes[info.name],
            generation=info.generation + 1,
            previous=info.generation,
            metrics=_metrics(config),
            config=config,
        )
        return Replacement(info.generation + 1, 0.002, self._compatibility(info.config, config))

    def _compatibility(self, old: ProbeConfig, new: ProbeConfig) -> Compatibility:
        before, after = set(_metrics(old)), set(_metrics(new))
        lost, more = tuple(sorted(before - after)), tuple(sorted(after - before))
        return Compatibility((KEPT, LOST), lost, more, ("another verdict for a frame",))

    def _compile(self, config: ProbeConfig) -> tuple[Diagnostic, ...]:
        for _, direction in config.directions():
            if BROKEN in direction.source:
                line = direction.source[: direction.source.index(BROKEN)].count("\n") + 1
                first = Diagnostic(self.source_name, line, 12, "error", "expected ')'")
                raise CompileError(config.name, (first, replace(first, severity="note")))
            if REFUSED in direction.source:
                refused = Diagnostic(self.source_name, 3, 0, "error", "the verifier refused f")
                raise CompileError(config.name, (refused,), VERIFIER_LOG)
            if NO_KERNEL in direction.source:
                raise KernelError("the kernel has no such map", hint="a newer kernel does")
        return (Diagnostic(self.source_name, 1, 5, "warning", "unused variable"),)


def _metrics(config: ProbeConfig) -> tuple[str, ...]:
    return tuple(f"{s}.{m.name}" for s, d in config.directions() for m in d.metrics)


def window(
    name: str, number: int, metrics: Sequence[str], *, rows: int = 1, generation: int = 1
) -> tuple[Snapshot, ...]:
    """One window's tables."""
    now = time.monotonic_ns()
    values = np.zeros(rows, DTYPE)
    values["value"] = number
    return tuple(
        Snapshot(
            probe=name,
            interface="lo",
            window=number,
            generation=generation,
            start_ns=now - 1000,
            end_ns=now,
            end_utc_ns=time.time_ns(),
            rows=values.copy(),
            losses={},
            occupancy=0.5,
            swap_ns=1,
            drain_ns=2,
            side=metric.partition(".")[0],
            metric=metric.partition(".")[2],
            schema=TableSchema(TableKind.HASH, "what it is"),
        )
        for metric in metrics
    )


def _cuts(config: ProbeConfig) -> tuple[str, ...]:
    source = config.ingress.source if config.ingress else ""
    return ("ingress lets none of the test frames pass",) if CUTS in source else ()


def _refuse_cuts(config: ProbeConfig, force: bool) -> None:
    if (cuts := _cuts(config)) and not force:
        raise CutError(config.name, cuts)
