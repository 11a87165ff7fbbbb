"""The monitor as a probe: swaps and reads its programs, and runs its policies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bpf.attach.chain import Stage
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from bpf.programs import grace
from probes.builtin import (
    BuiltinProbe,
    CompiledSides,
    ProbeMaps,
    check_maps,
    check_programs,
    shape_of,
)
from probes.flow.sizes import DATAGRAMS
from probes.hooks import Hooks, MonitoredHook, ProbeHook
from probes.map_reading import LentMap, lend
from probes.monitor.applications.catalog import seed_trial_packet
from probes.monitor.counting.outgoing import Outgoing
from probes.monitor.engine import Engine, PolicyStatus, PolicyTransition
from probes.monitor.finding import Finding
from probes.monitor.info import PolicyInfo
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.owners.follow import OwnerFollower
from probes.monitor.policy_log import PolicyLog
from probes.monitor.programs import (
    FUNCTION,
    GIVEN,
    PROGRAMS,
    SHARED,
    SOURCE,
    MonitorGeneration,
    SketchHalf,
    ask_for_offload,
    load,
    macros_of,
    own_macros,
    receiver_key,
    seed_id,
    set_router,
)
from probes.monitor.records import METRIC, Array
from probes.monitor.router import PolicyRouter
from probes.monitor.selected_counters import HALVES, MODELS, SelectedCounters
from probes.monitor.sketch import Sketch
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.reports import Compatibility, Fate, MapFate, ProgramInfo
from probes.snapshot import Item

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side
    from probes.monitor.policy import Policy
    from probes.monitor.selected import Estimate, SelectedMetric

Find = Callable[[Sequence[PolicyStatus], int, int], Mapping[str, Finding]]
"""Findings by policy, of a window's start and end (CLOCK_MONOTONIC)."""
_SKETCHES = 16 << 20
"""Bytes of registers of past windows that are kept."""
_MAX_SKETCHES = 3600
_CALLS = 2
"""Tail calls of the kernel: to `route`, and to `finish`; for telemetry also to `count_records`."""


class MonitorProbe(BuiltinProbe[MonitorGeneration]):
    """Metrics of all incoming packets (S2.5 to S2.8), and policies over them (S2.9)."""

    name = PROBE
    function = FUNCTION

    def __init__(
        self,
        compiler: Compiler,
        interface: Interface,
        hooks: Hooks,
        options: MonitorOptions = MonitorOptions(),  # noqa: B008 - immutable
    ) -> None:
        """Join the hook's chain, and offer applications a hook behind it.

        `changed` gets the policies that became active or inactive, in the thread that changed them.
        Raises ProbedeckError, and then leaves nothing behind.
        """
        options.check()
        super().__init__(compiler, interface, options.interval)
        self.options = options
        self._registry = hooks
        self.changed: Callable[[Sequence[PolicyTransition]], None] = lambda transitions: None
        """Called with policies that became active or inactive, by the thread that changed them."""
        self.find: Find = lambda begun, start_ns, end_ns: {}
        """Finds out who made policies begin, from the flows of a time."""
        self.ends: Callable[[], None] = lambda: None
        """Called before the last window."""
        self._point = hooks.acquire(interface, hooks.choose(interface, options.ingress).hook)
        self._stage = Stage(self.name)
        self._reserved = 0
        self._active = 0
        self._engine = Engine()
        self._log = PolicyLog(self._engine, self._utc)
        self.transitions: Sequence[PolicyTransition] = ()
        """Transitions of the last window."""
        self._seed = seed_id(options.seed)
        self.selected: Mapping[SelectedMetric, Estimate] = {}
        """Metrics of selections in the last window, of those that were counted in all of it."""
        size = min(_MAX_SKETCHES, _SKETCHES // (4 << options.bits))
        self._sketches: deque[Sketch] = deque(maxlen=size)
        self._shared: ProbeMaps | None = None
        self._router: PolicyRouter | None = None
        self._counters: SelectedCounters | None = None
        self._behind: MonitoredHook | None = None
        self._current = MonitorGeneration(SOURCE.read_text(encoding="utf-8"), (), ())
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.offload = ask_for_offload(interface) if options.offload else ""
        """Result of the request to offload, in one line; empty without a request (S2.20)."""
        self._start_ns = self._now()

    def points(self) -> Mapping[Side, ProbeHook]:
        return {"ingress": self._point}

    def dependents(self) -> tuple[str, ...]:
        """Applications, which leave the monitor before it ends."""
        return tuple(self.router.given())

    def wind_up(self) -> None:
        self.ends()

    def _start(self) -> None:
        with self._compile("ingress", self._current.source) as compiled:
            self._shared = ProbeMaps(compiled, SHARED, {"datagrams": DATAGRAMS})
            self._router = PolicyRouter(compiled, self._shared, self._point.chain.reserve)
            self.owners = OwnerFollower(self._router)
            self._counters = SelectedCounters(self._router.selections)
            self._outgoing = Outgoing(
                self._compiler, self._point, self._registry, self.options, self._shared.fds,
                self._counters,
            )  # fmt: skip
            kept = (*SHARED, *MODELS, "sketches")
            self._shapes = {name: shape_of(compiled.maps[name]) for name in kept}
            self._shipped = frozenset(compiled.maps)
            self._current = self._load(self._current.source, compiled)
        for receiver in self.options.receivers:
            self._router.receive(receiver_key(receiver))
        self._route_to(self._current)
        self._point.chain.append(self._stage, self._current.halves[0].program.fd)
        calls = _CALLS + (self.options.input is Input.TELEMETRY)
        self._point.chain.reserve(calls)
        self._reserved = calls
        # Last: a program that does not load must not touch the interface.
        self._registry.attach(self._point)
        macros = macros_of(self.options, self.interface, self._point.hook)
        given = {name: self._shared.fds[name] for name in GIVEN}
        self._behind = MonitoredHook(self._point, self._router, macros, given, seed_trial_packet)
        self._registry.offer(self._behind)

    @property
    def router(self) -> PolicyRouter:
        assert self._router
        return self._router

    @property
    def counters(self) -> SelectedCounters:
        assert self._counters
        return self._counters

    @property
    def config(self) -> ProbeConfig:
        return self._described(
            {"ingress": self._current.source}, METRICS_TABLE, "sketches", FUNCTION
        )

    def set_policy(self, policy: Policy, applications: Sequence[str]) -> None:
        """Add a policy, or replace the one of this name; other policies run on."""
        policy = policy.model_copy(update={"trusted": self.options.trusted})
        with self._lock:
            counted = [metric for metric in policy.metrics if not metric.of_owners]
            self._outgoing.see(counted, self._current.halves, self._active)
            with self.counters.changed(policy.name, counted):
                self.owners.set_policy(policy, applications)
            # Cannot fail: the router has accepted the policy, and Policy has validated it.
            transition = self._engine.set(policy, self._now())
            self._outgoing.settle()
            self.router.activate(self._engine.active())
            self._made_now(transition)

    def remove_policy(self, name: str) -> None:
        """Remove a policy. Raises UsageError if the name is unknown."""
        with self._lock:
            self._engine.remove(name)
            self.owners.remove_policy(name)
            self.counters.forget(name)
            self._outgoing.settle()
            self._log.forget(name)

    def activate(self, name: str) -> None:
        """Run a policy until `deactivate`."""
        with self._lock:
            self._made_now(self._engine.activate(name, self._now()))

    def deactivate(self, name: str) -> None:
        with self._lock:
            self._made_now(self._engine.deactivate(name, self._now()))

    def policies(self) -> tuple[PolicyInfo, ...]:
        with self._lock:
            selected = self.router.selected()
            return tuple(
                self._log.info(status, selected[status.policy.name])
                for status in self._engine.policies()
            )

    def statuses(self) -> tuple[PolicyStatus, ...]:
        """Return the policies with the outcomes of their conditions after the last window."""
        with self._lock:
            return self._engine.policies()

    def sketch(self, windows: int = 1) -> Sketch:
        """The last windows' registers, merged. Raises UsageError if no window has ended yet."""
        with self._lock:
            if windows < 1:
                raise UsageError(f"a sketch has at least one window, not {windows}")
            if not self._sketches:
                raise UsageError("no window of the monitor has ended yet")
            last, *others = list(self._sketches)[-windows:]
            return last.merged(*others)

    def export(self) -> tuple[Item, ...]:
        """End the window: swap, wait, read; then evaluate every policy."""
        with self._lock:
            started = time.monotonic_ns()
            old = self._current.halves[self._active]
            self._active ^= 1
            new = self._current.halves[self._active]
            self._point.chain.replace(self._stage, new.program.fd)
            self._outgoing.swap(self._active)
            return self._end_window(old, started)

    def _check(self, side: Side, compiled: Compiled) -> None:
        check_programs(compiled, side, PROGRAMS)
        check_maps(compiled, side, self._shapes)

    def compare(self, compiled: CompiledSides) -> Compatibility:
        """Maps that `replace` would keep: selections and applications; each window starts empty
        anyway."""
        fates = (
            MapFate("ingress", "sketches", Fate.WINDOW, "", 0),
            *(MapFate("ingress", name, Fate.KEPT, "", 0) for name in SHARED),
        )
        return Compatibility(fates, (), (), ())

    def replace(self, compiled: CompiledSides) -> tuple[Item, ...]:
        """Replace the running programs by those of an edited source. Returns the window that
        ended."""
        with self._lock:
            assert compiled.config.ingress
            source = compiled.config.ingress.source
            return self._become(self._load(source, compiled.sides["ingress"]))

    def programs(self) -> tuple[ProgramInfo, ...]:
        with self._lock:
            assert self._shared
            program = self._current.halves[self._active].program
            memory = self._current.memory() + self._shared.memory() + self.counters.memory()
            return (self._program_info("ingress", program, memory),)

    def close(self) -> None:
        """Leave the hook. Raises UsageError while applications are loaded."""
        with self._lock:
            if self._behind:
                self._registry.withdraw(self._behind)
                self._behind = None
            if self._counters:
                self._outgoing.close()
            if self._stage.prog_fd >= 0:
                self._point.chain.remove(self._stage)
            self._point.chain.reserve(-self._reserved)
            self._stage.close()
            self._forget_previous()
            self._current.close()
            if self._counters:
                self._counters.close()
            if self._router:
                self._router.close()
            if self._shared:
                self._shared.close()
            self._registry.release(self._point)

    def _lent(self) -> Iterator[LentMap]:
        return lend("ingress", self._current.halves[self._active].program, self._shipped)

    def _become(self, new: MonitorGeneration) -> tuple[Item, ...]:
        started = time.monotonic_ns()
        old = self._current.halves[self._active]
        self._route_to(new)
        self._active ^= 1  # both generations of a half have the same slots
        self._point.chain.replace(self._stage, new.halves[self._active].program.fd)
        self._outgoing.reload(new.halves, self._active)
        items = self._end_window(old, started)
        self._forget_previous()
        self._previous, self._current = self._current, new
        self.generation += 1
        return items

    def _end_window(self, ended: SketchHalf, started_ns: int) -> tuple[Item, ...]:
        """End the window of a program that was just swapped out, and apply its transitions."""
        end_ns = self._now()
        grace.wait()
        quiet_ns = time.monotonic_ns()
        row, registers = ended.read()
        losses = ended.losses()
        sketch = Sketch.of_cpus(registers, self.options.bits, self._seed)
        seconds = (end_ns - self._start_ns) / 1e9
        counted = self.counters.end_window(self._active ^ 1, ended.sketches)
        self.selected = counted | self.owners.end_window(self._engine.metrics(), seconds)
        ended.clear()
        row["flows"] = sketch.flows()
        row["flows_low"], row["flows_high"] = sketch.band()
        transitions = self._engine.window(row, end_ns, seconds, self.selected)
        self._apply(transitions, row, self._start_ns, end_ns)
        self.transitions = transitions
        self._sketches.append(sketch)
        self.window += 1
        rows = {METRICS_TABLE: row.reshape(1), **self._log.tables(self.router.selected())}
        self.latest = tuple(
            self._snapshot(
                table,
                end_ns,
                losses if name == METRICS_TABLE else {},
                0.0,
                quiet_ns=quiet_ns,
                swap_ns=quiet_ns - started_ns,
                table=name,
            )
            for name, table in rows.items()
        )
        self._start_ns = end_ns
        return (*self.latest, *self._log.events(), *self.owners.events())

    def _made_now(self, transition: PolicyTransition | None) -> None:
        """Apply an operator's transition."""
        if transition:
            end_ns = transition.at_ns
            start_ns = end_ns - round((self.interval or 1) * 1e9)
            self._apply([transition], np.zeros((), METRIC), start_ns, end_ns)

    def _apply(
        self, transitions: Sequence[PolicyTransition], row: Array, start_ns: int, end_ns: int
    ) -> None:
        """Apply the transitions of a window. Packets reach applications before culprits are
        sought."""
        if transitions:
            self.router.activate(self._engine.active())
            names = {each.policy for each in transitions if each.begins}
            begun = [each for each in self._engine.policies() if each.policy.name in names]
            self._log.add(transitions, row, self.find(begun, start_ns, end_ns) if begun else {})
            if changes := [t for t in transitions if t.before.runs != t.after.runs]:
                self.changed(changes)

    def _route_to(self, loaded: MonitorGeneration) -> None:
        """Route packets to this source's router, and back to its exit."""
        assert self._shared
        set_router(self._shared, loaded)
        self.counters.write_to([each.sketches for each in loaded.halves])
        self.router.set_exit(loaded.finish_fd)

    def _load(self, source: str, compiled: Compiled) -> MonitorGeneration:
        assert self._shared
        halves = [{**self._shared.fds, **self.counters.maps_of(half)} for half in range(HALVES)]
        return load(source, compiled, halves, self._stage.next_fd)

    def _compile(self, side: Side, source: str) -> Compiled:
        macros = macros_of(self.options, self.interface, self._point.hook)
        return self._compile_with(side, source, {**macros, **own_macros(self.options)})
