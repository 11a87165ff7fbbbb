"""A control plane without a kernel, except that a test may give it the real compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bpf.abi import ProgType
from bpf.compiler import Compiler, Diagnostic
from bpf.errors import UsageError
from probes.config.map_config import Metric
from probes.config.model import DirectionConfig, ProbeConfig
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.state import PolicyState
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.path.traced import Traced
from probes.reports import (
    Check,
    Compatibility,
    Cost,
    Entry,
    Fate,
    MapFate,
    MapReading,
    MapReadings,
    NoOutputs,
    OutputControl,
    ProbeInfo,
    ProgramInfo,
    Replacement,
    Value,
)
from probes.snapshot import Event, Snapshot
from tests.probes.segment.fake import FakeSegment
from tests.support.console.feed import FakeController

if TYPE_CHECKING:
    from probes.flow.filter import FlowFilter
    from probes.monitor.policy import Policy

SOURCE = """\
#include "probe.h"
#include "packet.h"

struct key {
    u32 saddr;
    u16 port;
};

BPF_HASH(seen, struct key, u64, 1024);

/* Counts packets by their sender. */
int watch(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct key key = {};
    u64 one = 1;

    if (data + 34 > end)
        return XDP_PASS;
    if (*(u16 *)(data + 12) != 8)
        return XDP_PASS;
    key.saddr = *(u32 *)(data + 26);
    u64 *count = seen.lookup(&key);
    if (count)
        *count += 1;
    else
        seen.update(&key, &one);
    return XDP_PASS;
}
"""
EGRESS = SOURCE.replace("xdp_md", "__sk_buff").replace("XDP_PASS", "TC_ACT_OK")
NOTHING = Compatibility((), (), (), ())
LOSING = Compatibility(
    (
        MapFate("ingress", "seen", Fate.EMPTY, "value 16 bytes, was 8", 9),
        MapFate("ingress", "old_totals", Fate.GONE, "", 0),
        MapFate("ingress", "config", Fate.KEPT, "", 0),
    ),
    ("ingress.totals",),
    ("ingress.senders",),
    ("another verdict for a frame of 64 bytes: XDP_DROP, was XDP_PASS",),
)


def config(name: str = "hello", *, egress: bool = True) -> ProbeConfig:
    senders = Metric(name="senders", map="seen")
    return ProbeConfig(
        name=name,
        interval=1.0,
        ingress=DirectionConfig(interface="eth0", source=SOURCE, metrics=(senders,)),
        egress=DirectionConfig(interface="eth0", source=EGRESS, metrics=(senders,))
        if egress
        else None,
    )


def info(of: ProbeConfig, generation: int = 1, previous: int | None = None) -> ProbeInfo:
    hooks = {"ingress": ("xdp", "native"), "egress": ("tc egress", "tcx")}
    programs = tuple(
        ProgramInfo(side, direction.interface, *hooks[side], "watch", 40 + generation, 81_920)
        for side, direction in of.directions()
    )
    metrics = tuple(f"{s}.{m.name}" for s, direction in of.directions() for m in direction.metrics)
    builtin = of.name == "flow"
    return ProbeInfo(of.name, builtin, generation, previous, 12, programs, metrics, "", of)


class FakePlane(FakeSegment, FakeController):
    """A ControlPlane whose answers a test may set; `asked` lists the requests."""

    def __init__(self, *configs: ProbeConfig) -> None:
        super().__init__()
        self.read_only = ""
        self.unwritten: Mapping[str, int] = {}
        self.outputs: OutputControl = NoOutputs()
        self.running = {one.name: info(one) for one in configs}
        self.before: dict[str, ProbeConfig] = {}
        self.asked: list[tuple[str, str]] = []
        self.compatibility: Compatibility | None = NOTHING
        self.cuts: tuple[str, ...] = ()
        self.diagnostics: tuple[Diagnostic, ...] = ()
        self.refusal: Exception | None = None
        """The error that every check or change raises."""
        self.readings: tuple[MapReading, ...] = ()
        """The maps of every probe."""
        self.paths: dict[str, Traced] = {}
        self._path_options = PathOptions()
        self.monitor_info: MonitorInfo | None = None
        self.compiler: Compiler | None = None
        self.gate = threading.Event()
        """A check waits for it."""
        self.gate.set()

    def probes(self) -> tuple[ProbeInfo, ...]:
        return tuple(self.running.values())

    def check(self, config: ProbeConfig) -> Check:
        self.asked.append(("check", config.name))
        self.gate.wait(10)
        if self.refusal is not None:
            raise self.refusal
        if self.compiler is not None and config.ingress is not None:
            name = f"{config.name}.ingress.c"
            self.compiler.compile(config.ingress.source, ProgType.XDP, name=name).close()
        costs = (Cost("ingress", 43.1),)
        return Check(self.diagnostics, self.compatibility, 0.026, costs, self.cuts)

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        self.asked.append(("add", config.name))
        if self.cuts and not force:
            raise UsageError(self.cuts[0])
        if config.name in self.running:
            raise UsageError(f"a probe of the name {config.name} runs")
        self.running[config.name] = info(config)
        return self.running[config.name]

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        self.asked.append(("replace", config.name))
        if self.cuts and not force:
            raise UsageError(self.cuts[0])
        if self.refusal is not None:
            raise self.refusal
        old = self.running[config.name]
        self.before[config.name] = old.config
        self.running[config.name] = info(config, old.generation + 1, old.generation)
        return Replacement(old.generation + 1, 0.0031, self.compatibility or NOTHING)

    def roll_back(self, name: str) -> Replacement:
        self.asked.append(("roll_back", name))
        if name not in self.before:
            raise UsageError(f"{name} has no generation before this one")
        old = self.running[name]
        self.running[name] = info(self.before.pop(name), old.generation + 1)
        return Replacement(old.generation + 1, 0.002, NOTHING)

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        self.asked.append(("reconfigure", capture.text))
        self.capture = capture.text
        return Replacement(2, 0.003, NOTHING)

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        self.asked.append(("remove", name))
        self._check_known(name, self.running)
        del self.running[name]
        return ()

    def export(self, name: str) -> tuple[Snapshot, ...]:
        self.asked.append(("export", name))
        self._check_known(name, self.running)
        return ()

    def maps(self, name: str, most: int = 1000) -> MapReadings:
        self._check_known(name, self.running)
        info = self.running[name]
        return MapReadings(name, info.generation, 0, 0.0, time.monotonic_ns(), self.readings)

    def entries(self, name: str, map_name: str) -> list[Entry]:
        return []

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        self.asked.append(("set", name))

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        self.asked.append(("unset", name))
        return True

    def cost(self, name: str) -> tuple[Cost, ...]:
        self.asked.append(("cost", name))
        self._check_known(name, self.running)
        return (Cost("ingress", 41.27), Cost("egress", 55.0))

    def switch(self, name: str, on: bool) -> None:
        self.asked.append((name, str(on)))

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        self.asked.append(("trace", f"{destination} {tuple(flow)}" if flow else destination))
        if self.refusal is not None:
            raise self.refusal
        flows = (flow,) if flow else ()
        self.paths.setdefault(
            destination, Traced(destination, flows, 0, (), (), packets=0, sent=0, matched=0)
        )

    @property
    def path_options(self) -> PathOptions:
        return self._path_options

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        self.asked.append(("path_options", str(options.guarded)))
        if self.refusal is not None:
            raise self.refusal
        self._path_options = options

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        self.asked.append(("untrace", f"{destination} {tuple(flow)}" if flow else destination))
        self._check_known(destination, self.paths)
        del self.paths[destination]

    def traced(self) -> tuple[Traced, ...]:
        return tuple(self.paths.values())

    def monitor(self) -> MonitorInfo | None:
        return self.monitor_info

    def set_policy(self, policy: Policy) -> PolicyInfo:
        self.asked.append(("set_policy", policy.to_short()))
        self.gate.wait(10)
        return self._stands(policy.name, policy=policy, state=PolicyState.ARMED)

    def remove_policy(self, name: str) -> None:
        self.asked.append(("remove_policy", name))
        assert self.monitor_info is not None
        rest = tuple(one for one in self.monitor_info.policies if one.policy.name != name)
        self.monitor_info = replace(self.monitor_info, policies=rest)

    def activate_policy(self, name: str) -> PolicyInfo:
        self.asked.append(("activate_policy", name))
        return self._stands(name, state=PolicyState.ACTIVE, forced=True)

    def deactivate_policy(self, name: str) -> PolicyInfo:
        self.asked.append(("deactivate_policy", name))
        return self._stands(name, state=PolicyState.ARMED, forced=False)

    def stop_actions(self) -> int:
        self.asked.append(("stop_actions", ""))
        return 1

    def _stands(self, name: str, **changes: object) -> PolicyInfo:
        """Have a policy, a new one too, be as `changes` say."""
        if self.refusal is not None:
            raise self.refusal
        assert self.monitor_info is not None
        known = {one.policy.name: one for one in self.monitor_info.policies}
        now = time.time_ns()
        before = known.get(name) or PolicyInfo(None, PolicyState.OFF, now, 0, False, "", 0)  # type: ignore[arg-type]
        known[name] = replace(before, since_utc_ns=now, **changes)  # type: ignore[arg-type]
        self.monitor_info = replace(self.monitor_info, policies=tuple(known.values()))
        return known[name]

    def _check_known(self, name: str, known: Container[str]) -> None:
        if name not in known:
            raise UsageError(f"there is no {name!r}")

    def fail(self, name: str, why: str) -> None:
        self.running[name] = replace(self.running[name], failure=why)

    def say(self, name: str, text: str) -> None:
        self.publish(Event.now("info", name, text))

    def close(self) -> None:
        pass
