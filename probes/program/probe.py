"""A user's probe: swaps, drains, replaces and rolls back its generations."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from bpf.attach.chain import Stage
from bpf.attach.hook import EventHook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from bpf.programs import grace
from probes.config.model import ProbeConfig, Side
from probes.hooks import HookKey, Hooks, ProbeHook
from probes.map_reading import LentMap, lend
from probes.poller import UtcClock
from probes.program.compatibility import compare, keeps
from probes.program.compiled import CompiledProbe
from probes.program.loading import Clone, LoadedSide, compile_probe
from probes.program.map_options import new_map, shared_name
from probes.program.metrics import MetricRows
from probes.reports import Compatibility, ProgramInfo
from probes.sharing import SharedMap, SharedMaps
from probes.snapshot import Event, Item, Loss, Losses, LossReason, Snapshot, add_losses


@dataclass(frozen=True, slots=True)
class ChainSlot:
    """The slot of a probe in the chain of a hook; its generations share it."""

    point: ProbeHook
    stage: Stage

    @property
    def is_reached(self) -> bool:
        return self.stage.prog_fd >= 0


@dataclass(frozen=True, slots=True)
class ProgramGeneration:
    """One configuration, loaded."""

    number: int
    config: ProbeConfig
    sides: tuple[LoadedSide, ...]
    shared: tuple[SharedMap, ...] = ()

    def close(self, maps: SharedMaps) -> None:
        for side in self.sides:
            side.close()
        for shared in self.shared:
            maps.release(shared, self.config.name)


class ProgramProbe:
    """A user's probe (S1.13 to S1.26).

    An export or a replacement ends a window: with one write, other programs get the packets; after
    a grace period, the probe reads the maps of the programs that were active. The previous
    generation stays loaded for a roll-back. Any thread may call the methods; they exclude one
    another (S1.23).
    """

    builtin = False
    alarm_fd = -1

    def __init__(self, compiler: Compiler, compiled: CompiledProbe, hooks: Hooks) -> None:
        """Load the programs and append them to the chains. An error leaves nothing behind."""
        self.name = compiled.config.name
        self.window = 0
        self._compiler = compiler
        self._hooks = hooks
        self._lock = threading.RLock()
        self._utc = UtcClock()
        self._slots: dict[HookKey, ChainSlot] = {}
        self._previous: ProgramGeneration | None = None
        self.latest: tuple[Snapshot, ...] = ()
        """Tables of the last window."""
        self._full: set[str] = set()
        self._unreported: dict[Side, dict[LossReason, Loss]] = {}
        """Losses that no table has reported yet."""
        self._current = ProgramGeneration(0, compiled.config, ())
        self._current = self._load(compiled, 1, ())
        self._start_ns = time.monotonic_ns()

    @property
    def config(self) -> ProbeConfig:
        return self._current.config

    @property
    def interval(self) -> float:
        """Seconds of a window; 0 if only exports end windows."""
        return self.config.interval

    @property
    def generation(self) -> int:
        return self._current.number

    @property
    def previous(self) -> int | None:
        """Number of the generation that `roll_back` returns to."""
        return self._previous.number if self._previous else None

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        return tuple(side.interface for side in self._current.sides)

    def programs(self) -> tuple[ProgramInfo, ...]:
        with self._lock:
            return tuple(
                ProgramInfo(
                    side.side,
                    side.interface.name,
                    side.hook.value,
                    self._slots[side.hook_key].point.mode,
                    side.function,
                    side.program.info().id,
                    side.memory(),
                )
                for side in self._current.sides
            )

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Return the entries of a map. Raises UsageError if it is not writable."""
        with self._lock:
            return self._writable(name).entries(name)

    def set_entry(self, name: str, key: Any, value: Any) -> None:
        """Store an entry of a writable map. Raises UsageError if a value does not fit its type."""
        with self._lock:
            self._writable(name).write(name, key, value)

    def delete_entry(self, name: str, key: Any) -> bool:
        """Delete an entry of a writable map, or zero it in an array. False if it is missing."""
        with self._lock:
            return self._writable(name).erase(name, key)

    def _writable(self, name: str) -> LoadedSide:
        """Return a direction that has the map. Raises UsageError if it is not writable."""
        sides = self._current.sides
        for side in sides:
            if name in side.codecs:
                return side
        known = sorted({each for side in sides for each in side.codecs})
        hint = did_you_mean(name, known) or f"give maps.{name}.writable = true"
        raise UsageError(f"probe {self.name} has no writable map {name!r}", hint=hint)

    def lend_maps(self) -> tuple[LentMap, ...]:
        """Lend the maps of the active programs, with the tables of their metrics."""
        with self._lock:
            return tuple(chain.from_iterable(map(self._lent, self._current.sides)))

    def _lent(self, side: LoadedSide) -> Iterator[LentMap]:
        metrics: dict[str, list[str]] = {}
        tables: dict[str, list[Snapshot]] = {}
        cleared = set(side.private)
        for metric in side.config.metrics:
            if metric.export:
                metrics.setdefault(metric.map, []).append(metric.name)
            tables.setdefault(metric.map, []).extend(
                table
                for table in self.latest
                if (table.side, table.metric) == (side.side, metric.name)
                and table.generation == self.generation
            )
            if metric.init:
                cleared.add(metric.map)
        return lend(
            side.side, side.program, self._slots[side.hook_key].point.shared,
            types={name: options.types for name, options in side.options.items()},
            tables=tables, metrics=metrics, cleared=cleared,
        )  # fmt: skip

    def export(self) -> tuple[Item, ...]:
        """End the window: swap the clones, wait, and read (Algorithm 2)."""
        with self._lock:
            ended = [(side, side.clones[side.active]) for side in self._current.sides]
            started = time.monotonic_ns()
            for side in self._current.sides:
                if len(side.clones) > 1:
                    side.active ^= 1
                    slot = self._slots[side.hook_key]
                    if slot.is_reached:
                        slot.point.chain.replace(slot.stage, side.program.fd)
            return self._end_window(self._current, ended, started)

    def compile(self, config: ProbeConfig) -> CompiledProbe:
        return compile_probe(self._compiler, config, self._hooks)

    def compare(self, compiled: CompiledProbe) -> Compatibility:
        with self._lock:
            return compare(self._current.sides, compiled.sides)

    def replace(self, compiled: CompiledProbe) -> tuple[Item, ...]:
        """Replace the generation; return the tables of the window that this ends.

        If it raises ProbedeckError, the old generation runs on.
        """
        with self._lock:
            new = self._load(compiled, self._current.number + 1, self._current.sides)
            return self._become(new)

    def roll_back(self) -> tuple[Compatibility, tuple[Item, ...]]:
        """Return to the previous generation, under a new number, as `replace` does."""
        with self._lock:
            old = self._previous
            if old is None:
                raise UsageError(
                    f"probe {self.name} has no generation to go back to", hint="it was not replaced"
                )
            report = compare(self._current.sides, old.sides, returns=True)
            new = ProgramGeneration(self.generation + 1, old.config, old.sides, old.shared)
            self._join(new.sides)
            for shared in new.shared:
                self._hooks.maps.restore(shared)
            self._previous = None
            return report, self._become(new)

    def close(self) -> None:
        """Leave the hooks and release everything; the caller exports before."""
        with self._lock:
            current, previous = self._current, self._previous
            self._current = ProgramGeneration(self.generation, self.config, ())
            self._previous = None
            self._release_slots()
            for generation in (current, previous):
                if generation:
                    generation.close(self._hooks.maps)

    def _load(
        self, compiled: CompiledProbe, number: int, before: Sequence[LoadedSide]
    ) -> ProgramGeneration:
        """Load a generation, which takes over compatible maps of `before`.

        Packets reach it at once only on hooks that are new to this probe.
        """
        old = {side.side: side for side in before}
        made: list[LoadedSide] = []
        shared: list[SharedMap] = []
        with ExitStack() as undo:
            undo.callback(self._release_slots)
            for side in compiled.sides:
                if side.hook_key not in self._slots:
                    point = self._hooks.place(side.interface, side.hook_key)
                    self._slots[side.hook_key] = ChainSlot(point, Stage(self.name))
                slot = self._slots[side.hook_key]
                was = old.get(side.side)
                kept = {**(keeps(was, side) if was else {}), **slot.point.shared}
                for name in side.shared:
                    declared, options = side.declared[name], side.options[name]
                    known_as = shared_name(self.name, name, options.share)
                    make = partial(new_map, declared, options)
                    shared.append(self._hooks.maps.take(known_as, self.name, declared, make))
                    undo.callback(self._hooks.maps.release, shared[-1], self.name)
                    kept[name] = shared[-1].fd
                made.append(LoadedSide(side, slot.stage.next_fd, kept, was))
                undo.callback(made[-1].close)
            # Last: a program that does not load must not touch an interface.
            for side in compiled.sides:
                if self._is_wanted(side.side):
                    self._hooks.attach(self._slots[side.hook_key].point)
            self._join(made)
            undo.pop_all()
        return ProgramGeneration(number, compiled.config, tuple(made), tuple(shared))

    def _is_wanted(self, side: Side) -> bool:
        """Return whether packets are to reach the program of a direction now."""
        return True

    def _join(self, sides: Sequence[LoadedSide]) -> None:
        """Append wanted programs to the chains where the probe's slot is empty.

        Raises UsageError if a chain is full, and then appends none.
        """
        with ExitStack() as undo:
            for side in sides:
                slot = self._slots[side.hook_key]
                if not slot.is_reached and self._is_wanted(side.side):
                    slot.point.chain.append(slot.stage, side.program.fd)
                    undo.callback(leave, slot)
            undo.pop_all()

    def _become(self, new: ProgramGeneration) -> tuple[Item, ...]:
        """Direct packets to `new`, and end the window of the old generation."""
        old = self._current
        ended = [(side, side.clones[side.active]) for side in old.sides]
        here = {side.hook_key for side in old.sides}
        started = time.monotonic_ns()
        for side in new.sides:
            slot = self._slots[side.hook_key]
            if side.hook_key in here and slot.is_reached:
                slot.point.chain.replace(slot.stage, side.program.fd)
        for gone in here - {side.hook_key for side in new.sides}:
            leave(self._slots[gone])
        self._current = new
        if self._previous:
            self._previous.close(self._hooks.maps)
        self._previous = old
        self._release_slots()
        return self._end_window(old, ended, started)

    def _end_window(
        self,
        generation: ProgramGeneration,
        ended: Sequence[tuple[LoadedSide, Clone]],
        started_ns: int,
    ) -> tuple[Item, ...]:
        """Return the tables and events of the programs that were active until now."""
        end_ns = time.monotonic_ns()
        grace.wait(preempted=any(isinstance(side.hook, EventHook) for side, _ in ended))
        quiet = time.monotonic_ns()
        self.window += 1
        read: list[tuple[LoadedSide, MetricRows, Losses]] = []
        events: list[Event] = []
        for side, clone in ended:
            losses = self._unreported.pop(side.side, {})
            add_losses(losses, side.losses())
            for metric_map in side.metric_maps:
                try:
                    tables = metric_map.read(side.map_of(metric_map, clone), end_ns)
                except ProbedeckError as error:
                    text = f"window {self.window} is not whole: {error}"
                    events.append(Event.now("error", self.name, text))
                    continue
                for table in tables:
                    read.append((side, table, losses))
                    losses = {}  # Only the first table reports them.
            self._unreported[side.side] = losses
        start_ns, self._start_ns = self._start_ns, end_ns
        drained = time.monotonic_ns()
        self.latest = tuple(
            self._convert(
                Snapshot(
                    probe=self.name,
                    interface=side.interface.name,
                    window=self.window,
                    generation=generation.number,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    end_utc_ns=self._utc.utc_ns(end_ns),
                    rows=table.rows,
                    losses=losses,
                    occupancy=table.occupancy,
                    swap_ns=quiet - started_ns,
                    drain_ns=drained - quiet,
                    side=side.side,
                    metric=table.metric.name,
                    schema=table.schema,
                    hooks=(self._slots[side.hook_key].point.status,),
                )
            )
            for side, table, losses in read
        )
        return (*self.latest, *events, *self._fill_events())

    def _convert(self, table: Snapshot) -> Snapshot:
        """Return a table of the ended window as the probe publishes it."""
        return table

    def _fill_events(self) -> list[Event]:
        """Return a warning for each map of the ended window that has become full."""
        full = {f"{s.side}.{s.metric}" for s in self.latest if s.occupancy >= 1}
        new, self._full = full - self._full, full
        text = "the map of {} is full: what did not fit is missing"
        return [Event.now("warning", self.name, text.format(name)) for name in sorted(new)]

    def _release_slots(self) -> None:
        """Leave the hooks that neither generation uses."""
        kept = (self._current, self._previous)
        used = {side.hook_key for held in kept if held for side in held.sides}
        for key in self._slots.keys() - used:
            slot = self._slots.pop(key)
            leave(slot)
            slot.stage.close()
            self._hooks.release(slot.point)


def leave(slot: ChainSlot) -> None:
    """Take a probe's program out of the chain; on return no CPU runs it."""
    if slot.is_reached:
        slot.point.chain.remove(slot.stage)
