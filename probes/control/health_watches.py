"""The health windows of all probes, and the roll-back after a bad one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from bpf.errors import ProbedeckError
from probes.control.running_probe import RunningProbe
from probes.reports import Compatibility, Fate
from probes.snapshot import Event, Item

if TYPE_CHECKING:
    from bpf.maps.layout import Array
    from probes.control.health import HealthWatch


class HealthWatches:
    """Watches new generations, at most one of each probe, and rolls a bad one back."""

    def __init__(
        self,
        publish: Callable[[Item], None],
        roll_back: Callable[[str], object],
        changing: threading.RLock,
    ) -> None:
        """`changing` is the lock of changes; callers of `start` and `stop` hold it."""
        self._publish = publish
        self._roll_back = roll_back
        self._changing = changing
        self._watches: dict[str, HealthWatch] = {}

    def take(self, item: Item) -> None:
        """Hand a published item to every health window."""
        for watch in tuple(self._watches.values()):
            watch.take(item)

    def start(self, running: RunningProbe, report: Compatibility) -> None:
        """Watch the current generation if its configuration has a health window."""
        probe = running.probe
        if probe.config.health is None:
            return
        from probes.control.health import HealthWatch  # numpy, which the first paint does without

        sides = [side for side, _ in probe.config.directions()]
        watched = tuple(zip(probe.interfaces, sides, strict=True))
        watch = HealthWatch(
            probe.config,
            probe.generation,
            watched,
            _kept_rows(running, report),
            running.export,
            lambda trouble: self._decide(running, watch, trouble),
        )
        self._watches[probe.name] = watch
        watch.start()

    def stop(self, name: str) -> None:
        """Cancel the health window of a probe."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()

    def stop_all(self) -> None:
        """Cancel every health window."""
        for name in tuple(self._watches):
            self.stop(name)

    def _decide(self, running: RunningProbe, watch: HealthWatch, trouble: str) -> None:
        name, generation = running.name, watch.generation
        with self._changing:
            if self._watches.get(name) is not watch:
                return
            del self._watches[name]
            if not trouble:
                self._publish(Event.now("info", name, f"generation {generation} is well"))
                return
            text = f"generation {generation} is rolled back: {trouble}"
            self._publish(Event.now("warning", name, text))
            try:
                self._roll_back(name)
            except ProbedeckError as error:
                self._publish(Event.now("error", name, f"it could not be: {error}"))


def _kept_rows(running: RunningProbe, report: Compatibility) -> dict[str, Array]:
    """Return the last rows, by `SIDE.METRIC`, of the maps that the new generation took over."""
    probe = running.probe
    kept = {(m.side, m.map) for m in report.maps if m.fate is Fate.KEPT}
    return {
        f"{snapshot.side}.{snapshot.metric}": snapshot.rows
        for snapshot in probe.latest
        for side, direction in probe.config.directions()
        for metric in direction.metrics
        if (side, metric.name) == (snapshot.side, snapshot.metric)
        and (side, metric.map) in kept
        and not metric.init
    }
