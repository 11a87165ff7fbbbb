"""The health windows that go on: what starts them, feeds them, and acts on their verdicts."""

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
    """Watches generations that have just replaced others, at most one of each probe.

    A generation that is not good is rolled back.
    """

    def __init__(
        self,
        publish: Callable[[Item], None],
        roll_back: Callable[[str], object],
        changing: threading.RLock,
    ) -> None:
        """`changing` is held by whoever changes probes; `start` and `stop` need it."""
        self._publish = publish
        self._roll_back = roll_back
        self._changing = changing
        self._watches: dict[str, HealthWatch] = {}

    def take(self, item: Item) -> None:
        """Look at something that was published."""
        for watch in tuple(self._watches.values()):
            watch.take(item)

    def start(self, running: RunningProbe, report: Compatibility) -> None:
        """Watch the generation that runs now, if its configuration asks for that."""
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
            running.export_now,
            lambda trouble: self._decide(running, watch, trouble),
        )
        self._watches[probe.name] = watch
        watch.start()

    def stop(self, name: str) -> None:
        """Decide nothing any more about a probe."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()

    def stop_all(self) -> None:
        """Decide nothing any more."""
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
    """The last rows, by `SIDE.METRIC`, of the maps that the new generation took over."""
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
