"""The life of running probes: start, poll, replace, watch, roll back, end.

Jumps of the wall clock are events: rows before and after have times of different clocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bpf.attach.interface import Hook
from bpf.compiler import Compiler
from bpf.errors import Closing, ReadOnlyError
from bpf.maps.kinds import held_maps, map_memory
from bpf.quantities import duration, percent, signed
from probes.control import trials
from probes.control.health import HealthWatches
from probes.control.hook_watch import HookWatch
from probes.control.running_probe import RunningProbe, RunningProbes
from probes.hooks import on_best_hook
from probes.hooks.interface_hook import InterfaceHook
from probes.life import CompiledConfig
from probes.memory_limit import default_limit, refuse_over
from probes.path.records import ProbeOutcome
from probes.poller import Publisher
from probes.reports import (
    MOST_ROWS,
    Check,
    Compatibility,
    Cost,
    Entry,
    Fate,
    MapReadings,
    MemoryUse,
    NoOutputs,
    NoProbeError,
    OutputControl,
    ProbeInfo,
    Replacement,
    Value,
)
from probes.snapshot import (
    REMOVED,
    Event,
    HookStatus,
    Item,
    Loss,
    LossReason,
    Snapshot,
    add_losses,
    loss_noun,
    loss_subject,
    loss_words,
    lost_of,
)

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.program.probe import ProgramProbe

_LEAST_NS = 250_000_000
_SLEW = 0.1
"""Share of the passed time by which a clock may be slewed; chrony's most is 0.083."""


class WallClock:
    """Compares the wall clock with CLOCK_BOOTTIME, which goes on while the host sleeps."""

    def __init__(self) -> None:
        self._before = _clocks()

    def take(self, _: object = None) -> Iterator[Event]:
        """Yield an event if the wall clock has jumped since the last call. From any thread."""
        (boot_ns, wall_ns), self._before = self._before, _clocks()
        passed_ns = self._before[0] - boot_ns
        jump_ns = self._before[1] - wall_ns - passed_ns
        if abs(jump_ns) > _LEAST_NS + passed_ns * _SLEW:
            by = signed(jump_ns / 1e9, duration)
            text = f"the wall clock jumped by {by}: times of rows jump, too"
            yield Event.now("warning", "clock", text, "wall clock", value=jump_ns / 1e9, unit="s")


def _clocks() -> tuple[int, int]:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns()


_KEPT = 4
"""Names in an event's list of maps before it is cut."""


class ProbeRunner(Publisher, Closing):
    """Runs probes, and calls its listeners with each window and event, in the probes' threads.

    `ControlPlane` documents its public methods. Any thread may call them.
    """

    def __init__(self, compiler: Compiler, *, by_link: bool = True) -> None:
        super().__init__(LossEvents().take, WallClock().take)
        self.read_only = ""
        """Why changes, and loading any code, are refused; empty if they are allowed."""
        self.unwritten: Mapping[str, int] = {}
        """Rows that could not be written to this run's tables, by table."""
        self.late_by = 0.0
        self._is_closing = False
        self.outputs: OutputControl = NoOutputs()
        self.memory_limit = default_limit()
        """Bytes of kernel memory that the maps of all probes may take."""
        self._compiler = compiler
        self._hook_watch = HookWatch(self.publish, by_link=by_link)
        self._hooks = self._hook_watch.hooks
        self._running = RunningProbes(self.publish)
        self._changing = threading.RLock()
        self._health = HealthWatches(self.publish, self._roll_back, self._changing)
        self.listen(self._health.take)
        self._last_check = trials.LastCheck(self._changing)

    def probes(self) -> tuple[ProbeInfo, ...]:
        return tuple(running.info() for running in self._running)

    def configure_programs(self, map_limit: int, ingress: Hook | None = None) -> None:
        """Set how many bytes of maps a user's probe may have, and the hook where one that runs on
        every hook counts incoming packets; None: chosen for the interface."""
        self._compiler.map_limit, self._hooks.ingress = map_limit, ingress

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
        from probes.program.loading import compile_probe

        self._refuse_changes()
        started = time.perf_counter()
        running = self._running.get(config.name)
        if running:
            compiled = running.probe.compile(config)
        else:
            compiled = compile_probe(self._compiler, config, self._hooks)
        costs = trials.costs_of(compiled)
        verdicts = trials.verdicts_of(compiled)
        report = trials.compare(running, compiled, verdicts) if running else None
        cut = trials.cuts(running, compiled, verdicts)
        self._last_check.keep(compiled, running)
        return Check(compiled.diagnostics, report, time.perf_counter() - started, costs, cut)

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        self._refuse_changes()
        self._running.refuse_twice(config.name)
        return on_best_hook(lambda: self._add(config, force))

    def _add(self, config: ProbeConfig, force: bool) -> ProbeInfo:
        from probes.program.compiled import CompiledProbe
        from probes.program.loading import compile_probe
        from probes.program.probe import ProgramProbe

        checked = self._last_check.take(config, None)
        with checked or compile_probe(self._compiler, config, self._hooks) as compiled:
            assert isinstance(compiled, CompiledProbe)
            verdicts = trials.verdicts_of(compiled)
            cut = trials.refuse_cuts(None, compiled, verdicts, force)
            with self._changing:
                self._running.refuse_twice(config.name)
                used = self._memory_used(compiled)
                refuse_over(self.memory_limit, used, compiled.memory(), config.name)
                kind: type[ProgramProbe] = ProgramProbe
                if config.is_application:
                    from probes.monitor.applications.application import ApplicationProbe

                    kind = ApplicationProbe
                running = self._running.start(kind(self._compiler, compiled, self._hooks))
                running.verdicts = verdicts
            events = tuple(trials.warnings(compiled, cut))
            for event in events:
                self.publish(event)
            return replace(running.info(), warnings=tuple(event.text for event in events))

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        self._refuse_changes()
        started = time.perf_counter()
        running = self._running.find(config.name)
        report = on_best_hook(lambda: self._replace(running, config, force))
        return self._replaced(running, started, report)

    def _replace(self, running: RunningProbe, config: ProbeConfig, force: bool) -> Compatibility:
        checked = self._last_check.take(config, running)
        with checked or running.probe.compile(config) as compiled:
            verdicts = trials.verdicts_of(compiled)
            cut = trials.refuse_cuts(running, compiled, verdicts, force)
            with self._changing:
                if self._running.get(config.name) is not running:
                    raise NoProbeError(f"probe {config.name} was removed meanwhile")
                report = trials.compare(running, compiled, verdicts)
                kept = {(m.side, m.map) for m in report.maps if m.fate is Fate.KEPT}
                used = self._memory_used(compiled)
                refuse_over(self.memory_limit, used, compiled.memory(kept), config.name)
                running.replace(compiled, verdicts)
                self._health.stop(config.name)
                self._health.start(running, report)
            for event in trials.warnings(compiled, cut):
                self.publish(event)
            return report

    def roll_back(self, name: str) -> Replacement:
        self._refuse_changes()
        return self._roll_back(name)

    def _remove(self, name: str) -> tuple[Snapshot, ...]:
        probe = self._running.find(name).probe
        with self._changing:  # Nothing that depends on it is being started.
            probe.wind_up()
            dependents = probe.dependents()
        for dependent in dependents:
            self._remove(dependent)
        last = self._running.finish(self._pop_running(name))
        self.history.forget(name)
        return last

    def export(self, name: str) -> tuple[Snapshot, ...]:
        running = self._running.find(name)
        with running.lock:
            running.export()
            return running.probe.latest

    def maps(self, name: str, most: int = MOST_ROWS) -> MapReadings:
        return self._running.find(name).maps(most)

    def entries(self, name: str, map_name: str) -> list[Entry]:
        return self._running.program(name).entries(map_name)

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        self._refuse_changes()
        self._running.program(name).set_entry(map_name, key, value)

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        self._refuse_changes()
        return self._running.program(name).delete_entry(map_name, key)

    def cost(self, name: str) -> tuple[Cost, ...]:
        """Return the run time of each program, measured once a generation on a loaded copy.

        Raises ReadOnlyError if the controller is read-only and has not measured this generation.
        """
        running = self._running.find(name)
        with running.measuring:
            generation = running.probe.generation
            if running.costs is None or running.costs[0] != generation:
                self._refuse_changes()
                with running.probe.compile(running.probe.config) as compiled:
                    running.costs = generation, trials.costs_of(compiled)
            return running.costs[1]

    def hook_status(self) -> tuple[HookStatus, ...]:
        return tuple(point.status for point in self._hooks.in_use())

    def hooks(self) -> Sequence[InterfaceHook]:
        return self._hooks.in_use()

    def close(self) -> None:
        self._is_closing = True
        # First: a start in another thread holds the lock, and fails at its compile then.
        self._compiler.close()
        with self._changing:
            for each in self._running:
                self._health.stop(each.name)
            for each in self._running:
                each.probe.wind_up()
            running = self._running.close()
        self._hook_watch.stop()
        for each in running:
            each.stop()
        # Applications leave the monitor before it ends.
        for each in reversed(running):
            each.close()
        # They have the last windows now.
        self.outputs.close()
        self._last_check.forget()

    def _pop_running(self, name: str) -> RunningProbe:
        """Remove a probe from the running ones, so that another can start under its name."""
        with self._changing:
            running = self._running.pop(name)
            self._health.stop(name)
            return running

    def _memory_used(self, besides: CompiledConfig | None = None) -> int:
        """Return the bytes in use, without `besides` and the last check: they are closed soon."""
        passing = [besides, self._last_check.compiled]
        fds = (fd for compiled in passing if compiled for fd in compiled.map_fds())
        return self.memory().used - sum(map(map_memory, fds))

    def _refuse_changes(self) -> None:
        if self.read_only:
            raise ReadOnlyError(f"read only: {self.read_only}")

    def _roll_back(self, name: str) -> Replacement:
        started = time.perf_counter()
        with self._changing:
            running = self._running.find(name)
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
        state = running.info().state
        text = f"generation {generation} {state}, after {duration(seconds)}{what}"
        self.publish(Event.now("info", running.name, text))
        return Replacement(generation, seconds, report, state)


_SHARE = 0.001
"""Share of a window's packets above which a loss is reported."""
_LEAST = 10
"""Lost packets of a window below which no loss is reported: a single broken frame is no event."""
_WHOLE = 3
"""Windows in a row without a reported loss that end it."""


@dataclass(slots=True)
class _Episode:
    """A loss that goes on."""

    first: int
    """Window."""
    last: int
    """Window, the latest one with a reported loss."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """All since then."""


class LossEvents:
    """Follows the losses of every probe. Called with every published item, by any thread."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, str], _Episode] = {}
        """By probe and side."""

    def take(self, item: Item) -> Iterator[Event]:
        """Yield the events that an item leads to."""
        if isinstance(item, Snapshot):
            yield from self._window(item)
        elif item.text == REMOVED:
            for key in [key for key in tuple(self._episodes) if key[0] == item.source]:
                text = _summary(item.source, self._episodes.pop(key))
                yield Event.now("info", item.source, text, loss_subject(key[1]), "end")

    def _window(self, item: Snapshot) -> Iterator[Event]:
        key = item.probe, item.side
        episode = self._episodes.get(key)
        lost = lost_of(item.losses).packets if item.losses else 0
        if lost >= _LEAST and (share := lost / (lost + _counted(item))) > _SHARE:
            if episode is None:
                episode = self._episodes[key] = _Episode(item.window, item.window)
                lacks = f"window {item.window} lacks {lost} {loss_noun(item.probe)}"
                text = f"{lacks} ({percent(share)}): {loss_words(item.losses)}"
                yield Event.now(
                    "warning", item.probe, text, loss_subject(item.side), "begin", lost,
                    loss_noun(item.probe),
                )  # fmt: skip
            episode.last = item.window
        if episode is None:
            return
        add_losses(episode.losses, item.losses)
        if item.window > episode.last + _WHOLE:
            del self._episodes[key]
            text = f"windows are whole again; {_summary(item.probe, episode)}"
            yield Event.now("info", item.probe, text, loss_subject(item.side), "end")


def _summary(probe: str, episode: _Episode) -> str:
    lost = lost_of(episode.losses).packets
    windows = f"window {episode.first} lacks"
    if episode.last > episode.first:
        windows = f"windows {episode.first} to {episode.last} lack"
    return f"{windows} {lost} {loss_noun(probe)}: {loss_words(episode.losses)}"


def _counted(item: Snapshot) -> int:
    """Packets or results of probes in the rows; 0 if the table does not count any."""
    names = item.rows.dtype.names or ()
    if "outcome" in names:
        return int((item.rows["outcome"] != ProbeOutcome.OVERRUN).sum())
    return int(item.rows["packets"].sum()) if "packets" in names else 0
