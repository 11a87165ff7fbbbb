"""Probes that the controller runs, each with its poller."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.life import CompiledConfig, LiveProbe
from probes.map_reading import read_maps
from probes.poller import Poller, Publish
from probes.reports import Compatibility, Cost, MapReadings, NoProbeError, ProbeInfo
from probes.snapshot import REMOVED, Event, Snapshot

if TYPE_CHECKING:
    from probes.program.probe import ProgramProbe


Verdicts = Mapping[str, Mapping[str, int]]
"""By direction and frame. A direction is missing if a trial of its program is unsafe."""


class RunningProbe(Poller):
    """One probe and its poller. Each window is published before the next one ends."""

    def __init__(self, probe: LiveProbe[Any], publish: Publish, first: float | None = None) -> None:
        super().__init__(probe, probe.interval, publish, first=first)
        self.probe = probe
        self.verdicts: Verdicts = {}
        """Verdicts of its programs on the test frames."""
        self.costs: tuple[int, tuple[Cost, ...]] | None = None
        """The last measured generation, and its costs."""
        self.measuring = threading.Lock()
        """Held during a measurement of costs, so that concurrent callers share one."""
        self._verdicts_before: Verdicts = {}
        self._removed = False

    @property
    def name(self) -> str:
        return self.probe.name

    def export(self) -> None:
        """End and publish the window. Raises NoProbeError after `close`."""
        with self.lock:
            if self._removed:
                raise NoProbeError(f"probe {self.name} was removed meanwhile")
            super().export()

    def replace(self, compiled: CompiledConfig, verdicts: Verdicts) -> None:
        """Replace its programs. If that raises ProbedeckError, the old ones run on."""
        with self.lock:
            self.publish(self.probe.replace(compiled))
            self._verdicts_before, self.verdicts = self.verdicts, verdicts
            self.interval = self.probe.interval

    def roll_back(self) -> Compatibility:
        with self.lock:
            report, items = self.probe.roll_back()
            self.publish(items)
            self._verdicts_before, self.verdicts = self.verdicts, self._verdicts_before
            self.interval = self.probe.interval
            return report

    def close(self) -> tuple[Snapshot, ...]:
        """Detach a stopped probe; return the tables of its last window."""
        with self.lock:
            self._removed = True
            latest = self.probe.latest
            self.probe.close()
            return latest

    def maps(self, most: int) -> MapReadings:
        """Read its maps, at most `most` rows of each."""
        probe = self.probe
        return read_maps(self.name, probe.generation, probe.latest, probe.lend_maps(), most)

    def info(self) -> ProbeInfo:
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


class RunningProbes:
    """Running probes by name, the oldest first.

    Callers that change the registry hold the lock of changes. Readers need no lock, so a change
    that waits for a slow listener does not block them.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._probes: dict[str, RunningProbe] = {}
        self._closed = False

    def __iter__(self) -> Iterator[RunningProbe]:
        return iter(tuple(self._probes.values()))

    def get(self, name: str) -> RunningProbe | None:
        return self._probes.get(name)

    def built_in(self, name: str) -> RunningProbe | None:
        """Return a built-in probe that runs; None if it does not."""
        running = self._probes.get(name)
        return running if running and running.probe.builtin else None

    def find(self, name: str) -> RunningProbe:
        """Raises NoProbeError if no probe of this name runs."""
        running = self._probes.get(name)
        if running is None:
            hint = did_you_mean(name, sorted(self._probes)) or "there are none"
            raise NoProbeError(f"no probe {name!r}", hint=hint)
        return running

    def program(self, name: str) -> ProgramProbe:
        """Return a user's probe. Raises UsageError for a built-in one."""
        from probes.program.probe import ProgramProbe

        probe = self.find(name).probe
        if not isinstance(probe, ProgramProbe):
            raise UsageError(f"probe {name} is built in, and has no writable maps")
        return probe

    def refuse_twice(self, name: str) -> None:
        """Raise UsageError if a probe of this name runs, ProbedeckError after `close`."""
        if self._closed:
            raise ProbedeckError("the controller is closed")
        if name in self._probes:
            raise UsageError(f"there is a probe {name!r} already", hint="replace it, or remove it")

    def start(self, probe: LiveProbe[Any], first: float | None = None) -> RunningProbe:
        """Start a probe's poller. Its first window lasts `first` seconds, if given."""
        running = self._probes[probe.name] = RunningProbe(probe, self._publish, first)
        running.start()
        return running

    def pop(self, name: str) -> RunningProbe:
        """Remove a probe that the caller then ends. Raises NoProbeError."""
        running = self.find(name)
        del self._probes[name]
        return running

    def finish(self, running: RunningProbe) -> tuple[Snapshot, ...]:
        """End a removed probe and return its last window, once every listener has taken it."""
        running.stop()
        latest = running.close()
        self._publish(Event.now("info", running.name, REMOVED))
        return latest

    def close(self) -> Sequence[RunningProbe]:
        """Remove all probes, which the caller then ends. No other probe can start."""
        self._closed = True
        running, self._probes = tuple(self._probes.values()), {}
        return running
