"""One export of a probe as one document: the answer of REST and of `probedeck probe export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.outputs.formats import FORMATS, ExportedGroup, ExportedTable, Format
from app.outputs.view import MetricOutput, iso
from app.outputs.views import built_in
from probes.snapshot import Loss, LossReason, Snapshot, add_losses
from probes.tables.conversion import objects


def document(snapshots: Sequence[Snapshot], format_name: str) -> bytes:
    """The tables of one window of one probe, as ControlPlane.export() returns them.

    `json` and `xml` are one object: the window, the losses, and the rows by direction and metric.
    `jsonl` and `csv` are as in files, with an empty line between tables of `csv`. Built-in probes
    have no metrics: their rows are `flows`, `hops` and `paths`.
    """
    written = FORMATS[format_name]
    if written.document is None:
        separator = b"" if written.nested else b"\n"
        return separator.join(_table(item, written) for item in snapshots)
    return written.document(_window(snapshots), _groups(snapshots))


def _window(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    if not snapshots:
        return {}
    item = snapshots[0]
    times = {"start": iso(item.start_utc_ns), "end": iso(item.end_utc_ns)}
    return {name: getattr(item, name) for name in ("probe", "window", "generation")} | times


def _groups(snapshots: Sequence[Snapshot]) -> dict[str, ExportedGroup]:
    members: dict[str, list[Snapshot]] = {}
    for item in snapshots:
        members.setdefault(item.side if item.is_metric else built_in(item).name, []).append(item)
    return {
        name: ExportedGroup(
            items[0].interface,
            _losses(items),
            {item.metric if item.is_metric else "": _exported(item) for item in items},
        )
        for name, items in members.items()
    }


def _losses(items: Sequence[Snapshot]) -> dict[str, dict[str, int]]:
    total: dict[LossReason, Loss] = {}
    for item in items:
        add_losses(total, item.losses)
    return {
        reason.column: {"packets": loss.packets, "bytes": loss.bytes}
        for reason, loss in sorted(total.items())
    }


def _exported(item: Snapshot) -> ExportedTable:
    if item.schema is None:
        return ExportedTable({}, list(built_in(item).records(item, nested=True)))
    about = {"name": item.metric, "kind": item.schema.kind, "help": item.schema.help}
    return ExportedTable(about, list(objects(item.schema, item.rows, item.utc_ns(0))))


def _table(item: Snapshot, written: Format) -> bytes:
    table = MetricOutput(item) if item.is_metric else built_in(item)
    return written.table(table.schema, table.header, table.records(item, nested=written.nested))
