"""The life of running probes: start, poll, replace, watch, roll back, end."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from bpf.attach import ingress
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, ReadOnlyError, UsageError, did_you_mean
from bpf.maps.memory import held_maps, map_memory
from probes.builtin import BuiltinProbe
from probes.compiled_config import CompiledConfig
from probes.control.health import HealthWatches
from probes.control.hook_watch import HookWatch, attached, order_changed
from probes.control.loss_events import LossEvents
from probes.control.running_probe import Replaceable, RunningProbe, Verdicts
from probes.control.trials import CutError, changes, costs_of, cuts, verdicts_of
from probes.control_plane import (
    Check,
    Cost,
    Entry,
    Listener,
    MemoryUse,
    NoProbeError,
    ProbeInfo,
    Replacement,
    Value,
)
from probes.hooks import Hooks, InterfaceHook, XdpRefusedError
from probes.memory_limit import default_limit, refuse_over
from probes.reports import Compatibility, Fate
from probes.snapshot import REMOVED, Event, History, HookStatus, Item, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.program import ProgramProbe

_T = TypeVar("_T")
_KEPT = 4
"""Names in an event's list of maps before it is cut."""


class ProbeRunner:
    """Runs probes, and calls its listeners with each window and event, in the probes' threads.

    `ControlPlane` documents its public methods. Any thread may call them.
    """

    def __init__(self, compiler: Compiler, *, by_link: bool = True) -> None:
        self.history = History()
        """The last snapshots of every probe."""
        self.read_only = ""
        """Why changes, and loading any code, are refused; empty if they are allowed."""
        self.unwritten: Mapping[str, int] = {}
        """Rows that could not be written to this run's tables, by table."""
        self._loss_events = LossEvents()
        self.memory_limit = default_limit()
        """Bytes of kernel memory that the maps of all probes may take."""
        self._by_link = by_link
        self._compiler = compiler
        self._hooks = Hooks(self._attach)
        self._hook_watch = HookWatch(self._look_at_hooks)
        self._running: dict[str, RunningProbe] = {}
        self._changing = threading.RLock()
        self._health = HealthWatches(self.publish, self._roll_back, self._changing)
        self._listeners: tuple[Listener, ...] = ()
        self._checked: tuple[RunningProbe | None, CompiledConfig] | None = None
        """Result of the last check, and the probe that ran under its name."""
        self._closed = False

    def listen(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def publish(self, item: Item) -> None:
        if isinstance(item, Snapshot):
            self.history.append(item)
        self._health.take(item)
        for listener in self._listeners:
            listener(item)
        for event in self._loss_events.take(item):
            self.publish(event)

    def probes(self) -> tuple[ProbeInfo, ...]:
        # Without the lock: a change that waits for a slow listener does not block readers.
        return tuple(running.info() for running in tuple(self._running.values()))

    def limit_maps(self, limit: int) -> None:
        """Set how many bytes of maps a user's probe may have."""
        self._compiler.map_limit = limit

    def memory(self) -> MemoryUse:
        return MemoryUse(sum(held_maps().values()), self.memory_limit)

    def unconfined(self) -> str:
        return self._compiler.unconfined()

    def check(self, config: ProbeConfig) -> Check:
        """Compile, verify and try a configuration; running probes do not change.

        The result is kept until the next check: `add` and `replace` of the same configuration do
        not compile again. Raises ReadOnlyError if the controller is read-only, because a check
        loads and runs the program.
        """
        self._refuse_changes()
        started = time.perf_counter()
        running = self._running.get(config.name)
        compiled = running.probe.compile(config) if running else self._compile(config)
        costs = costs_of(compiled)
        verdicts = verdicts_of(compiled)
        report = self._compare(running, compiled, verdicts) if running else None
        cut = cuts(running, compiled, verdicts)
        with self._changing:
            self._forget_check()
            self._checked = running, compiled
        return Check(compiled.diagnostics, report, time.perf_counter() - started, costs, cut)

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        self._refuse_changes()
        self._refuse_twice(config.name)
        return self._on_best_hook(lambda: self._add(config, force))

    def _add(self, config: ProbeConfig, force: bool) -> ProbeInfo:
        from probes.program import ProgramProbe
        from probes.program.compiled import CompiledProbe

        with self._pop_check(config, None) or self._compile(config) as compiled:
            assert isinstance(compiled, CompiledProbe)
            verdicts = verdicts_of(compiled)
            cut = self._refuse_cuts(None, compiled, verdicts, force)
            with self._changing:
                self._refuse_twice(config.name)
                used = self._memory_used(compiled)
                refuse_over(self.memory_limit, used, compiled.memory(), config.name)
                kind: type[ProgramProbe] = ProgramProbe
                if config.is_application:
                    from probes.monitor.applications.application import ApplicationProbe

                    kind = ApplicationProbe
                running = self._run(kind(self._compiler, compiled, self._hooks))
                running.verdicts = verdicts
            self._publish_warnings(compiled, cut)
            return running.info()

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        self._refuse_changes()
        started = time.perf_counter()
        running = self._find(config.name)
        report = self._on_best_hook(lambda: self._replace(running, config, force))
        return self._replaced(running, started, report)

    def _replace(self, running: RunningProbe, config: ProbeConfig, force: bool) -> Compatibility:
        checked = self._pop_check(config, running)
        with checked or running.probe.compile(config) as compiled:
            verdicts = verdicts_of(compiled)
            cut = self._refuse_cuts(running, compiled, verdicts, force)
            with self._changing:
                if self._running.get(config.name) is not running:
                    raise NoProbeError(f"probe {config.name} was removed meanwhile")
                report = self._compare(running, compiled, verdicts)
                kept = {(m.side, m.map) for m in report.maps if m.fate is Fate.KEPT}
                used = self._memory_used(compiled)
                refuse_over(self.memory_limit, used, compiled.memory(kept), config.name)
                running.replace(compiled, verdicts)
                self._health.stop(config.name)
                self._health.start(running, report)
            self._publish_warnings(compiled, cut)
            return report

    def roll_back(self, name: str) -> Replacement:
        self._refuse_changes()
        return self._roll_back(name)

    def remove(self, name: str) -> tuple[Snapshot, ...]:
        self._refuse_changes()
        return self._remove(name)

    def _remove(self, name: str) -> tuple[Snapshot, ...]:
        probe = self._find(name).probe
        if isinstance(probe, BuiltinProbe):
            for dependent in probe.dependents():
                self._remove(dependent)
            probe.wind_up()
        return self._finish(self._pop_running(name))

    def export(self, name: str) -> tuple[Snapshot, ...]:
        return self._find(name).export()

    def entries(self, name: str, map_name: str) -> list[Entry]:
        return self._user_probe(name).entries(map_name)

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        self._refuse_changes()
        self._user_probe(name).set_entry(map_name, key, value)

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        self._refuse_changes()
        return self._user_probe(name).delete_entry(map_name, key)

    def cost(self, name: str) -> tuple[Cost, ...]:
        """Return the run time of each program, measured once a generation on a loaded copy.

        Raises ReadOnlyError if the controller is read-only and has not measured this generation.
        """
        running = self._find(name)
        with running.measuring:
            generation = running.probe.generation
            if running.costs is None or running.costs[0] != generation:
                self._refuse_changes()
                with running.probe.compile(running.probe.config) as compiled:
                    running.costs = generation, costs_of(compiled)
            return running.costs[1]

    def hook_status(self) -> tuple[HookStatus, ...]:
        return tuple(point.status for point in self._hooks.in_use())

    def hooks(self) -> Sequence[InterfaceHook]:
        """Return every hook in use."""
        return self._hooks.in_use()

    def close(self) -> None:
        with self._changing:
            self._closed = True
            for name in self._running:
                self._health.stop(name)
            for each in self._running.values():
                if isinstance(each.probe, BuiltinProbe):
                    each.probe.wind_up()
            running, self._running = self._running, {}
        self._hook_watch.stop()
        for each in running.values():
            each.stop()
        # Applications leave the monitor before it ends.
        for each in reversed(running.values()):
            each.close()
        self._forget_check()
        self._compiler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pop_running(self, name: str) -> RunningProbe:
        """Remove a probe from the running ones, so that another can start under its name."""
        with self._changing:
            running = self._find(name)
            self._health.stop(name)
            del self._running[name]
            return running

    def _finish(self, running: RunningProbe) -> tuple[Snapshot, ...]:
        """End a probe and return its last window, once every listener has taken it."""
        running.stop()
        latest = running.close()
        self.publish(Event.now("info", running.name, REMOVED))
        return latest

    def _run(self, probe: Replaceable, first: float | None = None) -> RunningProbe:
        running = RunningProbe(probe, self.publish, first)
        self._running[probe.name] = running
        running.start()
        return running

    def _find(self, name: str) -> RunningProbe:
        running = self._running.get(name)
        if running is None:
            hint = did_you_mean(name, sorted(self._running)) or "there are none"
            raise NoProbeError(f"no probe {name!r}", hint=hint)
        return running

    def _user_probe(self, name: str) -> ProgramProbe:
        """Return a user's probe. Raises UsageError for a built-in one."""
        from probes.program import ProgramProbe

        probe = self._find(name).probe
        if not isinstance(probe, ProgramProbe):
            raise UsageError(f"probe {name} is built in, and has no writable maps")
        return probe

    def _refuse_twice(self, name: str) -> None:
        if self._closed:
            raise ProbedeckError("the controller is closed")
        if name in self._running:
            raise UsageError(f"there is a probe {name!r} already", hint="replace it, or remove it")

    def _memory_used(self, besides: CompiledConfig | None = None) -> int:
        """Return the bytes in use, without `besides` and the last check: they are closed soon."""
        passing = [besides, self._checked[1] if self._checked else None]
        fds = (fd for compiled in passing if compiled for fd in compiled.map_fds())
        return self.memory().used - sum(map(map_memory, fds))

    def _refuse_changes(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"read only: {self.read_only}")

    def _compile(self, config: ProbeConfig) -> CompiledConfig:
        from probes.program.loading import compile_probe

        return compile_probe(self._compiler, config, self._hooks)

    def _pop_check(
        self, config: ProbeConfig, running: RunningProbe | None
    ) -> CompiledConfig | None:
        """Give the caller the result of the last check, if it was of this configuration."""
        with self._changing:
            against, compiled = self._checked or (None, None)
            if compiled is None or against is not running or compiled.config != config:
                return None
            self._checked = None
            return compiled

    def _forget_check(self) -> None:
        if self._checked is not None:
            self._checked[1].close()
            self._checked = None

    def _compare(
        self, running: RunningProbe, compiled: CompiledConfig, verdicts: Verdicts
    ) -> Compatibility:
        """Return the probe's report, with a warning for each changed verdict."""
        report = running.probe.compare(compiled)
        changed = changes(running.verdicts, verdicts)
        return dataclasses.replace(report, warnings=(*report.warnings, *changed))

    def _refuse_cuts(
        self,
        running: RunningProbe | None,
        compiled: CompiledConfig,
        verdicts: Verdicts,
        force: bool,
    ) -> Sequence[str]:
        """Return the cuts of a forced change. Raises CutError if the change is not forced."""
        found = cuts(running, compiled, verdicts)
        if found and not force:
            raise CutError(compiled.config.name, found)
        return found

    def _roll_back(self, name: str) -> Replacement:
        started = time.perf_counter()
        with self._changing:
            running = self._find(name)
            report = running.roll_back()
            self._health.stop(name)
        return self._replaced(running, started, report)

    def _replaced(
        self, running: RunningProbe, started: float, report: Compatibility
    ) -> Replacement:
        seconds = time.perf_counter() - started
        generation = running.probe.generation
        lost = [f"{m.map} {m.fate.value}" for m in report.maps if m.fate in (Fate.EMPTY, Fate.GONE)]
        more = f", and {len(lost) - _KEPT} more" if len(lost) > _KEPT else ""
        what = f"; {', '.join(lost[:_KEPT])}{more}" if lost else ""
        text = f"generation {generation} runs, after {seconds * 1000:.0f} ms{what}"
        self.publish(Event.now("info", running.name, text))
        return Replacement(generation, seconds, report)

    def _publish_warnings(self, compiled: CompiledConfig, cut: Sequence[str]) -> None:
        for text in cut:
            self.publish(Event.now("warning", compiled.config.name, text))
        for diagnostic in compiled.diagnostics:
            if diagnostic.severity == "warning":
                text = str(diagnostic.renamed(compiled.config.files()))
                self.publish(Event.now("warning", compiled.config.name, text))

    def _on_best_hook(self, make: Callable[[], _T]) -> _T:
        """Call `make`. If the driver refuses native XDP, call it again: it then chooses TC."""
        try:
            return make()
        except XdpRefusedError:
            return make()

    def _attach(self, point: InterfaceHook) -> None:
        name = point.interface.name
        if point.hook is Hook.XDP and (cost := ingress.interruption(point.interface)):
            self.publish(Event.now("warning", name, cost))
        point.attach(by_link=self._by_link)
        point.look({other.program_id for other in self._hooks.in_use()})
        self._hook_watch.start()
        self.publish(attached(point.status))

    def _look_at_hooks(self) -> None:
        for point in self._hooks.look():
            self.publish(order_changed(point.status))
