"""What a configuration says of its maps, held against the maps that its source declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bpf.compiler import CompiledMap
from bpf.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from probes.config import Expire, Metric, ProbeConfig, Side


def check_metrics(config: ProbeConfig, side: Side, maps: Mapping[str, CompiledMap]) -> None:
    """Raise UsageError, naming the key, for the first metric of a direction that `maps` can't give.

    `maps` are those that the direction's source declares, by name.
    """
    direction = getattr(config, side)
    for number, metric in enumerate(direction.metrics):
        for key, text, hint in _findings(metric, maps):
            where = f"{config.origin}: {side}.metrics[{number}].{key}"
            raise UsageError(f"{where}: {text}", hint=hint)


def _findings(metric: Metric, maps: Mapping[str, CompiledMap]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a metric: the key in it, what, and a hint."""
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
        yield "map", f"{name} cannot be read: {found.unreadable}", "use types of fixed size"
        return
    if metric.agg:
        yield from _aggregation_findings(metric, found, kind)
    if metric.expire:
        yield from _expiry_findings(metric.expire, found, kind)
    known = _dtypes(found)
    for path in metric.types:
        if path not in known:
            yield f"types.{path}", f"{name} has no such field", did_you_mean(path, sorted(known))


def _aggregation_findings(
    metric: Metric, found: CompiledMap, kind: str
) -> Iterator[tuple[str, str, str]]:
    name = metric.map
    if not found.spec.percpu:
        hint = "leave agg out, or declare a per-CPU map (BPF_PERCPU_HASH, BPF_PERCPU_ARRAY)"
        yield "agg", f"{name} is a {kind}: it has one value an entry, not one for each CPU", hint
    elif found.value is not None and (why := _no_number(found.value, "value")):
        yield "agg", f"{name} has no {metric.agg}: {why}", "leave agg out: one value for each CPU"


def _expiry_findings(
    expire: Expire, found: CompiledMap, kind: str
) -> Iterator[tuple[str, str, str]]:
    name, path = found.spec.name, expire.field
    if not found.spec.kind.expires:
        hint = "leave expire out, or declare a BPF_HASH"
        yield "expire", f"{name} is a {kind}: only entries of a hash can be swept", hint
        return
    dtypes = _dtypes(found)
    times = sorted(path for path, dtype in dtypes.items() if dtype == np.dtype("u8"))
    if path not in dtypes:
        yield "expire.field", f"{name} has no field {path!r}", did_you_mean(path, times)
    elif path not in times:
        hint = "a time is one, nanoseconds of CLOCK_MONOTONIC"
        yield "expire.field", f"{path} of {name} is no u64", hint


def _no_number(dtype: np.dtype[Any], path: str) -> str:
    """Why values can't be added up or compared field by field; empty where they can."""
    if dtype.subdtype is not None:
        base = dtype.subdtype[0]
        return f"{path} is a text" if base == np.dtype("i1") else _no_number(base, path)
    if dtype.names is None:
        return "" if dtype.kind in "iuf" else f"{path} is no number"
    end = 0
    for name, (field, offset, *_) in sorted(_fields(dtype).items(), key=lambda item: item[1][1]):
        if offset < end:
            return f"{path}.{name} overlaps the field before (a union, or bit fields)"
        if why := _no_number(field, f"{path}.{name}"):
            return why
        end = offset + field.itemsize
    return ""


def _dtypes(found: CompiledMap) -> dict[str, np.dtype[Any]]:
    """What is where in a map's entries, by path."""
    return {**dict(_paths(found.key, "key")), **dict(_paths(found.value, "value"))}


def _paths(dtype: np.dtype[Any] | None, path: str) -> Iterator[tuple[str, np.dtype[Any]]]:
    """The paths of a type and of everything in it, each with what is there."""
    if dtype is None:
        return
    yield path, dtype
    for name, (field, *_) in _fields(dtype.base).items():
        yield from _paths(field, f"{path}.{name}")


def _fields(dtype: np.dtype[Any]) -> Mapping[str, tuple[Any, ...]]:
    return dtype.fields or {}
