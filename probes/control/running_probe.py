"""A probe that the controller runs: its poller, and who may end its window."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bpf.attach.interface import Interface
from bpf.compiler import CompiledProgram, Diagnostic
from bpf.errors import ProbedeckError
from probes.control_plane import Cost, NoProbeError, ProbeInfo
from probes.poller import Poller, Probe, Publish
from probes.reports import Compatibility, ProgramInfo
from probes.snapshot import Item, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side


Verdicts = Mapping[str, Mapping[str, int]]
"""By direction and by the frame's name. A direction is missing if its program can't be tried."""


class CompiledConfig(Protocol):
    """A configuration, compiled and verified, that no packet reaches yet."""

    @property
    def config(self) -> ProbeConfig: ...

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]: ...

    def programs(self) -> Iterator[tuple[Side, CompiledProgram]]:
        """The program of each direction, on maps of its own that nobody reads."""

    def map_fds(self) -> Iterator[int]:
        """Descriptors of those maps."""

    def memory(self, kept: Container[tuple[Side, str]] = ()) -> int:
        """Bytes of kernel memory that it takes once loaded, without the maps in `kept`."""

    def close(self) -> None: ...


class Replaceable(Probe, Protocol):
    """A probe whose programs can be replaced while it runs: a user's, or a built-in one.

    A replacement takes what `compile` of the same probe gave, whatever type that has.
    """

    builtin: bool

    @property
    def interval(self) -> float: ...

    @property
    def config(self) -> ProbeConfig: ...

    @property
    def generation(self) -> int: ...

    @property
    def previous(self) -> int | None: ...

    @property
    def window(self) -> int: ...

    @property
    def latest(self) -> tuple[Snapshot, ...]: ...

    def programs(self) -> tuple[ProgramInfo, ...]: ...

    def compile(self, config: ProbeConfig) -> CompiledConfig: ...

    def compare(self, compiled: Any) -> Compatibility: ...

    def replace(self, compiled: Any) -> Sequence[Item]: ...

    def roll_back(self) -> tuple[Compatibility, Sequence[Item]]: ...

    def close(self) -> None: ...


class RunningProbe:
    """One probe and its poller. Whoever ends a window publishes it before the next one ends."""

    def __init__(self, probe: Replaceable, publish: Publish, first: float | None = None) -> None:
        self.probe = probe
        self.verdicts: Verdicts = {}
        """What its programs say to the test frames, by direction."""
        self.costs: tuple[int, tuple[Cost, ...]] | None = None
        """The generation whose run time was measured last, and its costs."""
        self.measuring = threading.Lock()
        """Held while costs are measured, so that one caller measures and the others wait."""
        self._publish = publish
        self._lock = threading.RLock()
        self._verdicts_before: Verdicts = {}
        self._removed = False
        self._poller = Poller(self, probe.interval, publish, first=first)

    @property
    def name(self) -> str:
        return self.probe.name

    @property
    def interval(self) -> float:
        """Seconds of a window; 0 if only exports end windows."""
        return self._poller.interval

    @property
    def interfaces(self) -> Sequence[Interface]:
        return self.probe.interfaces

    @property
    def alarm_fd(self) -> int:
        return self.probe.alarm_fd

    @property
    def failure(self) -> ProbedeckError | None:
        """Why it ended by itself."""
        return self._poller.failure

    def start(self) -> None:
        self._poller.start()

    def export(self) -> Sequence[Item]:
        """End the window, and publish its items: the poller has none left to publish."""
        with self._lock:
            self._tell(self.probe.export())
        return ()

    def export_now(self) -> tuple[Snapshot, ...]:
        """Export as `export` does; return the window's tables."""
        with self._lock:
            if self._removed:
                raise NoProbeError(f"probe {self.name} was removed meanwhile")
            self.export()
            return self.probe.latest

    def replace(self, compiled: CompiledConfig, verdicts: Verdicts) -> None:
        """Replace its programs; raises ProbedeckError, and then everything runs on as before."""
        with self._lock:
            self._tell(self.probe.replace(compiled))
            self._verdicts_before, self.verdicts = self.verdicts, verdicts
            self._poller.interval = self.probe.interval

    def roll_back(self) -> Compatibility:
        """Put the generation before in place again."""
        with self._lock:
            report, items = self.probe.roll_back()
            self._tell(items)
            self._verdicts_before, self.verdicts = self.verdicts, self._verdicts_before
            self._poller.interval = self.probe.interval
            return report

    def stop(self) -> None:
        """Publish the last window, and poll no more."""
        self._poller.stop()

    def close(self) -> tuple[Snapshot, ...]:
        """Detach it, when it is stopped; the last window's tables."""
        with self._lock:
            self._removed = True
            latest = self.probe.latest
            self.probe.close()
            return latest

    def info(self) -> ProbeInfo:
        """What an operator is told of it."""
        config = self.probe.config
        return ProbeInfo(
            self.name,
            self.probe.builtin,
            self.probe.generation,
            self.probe.previous,
            self.probe.window,
            self.probe.programs(),
            tuple(f"{side}.{m.name}" for side, d in config.directions() for m in d.metrics),
            str(self.failure or ""),
            config,
        )

    def _tell(self, items: Sequence[Item]) -> None:
        for item in items:
            self._publish(item)
