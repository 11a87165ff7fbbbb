"""Tables of metrics: the schema of a map's keys and values, and their conversion (S1.10).

A table has two forms: flat rows with one scalar a column (`key.saddr`, `value.first[2]`), and
nested objects. A per-CPU value without aggregation is a row for each CPU, or a list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.errors import UsageError, did_you_mean
from bpf.maps.kinds import Shape
from probes.tables.field_types import (
    FIELD_TYPES,
    PLAIN,
    SLOT,
    SLOT_TYPES,
    TIME,
    is_number,
    packed,
    unsigned,
)
from probes.tables.map_layout import ColumnType, fitting, plain_type
from probes.tables.value_decoding import Meaning

_SECOND = 1_000_000_000


def iso_all(utc_ns: NDArray[Any]) -> list[str]:
    """Return UTC nanoseconds (n,) i8 as ISO 8601, `2026-01-31T12:00:00.123456789Z`."""
    # Times repeat, as their clock has few steps: format each time once, and each second once.
    moments, at = np.unique(utc_ns, return_inverse=True)
    seconds, second_at = np.unique(moments // _SECOND, return_inverse=True)
    heads = np.datetime_as_string(seconds.astype("M8[s]")).tolist()
    texts = [
        f"{heads[head]}.{fraction:09}Z"
        for head, fraction in zip(second_at.tolist(), (moments % _SECOND).tolist(), strict=True)
    ]
    return [texts[number] for number in at.tolist()]


DType = np.dtype[Any]
_Convert = Callable[[Array], list[Any]]
_PART = 8192
"""Rows in one conversion to Python's values."""


class TableKind(StrEnum):
    """Kinds of tables."""

    HASH = "hash"
    ARRAY = "array"
    LPM = "lpm"
    """Keys are prefixes."""
    QUEUE = "queue"
    STACK = "stack"
    HISTOGRAM = "histogram"
    """BPF_HISTOGRAM: keys are slots, or end with one."""


_NUMBERED = {TableKind.ARRAY: "index", TableKind.QUEUE: "position", TableKind.STACK: "position"}
"""Names of keys that are numbers of entries."""


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Schema of a metric's rows. Their dtype is `[("key", K), ("value", V)]`, or with a value for
    each CPU `[("key", K), ("value", V, (CPUs,))]`."""

    kind: TableKind
    help: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Types of fields by path, names of FIELD_TYPES: `{"key.saddr": "ipv4"}`. A histogram's `slot`
    may be `linear`. The path of an array's elements is `value.first[]`."""
    names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Names of enumerators by number, by path."""
    bits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Shift and width of bit fields by path, in a number or in bytes (V3)."""
    adds_up: bool = False
    """Whether the numbers of different windows may be added: each read empties the map."""


def schema_of(
    found: CompiledMap,
    types: Mapping[str, str] | None = None,
    help: str = "",  # noqa: A002 - the field's name
) -> TableSchema:
    """Return the schema of a map's entries.

    `types` are types of fields by path; they override any guess. Raises UsageError for the first
    of `type_findings`.
    """
    for path, text, hint in type_findings(found, types or {}):
        raise UsageError(f"map {found.spec.name}: types: {path}: {text}", hint=hint)
    meaning = Meaning(found)
    fields, names = meaning.fields, meaning.names
    for path, type_ in (types or {}).items():
        if type_ == PLAIN and path in meaning.bits:
            continue
        # Drop the guesses for this field, its parts, and the fields that it is a part of.
        for each in list(fields):
            if _is_part(path, each) or _is_part(each, path):
                del fields[each]
        names.pop(path, None)
    fields |= {path: type_ for path, type_ in (types or {}).items() if type_ != PLAIN}
    return TableSchema(_kind(found), help, fields, names, meaning.bits)


def type_findings(found: CompiledMap, types: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield path, text and hint of each mistake in `types`."""
    dtypes = Meaning(found).dtypes
    histogram = _kind(found) == TableKind.HISTOGRAM
    paths = [*dtypes, SLOT] if histogram else list(dtypes)
    for path, type_ in types.items():
        known = list(SLOT_TYPES) if histogram and path == SLOT else [*FIELD_TYPES, PLAIN]
        if path not in paths:
            yield path, f"{found.spec.name} has no such field", did_you_mean(path, paths)
        elif type_ not in known:
            yield path, f"no type {type_!r}", did_you_mean(type_, known)
        elif path in dtypes and type_ != PLAIN and not FIELD_TYPES[type_].takes(dtypes[path]):
            needs = FIELD_TYPES[type_].needs
            yield (
                path,
                f"can't be {type_}: that takes {needs}",
                f"it has {dtypes[path].itemsize} bytes",
            )


def _kind(found: CompiledMap) -> TableKind:
    shape = found.spec.kind.shape or Shape.HASH
    if found.histogram and (shape == Shape.ARRAY or _has_slot(found.key)):
        return TableKind.HISTOGRAM
    return TableKind(shape)


def _has_slot(key: DType | None) -> bool:
    return key is not None and is_number(key[key.names[-1]] if key.names else key)


def _is_part(path: str, of: str) -> bool:
    return path == of or path.startswith((f"{of}.", f"{of}["))


def columns(schema: TableSchema, dtype: DType) -> tuple[str, ...]:
    """Return the columns of `flat_rows` for rows of a dtype."""
    return _Table(schema, dtype).columns


def column_types(schema: TableSchema, dtype: DType) -> tuple[ColumnType, ...]:
    """Return the types of these columns. Integers of 128 bits, and enumerators, are texts."""
    return _Table(schema, dtype).types


def flat_rows(schema: TableSchema, rows: Array, utc_ns: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield rows with one scalar a column, without the empty slots at the end of a histogram.

    `utc_ns` is UTC when CLOCK_MONOTONIC was 0.
    """
    return _Table(schema, rows.dtype, utc_ns).flat(rows)


def objects(schema: TableSchema, rows: Array, utc_ns: int = 0) -> Iterator[dict[str, Any]]:
    """Yield each entry as nested dicts and lists of numbers, texts and booleans.

    `key` and `value`; `index` in place of `key` for an array, `position` for a queue and a stack;
    `slot`, `low`, `high` and `count` for a histogram.
    """
    return _Table(schema, rows.dtype, utc_ns).objects(rows)


@dataclass(slots=True)
class _Scalar:
    """A field with one value."""

    convert: _Convert
    type: ColumnType
    cut: _Cut | None = None

    def columns(self, path: str) -> list[str]:
        return [path]

    def types(self) -> list[ColumnType]:
        return [self.type]

    def flat(self, array: Array) -> list[list[Any]]:
        return [self.objects(array)]

    def objects(self, array: Array) -> list[Any]:
        return self.convert(self.cut(array) if self.cut else array)


@dataclass(slots=True)
class _Record:
    """A struct or union, by its members."""

    members: Mapping[str, _Node]

    def columns(self, path: str) -> list[str]:
        return [c for name, node in self.members.items() for c in node.columns(f"{path}.{name}")]

    def types(self) -> list[ColumnType]:
        return [each for node in self.members.values() for each in node.types()]

    def flat(self, array: Array) -> list[list[Any]]:
        return [column for name, node in self.members.items() for column in node.flat(array[name])]

    def objects(self, array: Array) -> list[Any]:
        values = [node.objects(array[name]) for name, node in self.members.items()]
        return [dict(zip(self.members, each, strict=True)) for each in zip(*values, strict=True)]


@dataclass(slots=True)
class _Items:
    """An array; its elements lie along the second dimension."""

    element: _Node
    count: int

    def columns(self, path: str) -> list[str]:
        return [c for i in range(self.count) for c in self.element.columns(f"{path}[{i}]")]

    def types(self) -> list[ColumnType]:
        return self.element.types() * self.count

    def flat(self, array: Array) -> list[list[Any]]:
        return [column for i in range(self.count) for column in self.element.flat(array[:, i])]

    def objects(self, array: Array) -> list[Any]:
        values = [self.element.objects(array[:, i]) for i in range(self.count)]
        return list(map(list, zip(*values, strict=True))) if values else [[] for _ in array]


_Node = _Scalar | _Record | _Items
_KEY, _VALUE = itemgetter("key"), itemgetter("value")
_Columns = Sequence[tuple[str, _Node, Callable[[Array], Array]]]
"""Name, meaning, and where it is in rows."""


class _Table:
    """A schema with a layout: converts rows to Python's values."""

    def __init__(self, schema: TableSchema, dtype: DType, utc_ns: int = 0) -> None:
        self._schema = schema
        self._utc_ns = utc_ns
        key, value = dtype["key"], dtype["value"]
        if schema.kind == TableKind.HISTOGRAM:
            self._nested = self._flat = self._histogram(key, value)
            return
        name = _NUMBERED.get(schema.kind, "key")
        keys, values = self._node("key", key), self._node("value", value.base)
        if not value.shape:
            self._nested = self._flat = (name, keys, _KEY), ("value", values, _VALUE)
            return
        cpus = value.shape[0]
        self._nested = (name, keys, _KEY), ("value", _Items(values, cpus), _VALUE)
        self._flat = (
            (name, keys, lambda rows: np.repeat(rows["key"], cpus)),
            ("cpu", _INTEGER, lambda rows: np.tile(np.arange(cpus), len(rows))),
            ("value", values, lambda rows: rows["value"].reshape(-1)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for name, node, _ in self._flat for column in node.columns(name))

    @property
    def types(self) -> tuple[ColumnType, ...]:
        return tuple(each for _, node, _ in self._flat for each in node.types())

    def flat(self, rows: Array) -> Iterator[tuple[Any, ...]]:
        for part in self._parts(rows):
            columns_ = [column for _, node, at in self._flat for column in node.flat(at(part))]
            yield from zip(*columns_, strict=True)

    def objects(self, rows: Array) -> Iterator[dict[str, Any]]:
        names = [name for name, _, _ in self._nested]
        for part in self._parts(rows):
            values = [node.objects(at(part)) for _, node, at in self._nested]
            yield from (dict(zip(names, each, strict=True)) for each in zip(*values, strict=True))

    def _parts(self, rows: Array) -> Iterator[Array]:
        if self._schema.kind == TableKind.HISTOGRAM and rows.dtype["key"].names is None:
            rows = rows[np.argsort(rows["key"], kind="stable")]
            used = np.flatnonzero(rows["value"])
            rows = rows[: used[-1] + 1] if len(used) else rows[:0]
        return (rows[at : at + _PART] for at in range(0, len(rows), _PART))

    def _histogram(self, key: DType, value: DType) -> _Columns:
        linear = self._schema.fields.get(SLOT) == "linear"
        low, high = (_plain, _plain) if linear else (partial(_bounds, 0), partial(_bounds, 1))
        if key.names:
            *before, last = key.names
            bucket: _Columns = [("key", self._record("key", key, before), _KEY)] if before else []
            slot: Callable[[Array], Array] = lambda rows: rows["key"][last]  # noqa: E731
        else:
            bucket, slot = [], _KEY
        return (
            *bucket,
            (SLOT, _Scalar(_plain, ColumnType.UNSIGNED), slot),
            ("low", _Scalar(low, ColumnType.UNSIGNED), slot),
            ("high", _Scalar(high, ColumnType.UNSIGNED), slot),
            ("count", self._node("value", value), _VALUE),
        )

    def _node(self, path: str, dtype: DType) -> _Node:
        kind = self._schema.fields.get(path, "")
        place = self._schema.bits.get(path)
        cut = None
        if place and dtype.kind in "iuV":
            cut = _Cut(dtype, *place, kind == "signed")
            dtype = cut.dtype
        # A sum or a mean is wider than its field, and is not an address.
        if kind in FIELD_TYPES and FIELD_TYPES[kind].takes(dtype):
            field = FIELD_TYPES[kind]
            values = partial(_times, self._utc_ns) if kind == TIME else field.values
            return _Scalar(values, fitting(field.type, dtype), cut)
        if not (dtype.shape or dtype.names):
            if names := self._schema.names.get(path):
                return _Scalar(partial(_named, names), ColumnType.TEXT, cut)
            return _Scalar(_plain, plain_type(dtype), cut)
        if dtype.shape:
            element = np.dtype((dtype.base, dtype.shape[1:]))
            return _Items(self._node(f"{path}[]", element), dtype.shape[0])
        return self._record(path, dtype, dtype.names or ())

    def _record(self, path: str, dtype: DType, names: Iterable[str]) -> _Record:
        return _Record({name: self._node(f"{path}.{name}", dtype[name]) for name in names})


def _plain(array: Array) -> list[Any]:
    """Convert numbers and truth values by their C type."""
    if array.dtype.kind == "V":
        return unsigned(array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [value if np.isfinite(value) else str(value) for value in array.tolist()]
    values: list[Any] = array.tolist()
    return values


_INTEGER = _Scalar(_plain, ColumnType.INTEGER)


def _times(utc_ns: int, array: Array) -> list[str]:
    """Convert nanoseconds of CLOCK_MONOTONIC; 0 becomes an empty text."""
    since = array.view("i8")
    return [text if at else "" for at, text in zip(since, iso_all(since + utc_ns), strict=True)]


def _named(names: Mapping[int, str], array: Array) -> list[Any]:
    return [names.get(value, value) for value in _plain(array)]


class _Cut:
    """Extracts bit fields from their words."""

    def __init__(self, word: DType, shift: int, width: int, signed: bool) -> None:
        """`signed` is for opaque words; numpy knows the sign of others."""
        self._shift, self._width, self._signed = shift, width, signed
        self.dtype = word
        """Dtype of the bit fields."""
        if word.kind == "V":
            size = next(size for size in (1, 2, 4, 8, 16) if 8 * size >= width)
            self.dtype = np.dtype("V16" if size == 16 else f"{'i' if signed else 'u'}{size}")

    def __call__(self, array: Array) -> Array:
        if array.dtype.kind != "V":
            # Two shifts, to the upper end of the word and back, keep the sign.
            spare = 8 * array.dtype.itemsize - self._width
            return (array << (spare - self._shift)) >> spare
        numbers = [int.from_bytes(each, sys.byteorder) >> self._shift for each in packed(array)]
        mask, sign = (1 << self._width) - 1, (1 << self._width >> 1) if self._signed else 0
        size = self.dtype.itemsize
        data = b"".join(
            ((number & mask ^ sign) - sign).to_bytes(size, sys.byteorder, signed=self._signed)
            for number in numbers
        )
        return np.frombuffer(data, self.dtype)


def _bounds(of: int, slots: Array) -> list[int]:
    """Return the lower bounds of slots if `of` is 0, the upper ones if it is 1."""
    return [_range(slot)[of] for slot in _plain(slots)]


def _range(slot: int) -> tuple[int, int]:
    """Return the range of a slot of bpf_log2l(): slot 1 has 0 and 1, slot 2 has 2 and 3."""
    if not 0 < slot <= 64:
        return slot, slot
    return (1 << slot) >> 1 if slot > 1 else 0, (1 << slot) - 1
