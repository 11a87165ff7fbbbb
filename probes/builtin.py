"""Base of built-in probes: editable sources on one interface, and the maps that outlive them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, CompiledMap, Compiler
from bpf.compiler.diagnostics import parse_verifier
from bpf.errors import KernelError, UsageError
from bpf.maps.kinds import map_memory
from bpf.programs.program import Program, create_like
from bpf.syscall import VerifierError
from probes.hooks import ChainSlot, Hooks
from probes.hooks.interface_hook import InterfaceHook, macros_of
from probes.life import Bundle, CompiledConfig, L, LiveProbe
from probes.map_reading import LentMap, lend
from probes.reports import Compatibility, Fate, MapFate, ProgramInfo

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side


@dataclass(frozen=True, slots=True)
class CompiledSides(CompiledConfig):
    """A built-in probe with edited sources, compiled. Its programs use the maps that exist."""

    function: str
    """Name of the program that the hook calls."""
    sides: Mapping[Side, Compiled]
    basis: object
    """The probe's `_basis` when it was compiled."""

    def results(self) -> Iterator[tuple[Side, Compiled, str]]:
        return ((side, compiled, self.function) for side, compiled in self.sides.items())


@dataclass(frozen=True, slots=True)
class Generation(Generic[L]):
    """The loaded programs of a built-in probe, and their sources; the tables are the probe's."""

    sources: Mapping[Side, str]
    parts: Bundle[L]

    def close(self) -> None:
        self.parts.close()


class BuiltinProbe(LiveProbe[Generation[L]]):
    """A probe on one interface. Its sources can be edited; its tables stay."""

    function: str
    """Name of the program that a hook calls."""
    sources: Mapping[Side, Path]
    """Its own sources, by direction."""
    metric: tuple[str, str] = ("", "")
    """Name and map of the metric in its configuration."""
    needed: Mapping[Side, Sequence[str]] = {}
    """Functions that each source must have."""
    kept: Sequence[str] = ()
    """Maps that an edited source must declare alike, because user space reads them; empty: all."""
    fates: Mapping[str, Fate] = {}
    """Effect of a replacement on its maps."""
    _slots: dict[Side, ChainSlot[InterfaceHook]]
    _basis: object = None
    """Whatever it compiles sources with. If it changes, a compiled source is out of date."""

    def __init__(self, compiler: Compiler, interface: Interface, interval: float) -> None:
        super().__init__(compiler)
        self.interface = interface
        self.interfaces = (interface,)
        self.interval = interval
        self._now: Callable[[], int] = time.monotonic_ns
        self._shapes: dict[Side, dict[str, tuple[object, ...]]] = {}
        """Declarations of the maps of its own sources. Other maps have values to show."""
        self._current = Generation({}, Bundle())

    def _start(self, hooks: Hooks, where: Mapping[Side, Hook]) -> None:
        """Compile its own sources, make the maps, load, and join the chains of the hooks `where`.

        An error leaves nothing behind.
        """
        try:
            for side, hook in where.items():
                self._slots[side] = ChainSlot(hooks, hooks.acquire(self.interface, hook), self.name)
            sources = {side: self.sources[side].read_text(encoding="utf-8") for side in where}
            with self._compiled(sources) as sides:
                for side, compiled in sides.items():
                    self._shapes[side] = {n: shape_of(map_) for n, map_ in compiled.maps.items()}
                self._make_maps(sides)
                self._current = Generation(sources, Bundle(self._parts(sides)))
            self._join()
            # Last: a program that does not load must not touch the interface.
            for slot in self._slots.values():
                hooks.attach(slot.point)
        except VerifierError as error:
            self.close()
            reason = parse_verifier(self.function, error.log).text
            raise KernelError(f"this kernel refuses a program of {self.name}: {reason}") from None
        except BaseException:
            self.close()
            raise
        self._start_ns = self._now()

    def _make_maps(self, sides: Mapping[Side, Compiled]) -> None:
        """Make the maps that all generations share, as the probe's own sources declare them."""

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[L]:
        """Load the parts of a generation, and yield each."""
        raise NotImplementedError

    def _reached(self) -> Iterable[tuple[Side, Program, int]]:
        """Return the programs that packets reach, with their memory in bytes."""
        return ()

    def _join(self) -> None:
        for side, program, _ in self._reached():
            slot = self._slots[side]
            slot.point.chain.append(slot.stage, program.fd)

    def keep_time(self, now: Callable[[], int]) -> None:
        """Date windows by `now`, in ns since the epoch, instead of CLOCK_MONOTONIC; a window begins
        at once."""
        with self._lock:
            self._now = now
            self._utc.given = True
            self._start_ns = now()

    def points(self) -> Mapping[Side, InterfaceHook]:
        """Return the hooks where it sees packets."""
        return {side: slot.point for side, slot in self._slots.items()}

    @property
    def config(self) -> ProbeConfig:
        """The configuration that a user's probe would have; only its sources can be replaced."""
        # Imported here: the first paint needs no pydantic.
        from probes.config import map_config, model

        table, name = self.metric
        metrics = (map_config.Metric(name=table, map=name, snapshot=True),)
        sides: dict[str, Any] = {
            side: model.DirectionConfig(
                interface=self.interface.name,
                hook="xdp" if point.hook is Hook.XDP else "tc",
                source=self._current.sources[side],
                function=self.function if len(self.needed[side]) > 1 else "",
                metrics=metrics,
            )
            for side, point in self.points().items()
        }
        return model.ProbeConfig(name=self.name, interval=self.interval, **sides)

    def programs(self) -> tuple[ProgramInfo, ...]:
        with self._lock:
            points, place = self.points(), self.interface.name
            return tuple(
                ProgramInfo(
                    side, place, points[side].hook.value, points[side].mode, self.function,
                    program.info().id, memory,
                )
                for side, program, memory in self._reached()
            )  # fmt: skip

    def lend_maps(self) -> tuple[LentMap, ...]:
        with self._lock:
            found = (lend(side, each, self._shapes[side]) for side, each, _ in self._reached())
            return tuple(chain.from_iterable(found))

    def compile(self, config: ProbeConfig) -> CompiledSides:
        mine, theirs = (
            each.model_dump(exclude={side: {"source"} for side in ("ingress", "egress", "event")})
            for each in (self.config, config)
        )
        if changed := [key for key in mine if theirs[key] != mine[key]]:
            what = "sources" if len(self.sources) > 1 else "source"
            raise UsageError(
                f"of the {self.name} probe only the {what} can be replaced, "
                f"not what {changed[0]} says"
            )
        basis = self._basis
        sides: dict[Side, Compiled] = {}
        with ExitStack() as undo:
            for side, direction in config.directions():
                made = sides[side] = undo.enter_context(self._compile(side, direction.source))
                self._check(side, made)
            undo.pop_all()
        return CompiledSides(config, self.function, sides, basis)

    def _check(self, side: Side, compiled: Compiled) -> None:
        """Raise UsageError if user space could not work with an edited program."""
        for function in self.needed.get(side, ()):
            if function not in compiled.programs:
                raise UsageError(f"{side}: the source must have the program {function}")
        shapes = self._shapes.get(side, {})
        for name in self.kept or shapes:
            found = compiled.maps.get(name)
            if found is None or shape_of(found) != shapes[name]:
                what = "is gone" if found is None else "has another kind, layout or size"
                raise UsageError(f"{side}: map {name} {what}, and the probe's table is read by it")

    @contextmanager
    def _compiled(self, sources: Mapping[Side, str]) -> Iterator[dict[Side, Compiled]]:
        """Compile sources; their descriptors are closed at the end of the block."""
        with ExitStack() as stack:
            yield {
                side: stack.enter_context(self._compile(side, source))
                for side, source in sources.items()
            }

    def _compile(self, side: Side, source: str) -> Compiled:
        """Compile a source with the probe's macros and headers, by `_compile_with`."""
        raise NotImplementedError

    def _compile_with(
        self,
        side: Side,
        source: str,
        macros: Mapping[str, Any],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Compiled:
        hook = self._slots[side].point.hook
        macros = {**macros_of(self.interface, hook), **macros}
        return self._compiler.compile(
            source,
            hook.prog_type,
            name=f"{self.name}.{side}.c",
            headers=headers,
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        )

    def compare(self, compiled: CompiledSides) -> Compatibility:
        fates = self.fates.items()
        return Compatibility(
            tuple(MapFate(s, name, fate, "", 0) for s in compiled.sides for name, fate in fates)
        )

    def _load(self, compiled: CompiledSides) -> Generation[L]:
        if compiled.basis is not self._basis:
            with self.compile(compiled.config) as fresh:
                return self._load(fresh)
        sources = {side: direction.source for side, direction in compiled.config.directions()}
        return Generation(sources, Bundle(self._parts(compiled.sides)))


def shape_of(declared: CompiledMap) -> tuple[object, ...]:
    """Return the parts of a declaration that user space relies on."""
    return declared.spec, declared.key, declared.value


class ProbeMaps:
    """Maps of a probe that all its programs and generations share."""

    def __init__(
        self,
        compiled: Compiled,
        names: Iterable[str],
        entries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Create the maps as a source declares them; `entries` overrides numbers of entries.

        Raises KernelError if memory is short.
        """
        self.fds: dict[str, int] = {}
        try:
            for name in names:
                self.fds[name] = create_like(compiled.maps[name], entries=entries.get(name))
        except BaseException:
            self.close()
            raise

    def memory(self) -> int:
        """Return the bytes of kernel memory that they take."""
        return sum(map_memory(fd) for fd in self.fds.values())

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
