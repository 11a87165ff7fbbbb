"""Recordings, made as a run makes them but without a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.recording.export import RecordedItems
from app.recording.reader import Recording
from app.recording.recorder import RunRecorder
from bpf.arrays import Array
from probes.control_plane import ControlPlane
from probes.path.options import PathOptions
from probes.reports import OutputConfig
from probes.snapshot import Event, Item, Snapshot
from tests.support.console.feed import FakeController, Flows, window

BEGIN_NS = 1_767_225_600 * 10**9
"""2026-01-01T00:00:00Z, the end of the window before the first."""


class Plane(FakeController):
    """A controller whose state can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.unwritten: Mapping[str, int] = {}
        self.path_options = PathOptions()


def recorder(
    directory: Path, keep: str = "24h,5GB", plane: Plane | None = None,
    ledger: Ledger | None = None, *, is_open: bool = True,
) -> RunRecorder:  # fmt: skip
    """Return a recorder; its name is `late`."""
    config = parse(OutputConfig(f"record:{directory}?keep={keep}", "late"))
    of = cast(ControlPlane, plane or Plane())
    made = make(ExportHost(config, of, ledger or Ledger(), lambda *_: None))
    if is_open:
        made.open()
    return cast(RunRecorder, made)


def windows(count: int, flows: int = 100, first: int = 1) -> list[Snapshot]:
    """Windows of one second; some flows leave and come, and the order of the rows changes."""
    made, random = Flows(2 * flows), np.random.default_rng(first)
    found = []
    for number in range(first, first + count):
        rows: Array = made.next(number * 10**9)
        there = np.sort(random.choice(2 * flows, flows, replace=False))
        if number % 7 == 0:
            random.shuffle(there)
        item = window(rows[there], number, end_ns=number * 10**9)
        found.append(replace(item, end_utc_ns=BEGIN_NS + number * 10**9))
    return found


def event(second: int, text: str = "a test") -> Event:
    return Event(BEGIN_NS + second * 10**9, "warning", "test", text, "it", "begin", 2.0, "rows")


def record(directory: Path, items: Sequence[Item]) -> None:
    """Record items by one run."""
    made = recorder(directory)
    for item in items:
        made.deliver(item, 0)
    made.tick()
    made.close()


def read(directory: Path, stream: str = "full") -> list[Item]:
    with Recording(str(directory), stream) as recording:
        found = [*RecordedItems(recording, 0, 1 << 62)]
        assert not [*recording.faults()]
    return found


def same(one: Item, other: Item) -> bool:
    """Whether two items are equal to the byte."""
    if isinstance(one, Event) or isinstance(other, Event):
        return one == other
    fields = {name for name in Snapshot.__slots__ if name != "rows"}
    return (
        all(getattr(one, name) == getattr(other, name) for name in fields)
        and one.rows.dtype == other.rows.dtype
        and one.rows.tobytes() == other.rows.tobytes()
    )
