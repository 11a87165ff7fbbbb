"""A user's probe: swaps, drains, replaces and rolls back its generations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Self

from bpf.attach.interface import EventHook
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from bpf.maps.kinds import Shape
from bpf.programs import grace
from bpf.syscall import map_delete
from probes.config.model import ProbeConfig, Side
from probes.hooks import ChainSlot, Hooks
from probes.life import Bundle, LiveProbe
from probes.map_reading import LentMap, lend
from probes.program.compiled import CompiledProbe, CompiledSide
from probes.program.loading import Clone, LoadedSide, compile_probe
from probes.program.map_options import new_map, shared_name, write_entry
from probes.program.metrics import MetricRows, open_map
from probes.reports import Compatibility, Fate, MapFate, ProgramInfo
from probes.sharing import SharedMap
from probes.snapshot import Event, Item, Loss, Losses, LossReason, Snapshot, add_losses
from probes.tables.map_layout import difference, rows_of


@dataclass(frozen=True, slots=True)
class ProgramGeneration:
    """One configuration, loaded."""

    config: ProbeConfig
    sides: Sequence[LoadedSide]
    shared: Sequence[SharedMap]
    held: ExitStack
    """Closes the sides, and releases shared maps and the slots that no generation uses."""

    def close(self) -> None:
        self.held.close()


class ProgramProbe(LiveProbe[ProgramGeneration]):
    """A user's probe (S1.13 to S1.26).

    The clones of a direction share all maps except maps of snapshot metrics. Generations share maps
    of the same layout, and leave or join hooks as their configurations say.
    """

    builtin = False
    warns_of_full_maps = True

    def __init__(self, compiler: Compiler, compiled: CompiledProbe, hooks: Hooks) -> None:
        """Load the programs and append them to the chains. An error leaves nothing behind."""
        super().__init__(compiler)
        self.name = compiled.config.name
        self._hooks = hooks
        self._full: set[str] = set()
        self._unreported: dict[Side, dict[LossReason, Loss]] = {}
        """Losses that no table has reported yet."""
        self._current = ProgramGeneration(compiled.config, (), (), ExitStack())
        self._current = self._load(compiled)
        self._settle(self._current)
        self._start_ns = time.monotonic_ns()

    @classmethod
    def of(cls, compiler: Compiler, hooks: Hooks, config: ProbeConfig, *more: Any) -> Self:
        """Compile a configuration, and make its probe."""
        with compile_probe(compiler, config, hooks) as compiled:
            return cls(compiler, compiled, hooks, *more)

    @property
    def config(self) -> ProbeConfig:
        return self._current.config

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
        """Return the entries of a map, in the form of `set_entry`. Raises UsageError if it is not
        writable."""
        with self._lock:
            side = self._writable(name)
            with open_map(side.declared[name], side.shared[name]) as opened:
                return side.codecs[name].objects(rows_of(opened.read(), ""))

    def set_entry(self, name: str, key: Any, value: Any) -> None:
        """Store an entry of a writable map. Raises UsageError if a value does not fit its type."""
        with self._lock:
            side, where = self._writable(name), f"map {name}"
            codec = side.codecs[name]
            packed = codec.key(key, where), codec.value(value, where)
            write_entry(side.declared[name], side.shared[name], *packed)

    def delete_entry(self, name: str, key: Any) -> bool:
        """Delete an entry of a writable map, or zero it in an array. False if it is missing."""
        with self._lock:
            side = self._writable(name)
            declared, packed = side.declared[name], side.codecs[name].key(key, f"map {name}")
            if declared.spec.kind.shape == Shape.ARRAY:
                write_entry(declared, side.shared[name], packed, bytes(declared.spec.value_size))
                return True
            return map_delete(side.shared[name], packed)

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
        private = {name for name, options in side.options.items() if options.private}
        return lend(
            side.side, side.program, private | set(self._slots[side.hook_key].point.shared),
            types={name: options.types for name, options in side.options.items()},
            tables=tables, metrics=metrics, cleared=cleared,
        )  # fmt: skip

    def compile(self, config: ProbeConfig) -> CompiledProbe:
        return compile_probe(self._compiler, config, self._hooks)

    def compare(self, compiled: CompiledProbe) -> Compatibility:
        with self._lock:
            return compare(self._current.sides, compiled.sides)

    def _load(self, compiled: CompiledProbe) -> ProgramGeneration:
        """Load a generation, which takes over compatible maps of the current one.

        Packets reach it at once only on hooks that are new to this probe.
        """
        old = {side.side: side for side in self._current.sides}
        made = Bundle[LoadedSide]()
        shared: list[SharedMap] = []
        with ExitStack() as undo:
            undo.callback(self._release_slots)
            undo.callback(made.close)
            for side in compiled.sides:
                if side.hook_key not in self._slots:
                    point = self._hooks.place(side.interface, side.hook_key)
                    self._slots[side.hook_key] = ChainSlot(self._hooks, point, self.name)
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
            # Last: a program that does not load must not touch an interface.
            for side in compiled.sides:
                if self._is_wanted(side.side):
                    self._hooks.attach(self._slots[side.hook_key].point)
            self._join(made)
            return ProgramGeneration(compiled.config, made, shared, undo.pop_all())

    def _readmit(self, old: ProgramGeneration) -> Compatibility:
        report = compare(self._current.sides, old.sides, returns=True)
        self._join(old.sides)
        for shared in old.shared:
            self._hooks.maps.restore(shared)
        return report

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
                    undo.callback(slot.leave)
            undo.pop_all()

    def _settle(self, new: ProgramGeneration) -> None:
        self.interval = new.config.interval
        self.interfaces = tuple(side.interface for side in new.sides)

    def _direct(self, new: ProgramGeneration) -> list[tuple[LoadedSide, Clone]]:
        """Direct packets to `new`, or to the other clones of the current generation."""
        current = self._current.sides
        ended = [(side, side.clones[side.active]) for side in current]
        for side in new.sides:
            if new is self._current:
                if len(side.clones) == 1:
                    continue
                side.active ^= 1
            self._slots[side.hook_key].replace(side.program.fd)
        for gone in {side.hook_key for side in current} - {side.hook_key for side in new.sides}:
            self._slots[gone].leave()
        self._settle(new)
        return ended

    def _end_window(
        self, ended: Sequence[tuple[LoadedSide, Clone]], started_ns: int
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
                    if table.left_out:
                        size = table.rows.dtype["value"].itemsize
                        text = f"{table.metric.name} lacks {table.left_out} records of other sizes"
                        text += f" than {size} bytes"
                        events.append(Event.now("warning", self.name, text))
                    read.append((side, table, losses))
                    losses = {}  # Only the first table reports them.
            self._unreported[side.side] = losses
        self.latest = tuple(
            self._convert(
                self._snapshot(
                    table.rows,
                    end_ns,
                    [self._slots[side.hook_key].point],
                    quiet_ns=quiet,
                    swap_ns=quiet - started_ns,
                    losses=losses,
                    occupancy=table.occupancy,
                    interface=side.interface.name,
                    side=side.side,
                    table=table.metric.name,
                    schema=table.schema,
                )
            )
            for side, table, losses in read
        )
        self._start_ns = end_ns
        full = {f"{s.side}.{s.metric}" for s in self.latest if s.occupancy >= 1}
        new, self._full = full - self._full, full
        if self.warns_of_full_maps:
            text = "the map of {} is full: what did not fit is missing"
            events += [Event.now("warning", self.name, text.format(name)) for name in sorted(new)]
        return (*self.latest, *events)

    def _convert(self, table: Snapshot) -> Snapshot:
        """Return a table of the ended window as the probe publishes it."""
        return table

    def _release_slots(self) -> None:
        """Leave the hooks that neither generation uses."""
        kept = (self._current, self._previous)
        used = {side.hook_key for held in kept if held for side in held.sides}
        for key in self._slots.keys() - used:
            self._slots.pop(key).close()


AnySide = CompiledSide | LoadedSide


def keeps(old: LoadedSide, new: CompiledSide) -> dict[str, int]:
    """Return the old program's maps, by name, that a new one takes over."""
    return {
        name: fd
        for name, fd in old.shared.items()
        if name in new.declared
        and name not in new.private
        and not new.declared[name].is_constant
        and not _difference(name, old, new)
    }


def compare(
    old: Sequence[AnySide], new: Sequence[AnySide], *, returns: bool = False
) -> Compatibility:
    """Return the report of a replacement of `old` by `new`; `returns`: of a roll-back to `new`."""
    before = {side.side: side for side in old}
    after = {side.side: side for side in new}
    sides = [*after, *(side for side in before if side not in after)]
    fates = [f for side in sides for f in _fates(side, before.get(side), after.get(side), returns)]
    had = [f"{side.side}.{m.name}" for side in old for m in side.config.metrics]
    has = [f"{side.side}.{m.name}" for side in new for m in side.config.metrics]
    return Compatibility(
        tuple(fates),
        tuple(name for name in had if name not in has),
        tuple(name for name in has if name not in had),
        tuple(_warnings(before, after)),
    )


def _fates(
    side: Side, old: AnySide | None, new: AnySide | None, returns: bool
) -> Iterator[MapFate]:
    declared = new.declared if new else {}
    private = new.private if new else set()
    were_private = old.private if old else set()
    for name in declared:
        assert new is not None
        if declared[name].is_constant:
            continue
        fate, reason = Fate.KEPT, ""
        if old is None or name not in old.declared:
            fate = Fate.AS_IT_WAS if returns and name not in private else Fate.NEW
        elif name in private and name in were_private:
            fate, reason = Fate.WINDOW, _difference(name, old, new)
        elif name in private or name in were_private:
            fate, reason = Fate.EMPTY, "only one of the two is a snapshot metric's"
        elif reason := _difference(name, old, new):
            fate = Fate.EMPTY
        if returns and fate is Fate.EMPTY and name not in private:
            fate = Fate.AS_IT_WAS
        yield MapFate(side, name, fate, reason, new.declared[name].line)
    for name in old.declared if old else ():
        assert old is not None
        if name not in declared and not old.declared[name].is_constant:
            yield MapFate(side, name, Fate.GONE, "", 0)


def _difference(name: str, old: AnySide, new: AnySide) -> str:
    """Return why the new program does not take over a map of the old one; empty if it does."""
    was, now = (o.share if (o := side.options.get(name)) else "" for side in (old, new))
    if was != now:
        return f"shared as {now!r}" if now else "no longer shared"
    return difference(old.declared[name], new.declared[name])


def _warnings(before: Mapping[Side, AnySide], after: Mapping[Side, AnySide]) -> Iterator[str]:
    for side, old in before.items():
        new = after.get(side)
        if new is None:
            yield f"{side} is no longer watched"
        elif new.hook_key != old.hook_key:
            where = f"{new.interface.name}, {new.hook.value}"
            yield f"{side} moves from {old.interface.name}, {old.hook.value} to {where}"
