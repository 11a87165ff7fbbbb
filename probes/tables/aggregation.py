"""Rows of a table from the entries of a map, and sums over CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from bpf.maps.layout import Array
from bpf.maps.map import Entries, reduce_cpus

_AGGREGATES = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum}


def rows_of(entries: Entries, agg: str) -> Array:
    """Return the rows of a table: keys and values, aggregated over the CPUs by `agg`."""
    values = aggregate(entries.values, agg) if agg else entries.values
    rows = np.empty(len(entries), _row(entries.keys.dtype, values.dtype, values.shape[1:]))
    rows["key"] = entries.keys
    rows["value"] = values
    return rows


def aggregate(values: Array, agg: str) -> Array:
    """Aggregate per-CPU values, shape (n, CPUs), to one value an entry (S1.11).

    A sum has 64 bits, because it may overflow the type of its parts; a mean is a float.
    """
    wide = values.astype(_widened(values.dtype, agg)) if agg in ("sum", "avg") else values
    reduced = reduce_cpus(wide, _AGGREGATES[agg])
    return _divided(reduced, values.shape[1]) if agg == "avg" else reduced


# Kept windows share a dtype: it takes more memory than a few rows.
@lru_cache(256)
def _row(key: np.dtype[Any], value: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype([("key", key), ("value", np.dtype((value, shape)))])


@lru_cache(256)
def _widened(dtype: np.dtype[Any], agg: str) -> np.dtype[Any]:
    if dtype.names is not None:
        fields: Mapping[str, Any] = dtype.fields or {}
        return np.dtype([(name, _widened(fields[name][0], agg)) for name in dtype.names])
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_widened(base, agg), shape))
    if agg == "avg" or dtype.kind == "f":
        return np.dtype("f8")
    return np.dtype("i8" if dtype.kind == "i" else "u8")


def _divided(values: Array, by: int) -> Array:
    if values.dtype.names is None:
        return values / by
    for name in values.dtype.names:
        values[name] = _divided(values[name], by)
    return values
