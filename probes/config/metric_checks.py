"""Checks of a configuration's metrics against the maps of the compiled source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bpf.compiler import CompiledMap
from bpf.errors import UsageError, did_you_mean
from bpf.maps.layout import CType, Member
from probes.config.map_config import Expire, Metric
from probes.config.model import ProbeConfig, Side
from probes.tables.conversion import type_findings


def check_metrics(config: ProbeConfig, side: Side, maps: Mapping[str, CompiledMap]) -> None:
    """Raise UsageError, which names the key, for the first impossible metric of a direction.

    `maps` are those that the direction's source declares, by name.
    """
    direction = getattr(config, side)
    of_section: dict[str, Metric] = {}
    for number, metric in enumerate(direction.metrics):
        for key, text, hint in _findings(metric, maps):
            where = f"{config.origin}: {side}.metrics[{number}].{key}"
            raise UsageError(f"{where}: {text}", hint=hint)
        if section := maps[metric.map].section:
            first = of_section.setdefault(section, metric)
            if first.snapshot != metric.snapshot:
                where = f"{config.origin}: {side}.metrics[{number}].snapshot"
                raise UsageError(
                    f"{where}: {first.map}, in the same section {section}, has "
                    f"{str(first.snapshot).lower()}",
                    hint="variables of one section have it in common",
                )


def _findings(metric: Metric, maps: Mapping[str, CompiledMap]) -> Iterator[tuple[str, str, str]]:
    """Yield the key, text and hint of each mistake in a metric."""
    name = metric.map
    if name not in maps:
        exportable = [n for n, m in maps.items() if m.spec.kind.shape]
        hint = did_you_mean(name, sorted(exportable)) or "it declares none that can be exported"
        yield "map", f"the source declares no map {name!r}", hint
        return
    found = maps[name]
    kind = found.spec.kind.name
    if not found.spec.kind.shape:
        hint = "export a hash, an array, a trie, a queue, a stack or a ring"
        yield "map", f"{name} is a {kind}, whose contents mean nothing outside", hint
        return
    if found.unreadable:
        yield (
            "map",
            f"{name} cannot be read: {found.unreadable}",
            "use integers, arrays and structs",
        )
        return
    if found.spec.kind.records and not (found.value and found.value.itemsize):
        why = "is not known" if found.value is None else "has no bytes"
        yield "record", f"the type of the records of {name} {why}", "give it: struct event"
    elif metric.record and not found.spec.kind.records:
        yield "record", f"{name} is a {kind}, and only a ring needs it", "leave it out"
    if metric.agg:
        yield from _aggregation_findings(metric, found, kind)
    if metric.expire:
        yield from _expiry_findings(metric.expire, found, kind)
    for path, text, hint in type_findings(found, metric.types):
        yield f"types.{path}", text, hint


def _aggregation_findings(
    metric: Metric, found: CompiledMap, kind: str
) -> Iterator[tuple[str, str, str]]:
    name = metric.map
    if not found.spec.percpu:
        hint = "leave agg out, or declare a per-CPU map (BPF_PERCPU_HASH, BPF_PERCPU_ARRAY)"
        yield "agg", f"{name} is a {kind}: it has one value an entry, not one for each CPU", hint
    elif found.value_type is not None and (why := _no_number(found.value_type, "value")):
        yield "agg", f"{name} has no {metric.agg}: {why}", "leave agg out: one value for each CPU"


def _expiry_findings(
    expire: Expire, found: CompiledMap, kind: str
) -> Iterator[tuple[str, str, str]]:
    name, path = found.spec.name, expire.field
    if not found.spec.kind.expires:
        hint = "leave expire out, or declare a BPF_HASH"
        yield "expire", f"{name} is a {kind}: only entries of a hash can be swept", hint
        return
    types = (("key", found.key_type), ("value", found.value_type))
    fields = dict(
        each for part, type_ in types if type_ for each in _fields(Member(type_, 0), part)
    )
    u64 = np.dtype("u8")
    times = sorted(p for p, m in fields.items() if m.bits is None and m.type.dtype == u64)
    if path not in fields:
        yield "expire.field", f"{name} has no field {path!r}", did_you_mean(path, times)
    elif path not in times:
        yield (
            "expire.field",
            f"{path} of {name} is no u64",
            "a time is one, nanoseconds of CLOCK_MONOTONIC",
        )


def _fields(member: Member, path: str) -> Iterator[tuple[str, Member]]:
    """Yield a field with its path, and the fields below it; array elements have no path."""
    yield path, member
    for name, each in member.type.members.items():
        yield from _fields(each, f"{path}.{name}")


def _no_number(type_: CType, path: str) -> str:
    """Return why values can't be aggregated field by field; empty if they can."""
    if type_.element is not None:
        if type_.element.dtype == np.dtype("i1"):
            return f"{path} is a text"
        return _no_number(type_.element, path)
    if type_.dtype.names is None:
        return "" if type_.dtype.kind in "iuf" else f"{path} is no number"
    end, before = 0, (0, np.dtype("V"))
    for name, member in sorted(type_.members.items(), key=lambda item: item[1].offset):
        if member.bits is not None:
            return f"{path}.{name} is a bit field"
        # Two names of one number are no obstacle.
        if member.offset < end and (member.offset, member.dtype) != before:
            return f"{path}.{name} overlaps the field before (a union)"
        if why := _no_number(member.type, f"{path}.{name}"):
            return why
        end, before = member.offset + member.dtype.itemsize, (member.offset, member.dtype)
    return ""
