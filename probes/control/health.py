"""The health windows of new generations, and the roll-back after a bad one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bpf.attach.interface import Interface
from bpf.errors import ProbedeckError
from probes.control.running_probe import RunningProbe
from probes.reports import Compatibility, Fate
from probes.snapshot import Event, Item, Snapshot

if TYPE_CHECKING:
    from bpf.arrays import Array
    from probes.config.model import ProbeConfig, Side


class HealthWatch:
    """The health window of one generation.

    A generation is well if no error is published and if its metrics move while packets pass: every
    metric that the configuration names, or else any exported one. At the end of the window, or at
    the first error, `decide` gets the trouble in words, or an empty text.
    """

    def __init__(
        self,
        config: ProbeConfig,
        generation: int,
        watched: Sequence[tuple[Interface, Side]],
        before: Mapping[str, Array],
        export: Callable[[], object],
        decide: Callable[[str], None],
    ) -> None:
        """`before` has the last rows, by metric, of maps that the generation took over.

        `export` ends the probe's window, so that metrics with a long window can show movement.
        """
        assert config.health is not None
        self._name = config.name
        self.generation = generation
        """Number of the generation that is watched."""
        self._health = config.health
        self._exports = any(m.export for _, side in config.directions() for m in side.metrics)
        self._watched = watched
        self._before = before
        self._export = export
        self._decide = decide
        self._packets = self._passed()
        self._moved: set[str] = set()
        self._trouble = ""
        self._over = threading.Event()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name=f"health {config.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, item: Item) -> None:
        if isinstance(item, Event):
            if item.severity == "error" and item.source == self._name:
                self._trouble = item.text
                self._over.set()
        elif item.probe == self._name and item.generation == self.generation:
            metric = f"{item.side}.{item.metric}"
            if has_moved(item, self._before.get(metric)):
                self._moved |= {metric, item.metric}

    def cancel(self) -> None:
        self._cancelled = True
        self._over.set()

    def _run(self) -> None:
        self._over.wait(self._health.seconds)
        passed = self._passed() - self._packets
        if self._without_movement() and not self._over.is_set():
            # The probe's window may be longer, or end only by an export.
            with contextlib.suppress(ProbedeckError):
                self._export()
        if not self._cancelled:
            self._decide(self._verdict(passed))

    def _passed(self) -> int:
        return sum(interface.packets()[side == "egress"] for interface, side in self._watched)

    def _without_movement(self) -> str:
        """Return a text that names metrics without movement; empty if there are none."""
        if self._health.metrics:
            still = [name for name in self._health.metrics if name not in self._moved]
            return f"{', '.join(still)} did not move" if still else ""
        return "no metric moved" if self._exports and not self._moved else ""

    def _verdict(self, passed: int) -> str:
        still = self._without_movement()
        if self._trouble or not still:
            return self._trouble
        if not self._watched and self._health.metrics:
            return f"{still} in {self._health.seconds:g} s"  # events: nobody counts them otherwise
        if passed <= 0:
            return ""
        return f"{still} in {self._health.seconds:g} s, and {passed} packets passed"


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
        for watch in tuple(self._watches.values()):
            watch.take(item)

    def start(self, running: RunningProbe, report: Compatibility) -> None:
        """Watch the current generation if its configuration has a health window."""
        probe = running.probe
        if probe.config.health is None:
            return
        sides = [side for side, _ in probe.config.directions()]
        pairs = zip(probe.interfaces, sides, strict=True)
        watched = tuple((interface, side) for interface, side in pairs if interface.index)
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
        if watch := self._watches.pop(name, None):
            watch.cancel()

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
                self._publish(Event.now("error", name, f"the roll-back failed: {error}"))


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


def has_moved(snapshot: Snapshot, before: Array | None) -> bool:
    """Return whether a table counted something since `before`, or since it was empty."""
    rows = snapshot.rows
    if before is not None:
        return rows.tobytes() != before.tobytes()
    if snapshot.schema and snapshot.schema.kind in ("array", "histogram"):
        return bool(rows["value"].tobytes().strip(b"\0"))
    return len(rows) > 0
