"""When a new generation is taken for no good."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.errors import UsageError
from probes.config.model import ProbeConfig, parse
from probes.control.health import HealthWatch, has_moved
from probes.snapshot import Event, Snapshot
from probes.tables.conversion import TableKind, TableSchema

pytestmark = pytest.mark.timing

ROW = np.dtype([("key", "u4"), ("value", "u8")])


def rows(*values: int) -> Array:
    return np.array(list(enumerate(values)), ROW)


def snapshot(
    values: Array,
    *,
    kind: TableKind = TableKind.HASH,
    generation: int = 2,
    side: str = "ingress",
    metric: str = "packets",
    probe: str = "probe",
) -> Snapshot:
    return Snapshot(
        probe, "lo", 1, generation, 0, 1, 1, values, {}, 0.0, 0, 0, side, metric, TableSchema(kind)
    )


@pytest.mark.parametrize(
    ("kind", "values", "before", "moved"),
    [
        (TableKind.HASH, rows(), None, False),
        (TableKind.HASH, rows(0), None, True),
        (TableKind.QUEUE, rows(0), None, True),
        (TableKind.ARRAY, rows(0, 0), None, False),
        (TableKind.ARRAY, rows(0, 1), None, True),
        (TableKind.HISTOGRAM, rows(0, 0), None, False),
        (TableKind.HISTOGRAM, rows(0, 1 << 63), None, True),
        # Entries of a kept map are no movement.
        (TableKind.HASH, rows(5), rows(5), False),
        (TableKind.HASH, rows(6), rows(5), True),
        (TableKind.ARRAY, rows(5, 1), rows(5, 0), True),
        (TableKind.HASH, rows(), rows(5), True),
    ],
)
def test_a_table_has_moved_where_something_was_counted(
    kind: TableKind, values: Array, before: Array | None, moved: bool
) -> None:
    assert has_moved(snapshot(values, kind=kind), before) is moved


@dataclass
class FakeInterface:
    """So many packets received and sent."""

    counts: list[int] = field(default_factory=lambda: [1000, 500])

    def packets(self) -> tuple[int, int]:
        return self.counts[0], self.counts[1]


def config(*metrics: str, seconds: float = 0.1, **more: Any) -> ProbeConfig:
    direction = {
        "interface": "lo",
        "source": "-",
        "metrics": [{"name": name, "map": name} for name in ("packets", "sizes")],
    }
    health = {"seconds": seconds, "metrics": metrics}
    return parse({"name": "probe", "ingress": direction, "health": health, **more}, "test")


class Watched:
    """A watch on fakes, and its verdict."""

    def __init__(
        self,
        configured: ProbeConfig,
        before: Mapping[str, Array] | None = None,
        side: Any = "ingress",
    ) -> None:
        self.interface = FakeInterface()
        self.decided: list[str] = []
        self.exports = 0
        self.at_export: Snapshot | None = None
        self._over = threading.Event()
        watched: Any = [(self.interface, side)]
        self.watch = HealthWatch(configured, 2, watched, before or {}, self._export, self._decide)
        self.watch.start()

    def _export(self) -> None:
        self.exports += 1
        if self.at_export:
            self.watch.take(self.at_export)

    def _decide(self, trouble: str) -> None:
        self.decided.append(trouble)
        self._over.set()

    def verdict(self, *, received: int = 7, sent: int = 0) -> str:
        """After those packets."""
        self.interface.counts[0] += received
        self.interface.counts[1] += sent
        assert self._over.wait(3)
        (trouble,) = self.decided
        return trouble


def test_only_packets_of_the_watched_direction_count() -> None:
    assert Watched(config()).verdict(received=0, sent=9) == ""
    watched = Watched(config(), side="egress")
    assert watched.verdict(received=9) == ""
    watched = Watched(config(), side="egress")
    assert watched.verdict(received=9, sent=4) == "no metric moved in 0.1 s, and 4 packets passed"


def test_what_others_publish_is_no_sign_of_life() -> None:
    watched = Watched(config())
    watched.watch.take(snapshot(rows(1), generation=1))
    watched.watch.take(snapshot(rows(1), probe="other"))
    watched.watch.take(Event.now("error", "other", "oh"))
    watched.watch.take(Event.now("warning", "probe", "full"))
    assert watched.verdict() == "no metric moved in 0.1 s, and 7 packets passed"


def test_a_window_that_has_not_ended_is_ended_to_see() -> None:
    """The interval may be longer than the watch, or there is none (S1.22: only when asked for)."""
    watched = Watched(config())
    watched.at_export = snapshot(rows(1))
    assert watched.verdict() == ""
    assert watched.exports == 1
    watched = Watched(config())
    watched.watch.take(snapshot(rows(1)))
    assert watched.verdict() == ""
    assert watched.exports == 0, "a healthy probe gets no export"


def test_a_probe_that_exports_nothing_cannot_be_seen_to_stand_still() -> None:
    silent = {"interface": "lo", "source": "-", "metrics": []}
    assert Watched(config(ingress=silent)).verdict() == ""


def test_a_probe_that_is_removed_meanwhile_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(config())

    def gone() -> None:
        watched.watch.cancel()
        raise UsageError("probe probe was removed meanwhile")

    monkeypatch.setattr(watched.watch, "_export", gone)
    watched.watch._thread.join(3)
    assert not watched.watch._thread.is_alive()
    assert not watched.decided
