"""What a table is, and its columns from arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np

from app.outputs.encoders import Record
from probes.flow.filter import address_text
from probes.flow.records import Array
from probes.snapshot import Event, Snapshot

CellValue = str | int | float | None
Row = Sequence[CellValue]
_PART = 8192
"""Rows that are turned into Python's values at a time."""
_SECOND = 10**9
# Some come in most rows.
_address = lru_cache(1 << 14)(address_text)


@dataclass(frozen=True, slots=True)
class OutputView:
    """One table."""

    name: str
    version: int
    columns: tuple[tuple[str, str], ...]
    """Name and meaning of each column after `schema`."""
    rows: Callable[[Snapshot | Event], Iterator[Row]]
    """What an item adds to the table, values in the order of `columns`."""

    @property
    def schema(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def header(self) -> tuple[str, ...]:
        return ("schema", *(name for name, _ in self.columns))

    def records(self, item: Snapshot | Event, *, nested: bool) -> Iterator[Record]:
        """What an item adds to the table, `schema` first."""
        header = self.header
        for row in self.rows(item):
            record = (self.schema, *row)
            yield dict(zip(header, record, strict=True)) if nested else record


@dataclass(frozen=True, slots=True, eq=False)
class Exported(Snapshot):
    """A snapshot with rows that could not be written to their file."""

    unwritten: int = 0
    """Rows."""

    @classmethod
    def of(cls, item: Snapshot, unwritten: int) -> Exported:
        return cls(**{f.name: getattr(item, f.name) for f in fields(item)}, unwritten=unwritten)


def is_table(item: Snapshot | Event, probe: str, table: str) -> TypeGuard[Snapshot]:
    """Whether `item` is that table of a built-in probe."""
    return (
        isinstance(item, Snapshot)
        and not item.is_metric
        and (item.probe, item.metric) == (probe, table)
    )


def parts(rows: Array) -> Iterator[Array]:
    """`rows`, some at a time: a row of Python's own values takes a kilobyte."""
    for at in range(0, len(rows), _PART):
        yield rows[at : at + _PART]


def iso(utc_ns: int) -> str:
    """UTC nanoseconds as ISO 8601, `2026-01-31T12:00:00.123456789Z`."""
    return f"{np.datetime64(utc_ns, 'ns')}Z"


def iso_all(utc_ns: Array) -> list[str]:
    """`iso` of each."""
    # The kernel's ticks are few, and making their text is slow; that of seconds most of all.
    moments, at = np.unique(utc_ns, return_inverse=True)
    seconds, second_at = np.unique(moments // _SECOND, return_inverse=True)
    heads = np.datetime_as_string(seconds.astype("M8[s]")).tolist()
    texts = [
        f"{heads[head]}.{fraction:09}Z"
        for head, fraction in zip(second_at.tolist(), (moments % _SECOND).tolist(), strict=True)
    ]
    return [texts[number] for number in at.tolist()]


def addresses(raw: Array, versions: list[int]) -> Iterator[str]:
    """Text of addresses (n, 16) u1."""
    packed = np.ascontiguousarray(raw).view("V16").ravel().tolist()
    return map(_address, packed, versions)


def where(known: Array, values: Any) -> list[Any]:
    """Python's own values; None where they are not known. `known` is (n,) bool."""
    if known.all():
        return values.tolist() if isinstance(values, np.ndarray) else list(values)
    found = np.empty(len(known), object)
    found[:] = values
    found[~known] = None
    return found.tolist()
