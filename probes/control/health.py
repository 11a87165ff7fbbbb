"""The health window of a new generation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bpf.attach.interface import Interface
from bpf.errors import ProbedeckError
from bpf.maps.layout import Array
from probes.config.model import ProbeConfig, Side
from probes.snapshot import Event, Item, Snapshot
from probes.tables.conversion import TableKind

_COUNTED_BY_PLACE = frozenset({TableKind.ARRAY, TableKind.HISTOGRAM})


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
        """Take a published item into account."""
        if isinstance(item, Event):
            if item.severity == "error" and item.source == self._name:
                self._trouble = item.text
                self._over.set()
        elif item.probe == self._name and item.generation == self.generation:
            metric = f"{item.side}.{item.metric}"
            if has_moved(item, self._before.get(metric)):
                self._moved |= {metric, item.metric}

    def cancel(self) -> None:
        """End the window without a decision."""
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
        """Return the packets of the watched directions so far."""
        return sum(interface.packets()[side == "egress"] for interface, side in self._watched)

    def _without_movement(self) -> str:
        """Return a text that names metrics without movement; empty if there are none."""
        if self._health.metrics:
            still = [name for name in self._health.metrics if name not in self._moved]
            return f"{', '.join(still)} did not move" if still else ""
        return "no metric moved" if self._exports and not self._moved else ""

    def _verdict(self, passed: int) -> str:
        still = self._without_movement()
        if self._trouble or not still or passed <= 0:
            return self._trouble
        return f"{still} in {self._health.seconds:g} s, and {passed} packets passed"


def has_moved(snapshot: Snapshot, before: Array | None) -> bool:
    """Return whether a table counted something since `before`, or since it was empty."""
    rows = snapshot.rows
    if before is not None:
        return rows.tobytes() != before.tobytes()
    kind = snapshot.schema.kind if snapshot.schema else None
    if kind in _COUNTED_BY_PLACE:
        return bool(np.ascontiguousarray(rows["value"]).view("u1").any())
    return len(rows) > 0
