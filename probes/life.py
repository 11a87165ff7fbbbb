"""The life of a probe: compile, load, direct packets, end windows, replace, roll back, close.

Each probe goes through the same steps, whatever it measures and whoever wrote it. A configuration
becomes a `CompiledConfig`, and that a `Generation`, whose programs no packet reaches yet. One write
for each hook then directs packets to it, and the window of the generation before ends: a grace
period, a drain. The generation before stays loaded for a roll-back, which is the same step again.

Whatever compiles and loads, its results are a `Compiled` for each direction and the parts of a
`Generation`: no step here asks where they come from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import numpy as np

from bpf.attach.interface import Interface
from bpf.compiler import Compiled, CompiledProgram, Compiler, Diagnostic
from bpf.errors import Closing, UsageError
from bpf.programs import grace
from probes.hooks import ChainSlot, ProbeHook
from probes.map_reading import LentMap
from probes.poller import UtcClock
from probes.reports import Compatibility, ProgramInfo
from probes.snapshot import Item, Losses, LossReason, Peak, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side
    from probes.tables.conversion import TableSchema


class _Closable(Protocol):
    def close(self) -> None: ...


L = TypeVar("L", bound=_Closable)
G = TypeVar("G", bound=_Closable)


class Bundle(list[L]):
    """Parts of a probe that are made, and closed, together."""

    def __init__(self, parts: Iterable[L] = ()) -> None:
        """If a part cannot be made, close the parts before it."""
        super().__init__()
        try:
            self.extend(parts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self:
            self.pop().close()


@dataclass(frozen=True, slots=True)
class CompiledConfig(Closing):
    """A compiled and verified configuration; `close` closes its descriptors."""

    config: ProbeConfig

    def results(self) -> Iterator[tuple[Side, Compiled, str]]:
        """Yield each direction with the compiler's result and the name of its program."""
        raise NotImplementedError

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(d for _, compiled, _ in self.results() for d in compiled.diagnostics)

    def programs(self) -> Iterator[tuple[Side, CompiledProgram]]:
        """Yield the program of each direction; its maps are copies for the verifier."""
        return ((side, compiled.programs[name]) for side, compiled, name in self.results())

    def map_fds(self) -> Iterator[int]:
        """Yield the descriptors of these maps."""
        return (each.fd for _, compiled, _ in self.results() for each in compiled.maps.values())

    def memory(self, kept: Container[tuple[Side, str]] = ()) -> int:
        """Return the bytes of kernel memory that new maps take, without the maps in `kept`."""
        return 0

    def close(self) -> None:
        for _, compiled, _ in self.results():
            compiled.close()


class LiveProbe(Generic[G]):
    """A probe that runs, with the current and the previous generation of its programs.

    A subclass compiles (`compile`), loads (`_load`), directs packets to a generation (`_direct`),
    and reads what programs have counted (`_end_window`). Any thread may call the methods; they
    exclude one another (S1.23).
    """

    name: str
    builtin = True
    alarm_fd = -1
    interval: float
    """Seconds of a window; 0 if only exports end windows."""
    interfaces: tuple[Interface, ...]
    """Interface of each direction; index 0 for events."""
    _current: G

    wait_for_packets: Callable[[], object] = staticmethod(grace.wait)
    """Waits until no packet is within a program that was reached before."""

    def __init__(self, compiler: Compiler) -> None:
        self.generation = 1
        self.window = 0
        self.latest: tuple[Snapshot, ...] = ()
        """Tables of the last window."""
        self._compiler = compiler
        self._lock = threading.RLock()
        self._utc = UtcClock()
        self._previous: G | None = None
        self._slots: dict[Any, ChainSlot[Any]] = {}
        """Its slots in the chains of hooks; all generations share them."""
        self._owned = ExitStack()
        """Maps and readers that all generations share, closed after the programs."""
        self._start_ns = time.monotonic_ns()

    @property
    def config(self) -> ProbeConfig:
        """The configuration; only the sources of a built-in probe can be replaced."""
        raise NotImplementedError

    @property
    def previous(self) -> int | None:
        """Number of the generation that `roll_back` returns to."""
        return self.generation - 1 if self._previous else None

    def programs(self) -> tuple[ProgramInfo, ...]:
        """Return the programs that packets reach."""
        raise NotImplementedError

    def lend_maps(self) -> tuple[LentMap, ...]:
        """Lend the maps of the programs that packets reach."""
        return ()

    def dependents(self) -> tuple[str, ...]:
        """Names of the probes that must end before this one."""
        return ()

    def wind_up(self) -> None:
        """Prepare for the last window: the probe is about to end."""

    def compile(self, config: ProbeConfig) -> CompiledConfig:
        """Compile a configuration. Raises CompileError, or UsageError for impossible changes."""
        raise NotImplementedError

    def compare(self, compiled: Any) -> Compatibility:
        """Return the effects of `replace`."""
        return Compatibility()

    def export(self) -> Sequence[Item]:
        """End the window: swap, wait, and read (Algorithm 2)."""
        with self._lock:
            started = time.monotonic_ns()
            return self._end_window(self._direct(self._current), started)

    def relieve(self) -> bool:
        """Make room in full tables while the window goes on; False if the window must end."""
        return False

    def replace(self, compiled: Any) -> tuple[Item, ...]:
        """Replace the generation by a result of `compile`; return the window that this ends.

        If it raises ProbedeckError, the old generation runs on.
        """
        with self._lock:
            return self._become(self._load(compiled))

    def roll_back(self) -> tuple[Compatibility, tuple[Item, ...]]:
        """Return to the previous generation, under a new number, as `replace` does."""
        with self._lock:
            old = self._previous
            if old is None:
                raise UsageError(
                    f"probe {self.name} has no generation to go back to", hint="it was not replaced"
                )
            report = self._readmit(old)
            self._previous = None
            return report, self._become(old)

    def close(self) -> None:
        """Leave the hooks and release everything; the caller exports before."""
        with self._lock:
            for slot in self._slots.values():
                slot.leave()
            self._forget_previous()
            self._current.close()
            self._owned.close()
            while self._slots:
                self._slots.popitem()[1].close()

    def _load(self, compiled: Any) -> G:
        """Load a generation that no packet reaches yet, or raise and load none."""
        raise NotImplementedError

    def _direct(self, new: G) -> Any:
        """Direct packets to `new`, or to the other half of the current generation.

        Return the tables to read after a grace period, as `_end_window` takes them.
        """
        raise NotImplementedError

    def _end_window(self, ended: Any, started_ns: int) -> tuple[Item, ...]:
        """Wait until no CPU runs programs that write `ended`, and return its window.

        The swap began at `started_ns`; the ended generation is the current one until this returns.
        """
        raise NotImplementedError

    def _readmit(self, old: G) -> Compatibility:
        """Prepare the return to a generation; return its effects."""
        return Compatibility()

    def _become(self, new: G) -> tuple[Item, ...]:
        started = time.monotonic_ns()
        ended = self._direct(new)
        try:
            return self._end_window(ended, started)
        finally:
            gone, self._previous, self._current = self._previous, self._current, new
            self.generation += 1
            if gone:
                gone.close()

    def _forget_previous(self) -> None:
        gone, self._previous = self._previous, None
        if gone:
            gone.close()

    def _snapshot(
        self,
        rows: np.ndarray[tuple[int, ...], np.dtype[Any]],
        end_ns: int,
        points: Iterable[ProbeHook],
        *,
        quiet_ns: int,
        swap_ns: int = 0,
        losses: Losses = MappingProxyType({}),
        occupancy: float = 0.0,
        interface: str = "",
        side: Side | Literal[""] = "",
        table: str = "",
        schema: TableSchema | None = None,
        peaks: tuple[Peak, ...] = (),
    ) -> Snapshot:
        """Return a table of the window that began at `_start_ns`; its drain began at `quiet_ns`."""
        return Snapshot(
            probe=self.name,
            interface=interface or self.interfaces[0].name,
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
            side=side,
            metric=table,
            schema=schema,
            hooks=tuple(point.status for point in points),
            cut=LossReason.BUDGET in losses,
            peaks=peaks,
        )
