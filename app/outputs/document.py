"""One export of a probe as one document: the answer of REST and of `probedeck probe export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.outputs.encoders import ExportedGroup, ExportedTable
from app.outputs.formats import FORMATS, Format
from app.outputs.metrics import MetricOutput, objects_of
from app.outputs.view import iso
from app.outputs.views import built_in
from probes.snapshot import Loss, LossReason, Snapshot, add_losses


def document(snapshots: Sequence[Snapshot], format_name: str) -> bytes:
    """The tables of one window of one probe, as ControlPlane.export() returns them.

    - `json`: an object: `probe`, `window`, `generation`, `start` and `end` (UTC); under `ingress`
      and `egress` the rows of each metric, by its name; `interfaces` and `losses` by direction.
    - `xml`: the same, as elements.
    - `jsonl`: a line a row, each with its metric and window, as in files.
    - `csv`: the same, flat; a table a metric, with its header, and an empty line between tables.

    Built-in probes have no metrics: their rows are `flows`, `hops` and `paths`.
    """
    written = FORMATS[format_name]
    if written.document is None:
        separator = b"" if written.nested else b"\n"
        return separator.join(_table(item, written) for item in snapshots)
    return written.document(_window(snapshots), _groups(snapshots))


def _window(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    return {
        key: value
        for item in snapshots[:1]
        for key, value in {
            "probe": item.probe,
            "window": item.window,
            "generation": item.generation,
            "start": iso(item.start_utc_ns),
            "end": iso(item.end_utc_ns),
        }.items()
    }


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
    return ExportedTable(about, list(objects_of(item)))


def _table(item: Snapshot, written: Format) -> bytes:
    """One table as in its file."""
    if item.is_metric:
        metric = MetricOutput(item)
        return written.table(metric.schema, metric.header, metric.records(nested=written.nested))
    view = built_in(item)
    return written.table(view.schema, view.header, view.records(item, nested=written.nested))
