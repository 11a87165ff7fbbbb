"""Base of built-in probes: editable sources, two generations, and the maps that outlive them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiled, CompiledMap, Compiler
from bpf.errors import UsageError
from bpf.maps.kinds import map_memory
from bpf.programs.program import Program, create_like
from probes.compiled_config import CompiledConfig
from probes.hooks import ProbeHook
from probes.map_reading import LentMap
from probes.poller import UtcClock
from probes.reports import Compatibility, ProgramInfo
from probes.snapshot import Item, Losses, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side


class _Loaded(Protocol):
    def close(self) -> None: ...


L = TypeVar("L", bound=_Loaded)


class BuiltinProbe(Generic[L]):
    """A probe on one interface, with the current and the previous generation of its programs.

    Any thread may call the methods of subclasses; they exclude one another.
    """

    name: str
    function: str
    """Name of the program that a hook calls."""
    builtin = True
    alarm_fd = -1

    def __init__(self, compiler: Compiler, interface: Interface, interval: float) -> None:
        self._compiler = compiler
        self.interface = interface
        self.interfaces = (interface,)
        self.interval = interval
        """Seconds of a window; 0 if only exports end windows."""
        self.generation = 1
        self.window = 0
        self.latest: tuple[Snapshot, ...] = ()
        """Tables of the last window."""
        self._lock = threading.RLock()
        self._utc = UtcClock()
        self._previous: L | None = None
        self._now: Callable[[], int] = time.monotonic_ns
        self._start_ns = self._now()

    def keep_time(self, now: Callable[[], int]) -> None:
        """Date windows by `now`, in ns, instead of CLOCK_MONOTONIC; a window begins at once."""
        with self._lock:
            self._now = now
            self._start_ns = now()

    def points(self) -> Mapping[Side, ProbeHook]:
        """Return the hooks where it sees packets."""
        raise NotImplementedError

    @property
    def config(self) -> ProbeConfig:
        """The configuration that a user's probe would have; only its sources can be replaced."""
        raise NotImplementedError

    def lend_maps(self) -> tuple[LentMap, ...]:
        """Lend the maps of the programs that packets reach; only maps that a user added have
        values."""
        with self._lock:
            return tuple(self._lent())

    def _lent(self) -> Iterator[LentMap]:
        raise NotImplementedError

    def dependents(self) -> tuple[str, ...]:
        """Names of the probes that must end before this one."""
        return ()

    def wind_up(self) -> None:
        """Prepare for the last window: the probe is about to end."""

    @property
    def previous(self) -> int | None:
        """Number of the generation that `roll_back` returns to."""
        return self.generation - 1 if self._previous else None

    def roll_back(self) -> tuple[Compatibility, tuple[Item, ...]]:
        """Return to the previous generation, under a new number."""
        with self._lock:
            old = self._previous
            if old is None:
                raise UsageError(f"probe {self.name} has no generation to go back to")
            self._previous = None
            return Compatibility(), self._become(old)

    def compile(self, config: ProbeConfig) -> CompiledSides:
        """Compile other sources. Raises CompileError, or UsageError for other changes."""
        mine, theirs = _all_but_sources(self.config), _all_but_sources(config)
        if changed := [key for key in mine if theirs[key] != mine[key]]:
            raise UsageError(
                f"of the {self.name} probe only the sources can be replaced, "
                f"not what {changed[0]} says"
            )
        sources = {side: direction.source for side, direction in config.directions()}
        with ExitStack() as undo:
            made = self._compile_all(sources)
            compiled = undo.enter_context(CompiledSides(config, self.function, made))
            for side, one in compiled.sides.items():
                self._check(side, one)
            undo.pop_all()
        return compiled

    def _compile_all(self, sources: Mapping[Side, str]) -> dict[Side, Compiled]:
        """Compile the source of each direction, or raise and leave nothing behind."""
        with ExitStack() as undo:
            compiled = {
                side: undo.enter_context(self._compile(side, source))
                for side, source in sources.items()
            }
            undo.pop_all()
        return compiled

    def _compile(self, side: Side, source: str) -> Compiled:
        """Compile a source with the probe's macros and headers, by `_compile_with`."""
        raise NotImplementedError

    def _check(self, side: Side, compiled: Compiled) -> None:
        """Raise UsageError if user space could not work with an edited program."""
        raise NotImplementedError

    def _compile_with(
        self,
        side: Side,
        source: str,
        macros: Mapping[str, Any],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Compiled:
        hook = self.points()[side].hook
        macros = {hook.macro: 1, "LINK_ETHERNET": int(self.interface.ethernet), **macros}
        return self._compiler.compile(
            source,
            hook.prog_type,
            name=f"{self.name}.{side}.c",
            headers=headers,
            cflags=[f"-D{name}={value}" for name, value in macros.items()],
        )

    def _described(
        self, sources: Mapping[Side, str], table: str, map_name: str, function: str = ""
    ) -> ProbeConfig:
        """Return the configuration for `sources`, with one metric."""
        # Imported here: the first paint needs no pydantic.
        from probes.config import map_config, model

        metrics = (map_config.Metric(name=table, map=map_name, snapshot=True),)
        sides: dict[str, Any] = {
            side: model.DirectionConfig(
                interface=self.interface.name,
                hook="xdp" if point.hook is Hook.XDP else "tc",
                source=sources[side],
                function=function,
                metrics=metrics,
            )
            for side, point in self.points().items()
        }
        return model.ProbeConfig(name=self.name, interval=self.interval, **sides)

    def _program_info(self, side: Side, program: Program, memory: int) -> ProgramInfo:
        point = self.points()[side]
        names = self.interface.name, point.hook.value, point.mode, self.function
        return ProgramInfo(side, *names, program.info().id, memory)

    def _become(self, new: L) -> tuple[Item, ...]:
        """Replace the current generation; return the window that this ends."""
        raise NotImplementedError

    def _forget_previous(self) -> None:
        if self._previous:
            self._previous.close()
            self._previous = None

    def _snapshot(
        self,
        rows: np.ndarray[tuple[int, ...], np.dtype[Any]],
        end_ns: int,
        losses: Losses,
        occupancy: float,
        *,
        quiet_ns: int,
        swap_ns: int = 0,
        table: str = "",
    ) -> Snapshot:
        """Return a table of the window that began at `_start_ns`; its drain began at `quiet_ns`."""
        return Snapshot(
            probe=self.name,
            interface=self.interface.name,
            window=self.window,
            generation=self.generation,
            start_ns=self._start_ns,
            end_ns=end_ns,
            end_utc_ns=self._utc.utc_ns(end_ns),
            rows=rows,
            losses=losses,
            occupancy=occupancy,
            swap_ns=swap_ns,
            drain_ns=time.monotonic_ns() - quiet_ns,
            metric=table,
            hooks=tuple(point.status for point in self.points().values()),
        )


@dataclass(frozen=True, slots=True)
class CompiledSides(CompiledConfig):
    """A built-in probe with edited sources, compiled. Its programs use the maps that exist."""

    function: str
    """Name of the program that the hook calls."""
    sides: Mapping[Side, Compiled]

    def results(self) -> Iterator[tuple[Side, Compiled, str]]:
        return ((side, compiled, self.function) for side, compiled in self.sides.items())


def _all_but_sources(config: ProbeConfig) -> dict[str, Any]:
    return config.model_dump(exclude={side: {"source"} for side in ("ingress", "egress", "event")})


def check_programs(compiled: Compiled, side: Side, functions: tuple[str, ...]) -> None:
    """Raise UsageError if one of `functions`, which user space loads, is missing."""
    for function in functions:
        if function not in compiled.programs:
            raise UsageError(f"{side}: the source must have the program {function}")


def check_maps(compiled: Compiled, side: Side, expected: Mapping[str, tuple[object, ...]]) -> None:
    """Raise UsageError if a map differs from its `shape_of` in `expected`, by name."""
    for name, shape in expected.items():
        found = compiled.maps.get(name)
        if found is None or shape_of(found) != shape:
            what = "is gone" if found is None else "has another kind, layout or size"
            raise UsageError(f"{side}: map {name} {what}, and the probe's table is read by it")


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
