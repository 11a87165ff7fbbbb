"""One export of a probe as one text, in any format: what REST and `probedeck probe export` give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.outputs.encoders import FORMATS, XML_START, to_json, to_xml, xml_attribute
from app.outputs.metrics import MetricTable, objects_of
from app.outputs.view import OutputView, iso
from app.outputs.views import built_in
from probes.snapshot import Losses, Snapshot, add_losses


def document(snapshots: Sequence[Snapshot], format_name: str) -> str:
    """The tables of one window of one probe, as ControlPlane.export() gives them.

    - `json`: an object: `probe`, `window`, `generation`, `start` and `end` (UTC); under `ingress`
      and `egress` the rows of each metric, by its name; `interfaces` and `losses` by direction.
    - `xml`: the same, as elements.
    - `jsonl`: a line a row, each with its metric and window, as in files.
    - `csv`: the same, flat; a table a metric, with its header, and an empty line between tables.

    Built-in probes have no metrics: their rows are `flows`, `hops` and `paths`.
    """
    if format_name == "json":
        return f"{to_json(_whole(snapshots))}\n"
    if format_name == "xml":
        return _xml(snapshots)
    return _tables(snapshots, format_name)


def _whole(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    if not snapshots:
        return {}
    tables: dict[str, Any] = {}
    for item in snapshots:
        if item.is_metric:
            tables.setdefault(item.side, {})[item.metric] = list(objects_of(item))
        else:
            tables[_group(item)] = list(built_in(item).records(item, nested=True))
    return {
        **_window(snapshots[0]),
        "interfaces": {_group(item): item.interface for item in snapshots},
        "losses": _losses(snapshots),
        **tables,
    }


def _window(item: Snapshot) -> dict[str, Any]:
    return {
        "probe": item.probe,
        "window": item.window,
        "generation": item.generation,
        "start": iso(item.start_utc_ns),
        "end": iso(item.end_utc_ns),
    }


def _group(item: Snapshot) -> str:
    return item.side if item.is_metric else built_in(item).name


def _losses(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Packets and bytes by direction and reason; directions without losses are left out."""
    found: dict[str, dict[Any, Any]] = {}
    for item in snapshots:
        if item.losses:
            add_losses(found.setdefault(_group(item), {}), item.losses)
    return {group: _named(losses) for group, losses in found.items()}


def _named(losses: Losses) -> dict[str, dict[str, int]]:
    return {
        reason.column: {"packets": loss.packets, "bytes": loss.bytes}
        for reason, loss in sorted(losses.items())
    }


def _xml(snapshots: Sequence[Snapshot]) -> str:
    parts = [XML_START, "<export"]
    parts += (
        f" {k}={xml_attribute(v)}" for item in snapshots[:1] for k, v in _window(item).items()
    )
    parts.append(">\n")
    groups = dict.fromkeys(_group(item) for item in snapshots)
    losses = _losses(snapshots)
    for group in groups:
        members = [item for item in snapshots if _group(item) == group]
        parts.append(f"<{group} interface={xml_attribute(members[0].interface)}>\n")
        for reason, loss in losses.get(group, {}).items():
            counts = "".join(f" {name}={xml_attribute(n)}" for name, n in loss.items())
            parts.append(f"<loss reason={xml_attribute(reason)}{counts}/>\n")
        for item in members:
            parts += _xml_table(item)
        parts.append(f"</{group}>\n")
    parts.append("</export>\n")
    return "".join(parts)


def _xml_table(item: Snapshot) -> Iterator[str]:
    if item.schema is None:
        yield from (f"{to_xml('row', row)}\n" for row in built_in(item).records(item, nested=True))
        return
    about = {"name": item.metric, "kind": item.schema.kind, "help": item.schema.help}
    yield "<metric" + "".join(f" {k}={xml_attribute(v)}" for k, v in about.items()) + ">\n"
    yield from (f"{to_xml('row', row)}\n" for row in objects_of(item))
    yield "</metric>\n"


def _tables(snapshots: Sequence[Snapshot], format_name: str) -> str:
    """Tables one after the other, each as in its file."""
    encoder = FORMATS[format_name]
    texts = []
    for item in snapshots:
        table: OutputView | MetricTable
        if item.is_metric:
            table = MetricTable(item)
            records = table.records(nested=encoder.nested)
        else:
            table = built_in(item)
            records = table.records(item, nested=encoder.nested)
        text = encoder.begin(table.schema, table.header) + encoder.encode(records)
        texts.append(text.decode())
    return ("" if encoder.nested else "\n").join(texts)
