"""Looking at a new generation for a while, and bringing the last good one back if it is no good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bpf.interface import Interface
from bpf.layout import Array
from probes.config import Health
from probes.snapshot import Event, Item, Snapshot
from probes.tables import TableKind

_COUNTED_BY_PLACE = frozenset({TableKind.ARRAY, TableKind.HISTOGRAM})


class HealthWatch:
    """One generation's health window. Takes in what is published of its probe.

    Good is: every metric named (or, where none is, any) has moved while packets arrived, and no
    error was published. At the end, or at the first error, `decide` is called with why it is not
    good, or with nothing.
    """

    def __init__(
        self,
        name: str,
        generation: int,
        health: Health,
        interfaces: Sequence[Interface],
        before: Mapping[str, Array],
        decide: Callable[[str], None],
    ) -> None:
        """`before` are the last rows, by metric, of maps that the generation took over."""
        self._name = name
        self._generation = generation
        self._health = health
        self._interfaces = interfaces
        self._before = before
        self._decide = decide
        self._packets = [interface.packets() for interface in interfaces]
        self._moved: set[str] = set()
        self._trouble = ""
        self._over = threading.Event()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name=f"health {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, item: Item) -> None:
        """Look at something that was published."""
        if isinstance(item, Event):
            if item.severity == "error" and item.source == self._name:
                self._trouble = item.text
                self._over.set()
        elif item.probe == self._name and item.generation == self._generation:
            metric = f"{item.side}.{item.metric}"
            if has_moved(item, self._before.get(metric)):
                self._moved |= {metric, item.metric}

    def cancel(self) -> None:
        """Decide nothing any more."""
        self._cancelled = True
        self._over.set()

    def _run(self) -> None:
        self._over.wait(self._health.seconds)
        if not self._cancelled:
            self._decide(self._verdict())

    def _verdict(self) -> str:
        if self._trouble:
            return self._trouble
        arrived = sum(
            max(0, interface.packets() - before)
            for interface, before in zip(self._interfaces, self._packets, strict=True)
        )
        still = [name for name in self._health.metrics if name not in self._moved]
        if not arrived or not (still if self._health.metrics else not self._moved):
            return ""
        what = ", ".join(still) or "no metric"
        return f"{what} did not move in {self._health.seconds:g} s, and {arrived} packets passed"


def has_moved(snapshot: Snapshot, before: Array | None) -> bool:
    """Whether a table shows that something was counted since `before`, or since it was empty."""
    rows = snapshot.rows
    if before is not None:
        return rows.tobytes() != before.tobytes()
    kind = snapshot.schema.kind if snapshot.schema else None
    if kind in _COUNTED_BY_PLACE:
        return bool(np.ascontiguousarray(rows["value"]).view("u1").any())
    return len(rows) > 0
