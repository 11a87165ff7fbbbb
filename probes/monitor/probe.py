"""The monitor as a probe: swaps and reads its programs, and runs its policies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpf.arrays import Array
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, Compiler
from bpf.errors import UsageError
from bpf.programs.program import Program
from bpf.syscall import prog_array_set
from probes.builtin import BuiltinProbe, Generation, ProbeMaps
from probes.flow.records import DATAGRAMS
from probes.hooks import Hooks, MonitoredHook
from probes.monitor.actions.programs import ActionPrograms
from probes.monitor.actions.runner import Actions
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
    MonitorPrograms,
    SketchHalf,
    ask_for_offload,
    macros_of,
    own_macros,
    receiver_key,
    seed_id,
)
from probes.monitor.records import METRIC
from probes.monitor.router import PolicyRouter
from probes.monitor.selected_counters import HALVES, MODELS, SelectedCounters
from probes.monitor.sketch import Sketch
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.reports import Fate
from probes.snapshot import Item
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.config.model import Side
    from probes.monitor.policy import Policy
    from probes.monitor.selected import Estimate, SelectedMetric

Find = Callable[[Sequence[PolicyStatus], int, int], Mapping[str, Finding]]
"""Findings by policy, of a window's start and end (CLOCK_MONOTONIC)."""
_SKETCHES = 16 << 20
"""Bytes of registers of past windows that are kept."""
_MAX_SKETCHES = 3600
_CALLS = 2
"""Tail calls of the kernel: to `route`, and to `finish`; for telemetry also to `count_records`."""


class MonitorProbe(BuiltinProbe[MonitorPrograms]):
    """Metrics of all incoming packets (S2.5 to S2.8), and policies over them (S2.9)."""

    name = PROBE
    function = FUNCTION
    sources: Mapping[Side, Path] = {"ingress": SOURCE}
    metric = (METRICS_TABLE, "sketches")
    needed: Mapping[Side, Sequence[str]] = {"ingress": PROGRAMS}
    kept = (*SHARED, *MODELS, "sketches")
    fates: Mapping[str, Fate] = {"sketches": Fate.WINDOW, **dict.fromkeys(SHARED, Fate.KEPT)}
    """Selections and applications are kept; each window starts empty anyway."""

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
        self.begins: Callable[[Sequence[PolicyStatus]], None] = lambda begun: None
        """Called at once with policies that became active, before their culprits are sought."""
        self.ends: Callable[[], None] = lambda: None
        """Called before the last window."""
        self._engine = Engine()
        self._log = PolicyLog(self._engine, self._utc)
        self.transitions: Sequence[PolicyTransition] = ()
        """Transitions of the last window."""
        self._seed = seed_id(options.seed)
        self.selected: Mapping[SelectedMetric, Estimate] = {}
        """Metrics of selections in the last window, of those that were counted in all of it."""
        size = min(_MAX_SKETCHES, _SKETCHES // (4 << options.bits))
        self._sketches: deque[Sketch] = deque(maxlen=size)
        self._behind: MonitoredHook | None = None
        self.suspended = False
        """Whether to leave the hooks at the end of the window; then, to join them again."""
        self.joined = 1
        """Number of windows that end as one. Only captures join windows."""
        self._rests = False
        """Whether no packets come."""
        self._start(hooks, {"ingress": hooks.choose(interface, options.ingress).hook})
        point = self._slots["ingress"].point
        macros = macros_of(options, interface, point.hook)
        given = {name: self._shared.fds[name] for name in GIVEN}
        self._behind = MonitoredHook(point, self.router, macros, given, seed_trial_packet)
        hooks.offer(self._behind)
        self.offload = ask_for_offload(interface) if options.offload else ""
        """Result of the request to offload, in one line; empty without a request (S2.20)."""

    def dependents(self) -> tuple[str, ...]:
        """Applications, which leave the monitor before it ends."""
        return tuple(self.router.given())

    def wind_up(self) -> None:
        """End traces and actions, and take no further applications."""
        self.ends()
        with self._lock:
            if self._behind:
                self._registry.withdraw(self._behind)
            self.actions.stop("the monitor ends")

    def _make_maps(self, sides: Mapping[Side, Compiled]) -> None:
        (compiled,), point = sides.values(), self._slots["ingress"].point
        self._shared = ProbeMaps(compiled, SHARED, {"datagrams": DATAGRAMS})
        self._owned.callback(self._shared.close)
        self.router = PolicyRouter(compiled, self._shared, point.chain.reserve)
        self._owned.callback(self.router.close)
        self.owners = OwnerFollower(self.router)
        self.counters = SelectedCounters(self.router.selections)
        self._owned.callback(self.counters.close)
        self._outgoing = Outgoing(
            self._compiler, point, self._registry, self.options, self._shared.fds, self.counters
        )
        self._owned.callback(self._outgoing.close)
        self.actions = Actions(
            ActionPrograms(
                self._compiler, point, self._registry,
                self.options.tunnels is not Tunnels.OUTER, self._shared.fds["datagrams"],
            ),
            point, self.options, self._utc.utc_ns,
        )  # fmt: skip
        self._owned.callback(self.actions.close)
        for receiver in self.options.receivers:
            self.router.receive(receiver_key(receiver))

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[MonitorPrograms]:
        halves = [{**self._shared.fds, **self.counters.maps_of(half)} for half in range(HALVES)]
        next_fd = self._slots["ingress"].stage.next_fd
        yield MonitorPrograms(sides["ingress"], halves, next_fd)

    def _reached(self) -> Iterator[tuple[Side, Program, int]]:
        for part in self._current.parts:
            memory = sum(each.program.memory() for each in part.halves)
            memory += self._shared.memory() + self.counters.memory()
            yield "ingress", part.half.program, memory

    def _join(self) -> None:
        self._route_to(self._current.parts[0])
        super()._join()
        reserve = self._slots["ingress"].point.chain.reserve
        calls = _CALLS + (self.options.input is Input.TELEMETRY)
        reserve(calls)
        self._owned.callback(reserve, -calls)

    def set_policy(self, policy: Policy, applications: Sequence[str]) -> None:
        """Add a policy, or replace the one of this name; other policies run on."""
        policy = policy.model_copy(update={"trusted": self.options.trusted})
        with self._lock:
            self.actions.prepare(policy)
            counted = self._see_outgoing(policy)
            with self.counters.changed(policy.name, counted):
                self.owners.set_policy(policy, applications)
            # Cannot fail: the router has accepted the policy, and Policy has validated it.
            transition = self._engine.set(policy, self._now())
            self._outgoing.settle()
            self.actions.set(policy)
            self._activate()
            self._made_now(transition)

    def remove_policy(self, name: str) -> None:
        """Remove a policy. Raises UsageError if the name is unknown."""
        with self._lock:
            self._engine.remove(name)
            self.actions.remove(name)
            self.owners.remove_policy(name)
            self.counters.forget(name)
            self._outgoing.settle()
            self._log.forget(name)

    def activate(self, name: str) -> None:
        """Run a policy until `deactivate`."""
        with self._lock:
            self.actions.resume(name)
            self._made_now(self._engine.activate(name, self._now()))
            self._activate()

    def deactivate(self, name: str) -> None:
        with self._lock:
            self._made_now(self._engine.deactivate(name, self._now()))

    def policies(self) -> tuple[PolicyInfo, ...]:
        with self._lock:
            selected = self.router.selected()
            statuses = {each.policy.name: each for each in self._engine.policies()}
            return tuple(
                self._log.info(status, selected[name], self.actions.info(name))
                for name, status in statuses.items()
            )

    def stop_actions(self) -> int:
        """End the actions of all policies. Returns the number that ran."""
        with self._lock:
            return self.actions.stop()

    def statuses(self) -> tuple[PolicyStatus, ...]:
        """Return the policies with the outcomes of their conditions after the last window."""
        with self._lock:
            return self._engine.policies()

    def export(self) -> Sequence[Item]:
        with self._lock:
            if self.suspended and not self._rests:
                # Leave before the last window ends, so that no packet counts for the next one.
                self._slots["ingress"].leave()
            items: Sequence[Item] = () if self._rests else super().export()
            if self.suspended and not self._rests:
                self._outgoing.close()
            elif self._rests and not self.suspended:
                super()._join()
                for status in self._engine.policies():
                    self._see_outgoing(status.policy)
            self._rests = self.suspended
            if not items:
                self._start_ns = self._now()
            return items

    def _see_outgoing(self, policy: Policy) -> list[SelectedMetric]:
        """Attach the program for outgoing packets if a policy needs it; return its metrics."""
        counted = [metric for metric in policy.metrics if not metric.of_owners]
        if not self._rests or not self.suspended:
            self._outgoing.see(counted, self._current.parts[0])
        return counted

    def sketch(self, windows: int = 1) -> Sketch:
        """The last windows' registers, merged. Raises UsageError if no window has ended yet."""
        with self._lock:
            if windows < 1:
                raise UsageError(f"a sketch has at least one window, not {windows}")
            if not self._sketches:
                raise UsageError("no window of the monitor has ended yet")
            last, *others = list(self._sketches)[-windows:]
            return last.merged(*others)

    def close(self) -> None:
        """Leave the hook. Raises UsageError while applications are loaded."""
        with self._lock:
            if self._behind:
                if self._behind.users:
                    raise UsageError("the monitor has applications", hint="remove them first")
                self._registry.withdraw(self._behind)
                self._behind = None
            super().close()

    def _direct(self, new: Generation[MonitorPrograms]) -> tuple[int, SketchHalf]:
        """Swap; return number and counters of the half that packets leave."""
        (old,), (part,) = self._current.parts, new.parts
        number, ended = old.active, old.half
        if part is not old:
            self._route_to(part)
        part.active = number ^ 1  # Both generations of a half have the same slots.
        self._slots["ingress"].replace(part.half.program.fd)
        self._outgoing.swap(part)
        return number, ended

    def _end_window(self, ended: tuple[int, SketchHalf], started_ns: int) -> tuple[Item, ...]:
        """End the window of a program that was just swapped out, and evaluate every policy."""
        number, half = ended
        end_ns = self._now()
        self.wait_for_packets()
        quiet_ns = time.monotonic_ns()
        row, registers = half.read()
        losses = half.losses()
        sketch = Sketch.of_cpus(registers, self.options.bits, self._seed)
        seconds = (end_ns - self._start_ns) / 1e9
        counted = self.counters.end_window(number, half.sketches, self.joined)
        self.selected = counted | self.owners.end_window(self._engine.metrics(), seconds)
        half.clear()
        row["flows"] = sketch.flows()
        row["flows_low"], row["flows_high"] = sketch.band()
        transitions = self._engine.window(row, end_ns, seconds, self.selected, self.joined)
        self.actions.end_window()
        self._apply(transitions, row, self._start_ns, end_ns)
        self.transitions = transitions
        self._sketches.append(sketch)
        self.window += 1
        rows = {
            METRICS_TABLE: row.reshape(1),
            **self._log.tables(self.router.selected(), self.actions.acted()),
        }
        points, swap_ns = self.points().values(), quiet_ns - started_ns
        self.latest = tuple(
            self._snapshot(
                table, end_ns, points, quiet_ns=quiet_ns, swap_ns=swap_ns,
                losses=losses if name == METRICS_TABLE else {}, table=name,
            )
            for name, table in rows.items()
        )  # fmt: skip
        self._start_ns = end_ns
        return (*self.latest, *self._log.events(), *self.owners.events(), *self.actions.events())

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
            self._activate()
            names = {each.policy for each in transitions if each.begins}
            begun = [each for each in self._engine.policies() if each.policy.name in names]
            self.begins(begun)
            findings = self.find(begun, start_ns, end_ns) if begun else {}
            self._log.add(transitions, row, findings)
            self.actions.blame(findings)
            if changes := [t for t in transitions if t.before.runs != t.after.runs]:
                self.changed(changes)

    def _activate(self) -> None:
        active = self._engine.active()
        self.router.activate(active)
        self.actions.follow(active)

    def _route_to(self, loaded: MonitorPrograms) -> None:
        """Route packets to this source's router, and back to its exit."""
        route, finish = loaded.steps
        prog_array_set(self._shared.fds["router"], 0, route.fd)
        self.counters.write_to([each.sketches for each in loaded.halves])
        self.router.set_exit(finish.fd)

    def _compile(self, side: Side, source: str) -> Compiled:
        macros = macros_of(self.options, self.interface, self._slots[side].point.hook)
        return self._compile_with(side, source, {**macros, **own_macros(self.options)})
