"""Outputs to files, made as a run makes them, and one item of every table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from app.exporters.files.exporter import FileExporter
from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.outputs.view import OwnedFlows
from probes.flow.interfaces import totals
from probes.flow.kinds import INTERFACES, REPEATED
from probes.monitor.state import PolicyState
from probes.path.records import PathRowKind, ProbeOutcome
from probes.reports import OutputConfig
from probes.snapshot import Event, Item, Snapshot
from tests.app.outputs.test_owner_tables import answers, flows
from tests.support import monitors, paths

HOUR_NS = 3600 * 10**9
START_UTC_NS = 1_767_225_600 * 10**9
"""2026-01-01T00:00:00Z."""


class Lost(list[tuple[int, str]]):
    """Rows that an output took back."""

    def __call__(self, rows: int, reason: str) -> None:
        self.append((rows, reason))


def output(url: str, events: list[Item] | None = None) -> tuple[FileExporter, Lost]:
    """Return an opened output, and what it takes back. `events` gets what it publishes."""
    lost = Lost()
    plane = SimpleNamespace(publish=(events if events is not None else []).append)
    config = parse(OutputConfig(url))
    made = make(ExportHost(config, cast(Any, plane), cast(Any, None), lost))
    exporter = cast(FileExporter, made)
    exporter.open()
    return exporter, lost


def at(item: Snapshot, utc_ns: int) -> Snapshot:
    """Return a snapshot whose window starts at a time."""
    return replace(item, end_utc_ns=utc_ns + (item.end_ns - item.start_ns))


def everything() -> Sequence[Item]:
    """Items that add rows to every table."""
    owned = flows(1)
    tables = list(answers(1))
    return (
        at(OwnedFlows.of(owned, {item.metric: item for item in tables}), START_UTC_NS),
        *(at(item, START_UTC_NS) for item in tables),
        replace(owned, metric=REPEATED),
        replace(owned, metric=INTERFACES, rows=totals(owned.rows, owned.rows)),
        monitors.metrics(),
        monitors.triggers(PolicyState.ACTIVE, PolicyState.COOLDOWN),
        monitors.policies(PolicyState.ARMED, PolicyState.ACTIVE),
        paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED),
        paths.told(*PathRowKind),
        paths.traces("192.0.2.2"),
        Event(START_UTC_NS, "warning", "disk", "full", "d", "begin", 2.0, "rows"),
    )
