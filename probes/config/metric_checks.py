"""Checks of a configuration's metrics against the maps of the compiled source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bpf.compiler import CompiledMap
from bpf.errors import UsageError, did_you_mean
from bpf.maps.ctype import CType, Member
from probes.config.map_config import Expire, Metric
from probes.config.model import ProbeConfig, Side
from probes.tables.conversion import type_findings


def check_metrics(config: ProbeConfig, side: Side, maps: Mapping[str, CompiledMap]) -> None:
    """Raise UsageError, which names the key, for the first impossible metric of a direction.

    `maps` are those that the direction's source declares, by name.
    """
    direction = getattr(config, side)
    for number, metric in enumerate(direction.metrics):
        for key, text, hint in _findings(metric, maps):
            where = f"{config.origin}: {side}.metrics[{number}].{key}"
            raise UsageError(f"{where}: {text}", hint=hint)


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
        hint = "export a hash, an array, a trie, a queue or a stack"
        yield "map", f"{name} is a {kind}, whose contents mean nothing outside", hint
        return
    if found.unreadable:
        yield (
            "map",
            f"{name} cannot be read: {found.unreadable}",
            "use integers, arrays and structs",
        )
        return
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
    fields = {**_fields(found.key_type, "key"), **_fields(found.value_type, "value")}
    times = sorted(path for path, member in fields.items() if _is_time(member))
    if path not in fields:
        yield "expire.field", f"{name} has no field {path!r}", did_you_mean(path, times)
    elif path not in times:
        hint = "a time is one, nanoseconds of CLOCK_MONOTONIC"
        yield "expire.field", f"{path} of {name} is no u64", hint


def _is_time(member: Member) -> bool:
    return member.bits is None and member.type.dtype == np.dtype("u8")


def _fields(type_: CType | None, path: str) -> dict[str, Member]:
    """Return the members of a type by path, with the type itself; array elements have no path."""
    if type_ is None:
        return {}
    return {path: Member(type_, 0), **dict(_members(type_, path))}


def _members(type_: CType, path: str) -> Iterator[tuple[str, Member]]:
    for name, member in type_.members.items():
        yield f"{path}.{name}", member
        yield from _members(member.type, f"{path}.{name}")


def _no_number(type_: CType, path: str) -> str:
    """Return why values can't be aggregated field by field; empty if they can."""
    if type_.element is not None:
        if type_.element.dtype == np.dtype("i1"):
            return f"{path} is a text"
        return _no_number(type_.element, path)
    if type_.dtype.names is None:
        return "" if type_.dtype.kind in "iuf" else f"{path} is no number"
    end = 0
    for name, member in sorted(type_.members.items(), key=lambda item: item[1].offset):
        if member.bits is not None:
            return f"{path}.{name} is a bit field"
        if member.offset < end:
            return f"{path}.{name} overlaps the field before (a union)"
        if why := _no_number(member.type, f"{path}.{name}"):
            return why
        end = member.offset + member.dtype.itemsize
    return ""
