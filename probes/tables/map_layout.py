"""Rows of a table from the entries of a map, sums over CPUs, and types of columns for formats that
have types. Two declarations of a map are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np

from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.maps.layout import CType, Member
from bpf.maps.map import Entries, reduce_cpus


def difference(old: CompiledMap, new: CompiledMap) -> str:
    """Return why `new` can't replace `old`; empty if it can."""
    was, now = old.spec, new.spec
    for what, before, after in (
        ("kind", was.type.name.lower(), now.type.name.lower()),
        ("key bytes", was.key_size, now.key_size),
        ("value bytes", was.value_size, now.value_size),
        ("size", was.max_entries, now.max_entries),
        ("flags", int(was.flags), int(now.flags)),
    ):
        if before != after:
            return f"{what} {after}, was {before}"
    for what, one, other in (
        ("key", old.key_type, new.key_type),
        ("value", old.value_type, new.value_type),
    ):
        if not _same(one, other):
            return f"{what} {_names(other)}, was {_names(one)}"
    if any(new.contents) and new.contents != old.contents:
        return "other first values"
    return ""


def _same(one: CType | None, other: CType | None) -> bool:
    """Return whether two types have the same fields and offsets; typedefs may differ."""
    if one is None or other is None:
        return one is other
    return (
        one.dtype == other.dtype
        and [m.bits for m in one.members.values()] == [m.bits for m in other.members.values()]
        and all(_same(m.type, other.members[name].type) for name, m in one.members.items())
        and _same(one.element, other.element)
    )


def _names(type_: CType | None) -> str:
    """Return such as `{packets uint64, bytes uint64, flag uint8:1}`."""
    if type_ is None or not type_.members:
        return str(type_ and type_.dtype)
    return "{" + ", ".join(_field(name, m) for name, m in type_.members.items()) + "}"


def _field(name: str, member: Member) -> str:
    return f"{name} {_names(member.type)}" + (f":{member.bits[1]}" if member.bits else "")


_AGGREGATES = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum}


def rows_of(entries: Entries, agg: str) -> Array:
    """Return the rows of a table: keys and values, aggregated over the CPUs by `agg`."""
    values = aggregate(entries.values, agg) if agg else entries.values
    keys = entries.keys
    types = (keys.dtype, keys.shape[1:]), (values.dtype, values.shape[1:])
    rows = np.empty(len(entries), _row(*types))
    rows["key"] = keys
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
def _row(*types: tuple[np.dtype[Any], tuple[int, ...]]) -> np.dtype[Any]:
    return np.dtype([("key", np.dtype(types[0])), ("value", np.dtype(types[1]))])


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


class ColumnType(StrEnum):
    """Type of a column's values in formats that have types, by its name in SQL."""

    INTEGER = "BIGINT"
    UNSIGNED = "UBIGINT"
    """For numbers of 64 bits without a sign."""
    FLOAT = "DOUBLE"
    TEXT = "VARCHAR"
    TRUTH = "BOOLEAN"
    TIME = "TIMESTAMP"
    """UTC."""


_NUMBERS = {
    "i": ColumnType.INTEGER, "u": ColumnType.UNSIGNED, "f": ColumnType.FLOAT, "b": ColumnType.TRUTH,
}  # fmt: skip
"""Types by the kind of a dtype."""


def plain_type(dtype: np.dtype[np.generic]) -> ColumnType:
    """Return the type of numbers as C has them; integers of 128 bits are texts."""
    return _NUMBERS.get(dtype.kind, ColumnType.TEXT)


def fitting(wanted: ColumnType, dtype: np.dtype[np.generic]) -> ColumnType:
    """Return a type that holds the numbers of a dtype."""
    is_integer = wanted in (ColumnType.INTEGER, ColumnType.UNSIGNED)
    return ColumnType.TEXT if is_integer and dtype.kind == "V" else wanted
