"""Columns of the written tables, also of metrics, and their values from arrays.

A metric's map defines its columns, so the schema names them: `PROBE.SIDE.METRIC/` and a checksum of
the columns' names.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache, partial
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from app.outputs.formats import Record
from bpf.arrays import Array
from probes.filter.hosts import address_text
from probes.snapshot import Event, Item, Snapshot
from probes.sockets.records import OWNERS_TABLE, OWNERSHIP_TABLE, SOCKETS_TABLE, Owned
from probes.tables.conversion import column_types, columns, flat_rows, iso_all, objects
from probes.tables.flow_columns import FlowColumn
from probes.tables.map_layout import ColumnType as ColumnType

CellValue = str | int | float | None
_PART = 8192
"""Rows that become Python values at a time: the values of a row take a kilobyte."""
# Most rows have one of a few addresses.
_address = lru_cache(1 << 14)(address_text)


class Part:
    """Some rows of a snapshot; or an item as one row."""

    def __init__(self, item: Any, rows: Any = (None,)) -> None:
        self.item = item
        self.rows = rows

    @cached_property
    def versions(self) -> list[int]:
        """4 or 6 for each row."""
        versions: list[int] = self.rows["version"].tolist()
        return versions

    @cached_property
    def owned(self) -> Owned | None:
        """Sockets and owners of rows of flows; None if nobody looks for owners."""
        item = self.item
        if not isinstance(item, OwnedFlows):
            return None
        return Owned(self.rows, item.tables[SOCKETS_TABLE].rows, item.tables[OWNERS_TABLE].rows)

    def utc(self, name: str) -> Array:
        """Nanoseconds since the epoch, from an array's column of CLOCK_MONOTONIC."""
        found: Array = self.rows[name] + (self.item.end_utc_ns - self.item.end_ns)
        return found


Mask = Callable[[Part], Array]


class OutputColumn(NamedTuple):
    """One column of a written table; by default the array's column of the same name."""

    name: str
    meaning: str
    values: Callable[[Part], Iterable[CellValue]] | None = None
    type: ColumnType = ColumnType.INTEGER
    field: str = ""
    """The array's column, if it has another name."""
    text: Callable[[Any], CellValue] | None = None
    """Returns the written value of one of the array's."""
    digits: int = 0
    """Decimals of fractions; 0: all."""
    known: Mask | None = None
    """Rows (n,) with a value; None: all."""

    @property
    def is_plain(self) -> bool:
        """Whether it has the values of the array, unchanged."""
        return not (self.values or self.text or self.digits or self.known)

    def of(self, part: Part) -> Iterable[CellValue]:
        found: Any
        if self.values is not None:
            found = self.values(part)
        else:
            found = part.rows[self.field or self.name]
            if self.digits:
                found = found.astype("f8").round(self.digits)
            if self.text is not None:
                found = map(self.text, found.tolist())
        if self.known is not None:
            known = self.known(part)
            return where(known, found if isinstance(found, np.ndarray) else list(found))
        made: Iterable[CellValue] = found.tolist() if isinstance(found, np.ndarray) else found
        return made


def one(
    name: str,
    meaning: str,
    value: Callable[[Any], CellValue] | None = None,
    type: ColumnType = ColumnType.INTEGER,  # noqa: A002 - as the field
) -> OutputColumn:
    """A column with one value an item; by default the item's attribute of the same name."""

    def values(part: Part) -> Iterable[CellValue]:
        return repeat((value or attrgetter(name))(part.item))

    return OutputColumn(name, meaning, values, type)


one_text = partial(one, type=ColumnType.TEXT)
"""A column with one text an item."""
text = partial(OutputColumn, type=ColumnType.TEXT)
"""A column of texts."""


def time(name: str, meaning: str, field: str, known: Mask | None = None) -> OutputColumn:
    """UTC as ISO 8601, from an array's column of CLOCK_MONOTONIC."""

    def times(part: Part) -> Iterable[CellValue]:
        return iso_all(part.utc(field))

    return OutputColumn(name, meaning, times, ColumnType.TIME, known=known)


def address(name: str, meaning: str, field: str = "", known: Mask | None = None) -> OutputColumn:
    """Addresses as texts."""

    def texts(part: Part) -> Iterable[CellValue]:
        return addresses(part.rows[field or name], part.versions)

    return OutputColumn(name, meaning, texts, ColumnType.TEXT, known=known)


def labelled(
    name: str, meaning: str, labels: Mapping[int, str], known: Mask | None = None
) -> OutputColumn:
    """The words of numbers."""
    return OutputColumn(name, meaning, type=ColumnType.TEXT, text=labels.__getitem__, known=known)


def decoded(name: str, meaning: str, field: str = "", known: Mask | None = None) -> OutputColumn:
    """Texts from bytes: a text that was too long may be cut within a character."""

    def text(raw: bytes) -> str:
        return raw.decode(errors="replace")

    return OutputColumn(name, meaning, None, ColumnType.TEXT, field, text, known=known)


def flow_column(of: FlowColumn) -> OutputColumn:
    """A column of a number of the flow's packets."""
    kind = ColumnType.TEXT if of.words else ColumnType.INTEGER
    return OutputColumn(of.name, of.meaning, type=kind, text=of.words)


WINDOW = one("window", "number of the window, from 1, without gaps")
START = one(
    "start",
    "UTC, ISO 8601: the window's start",
    lambda item: iso(item.start_utc_ns),
    ColumnType.TIME,
)
END = one(
    "end",
    "UTC: the window's end, the next one's start",
    lambda item: iso(item.end_utc_ns),
    ColumnType.TIME,
)


@dataclass(frozen=True, slots=True)
class OutputView:
    """One table."""

    name: str
    version: int
    columns: tuple[OutputColumn, ...]
    """Columns after `schema`."""
    probe: str = ""
    """The built-in probe; if empty, each item of `kind` adds one row."""
    table: str = ""
    """The table of that probe."""
    kind: type[Item] = Snapshot
    make: Callable[[Snapshot], Snapshot] | None = None
    """Makes the table from the probe's table without a name; None: the probe publishes it."""

    @property
    def schema(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def header(self) -> tuple[str, ...]:
        return ("schema", *(column.name for column in self.columns))

    def records(self, item: Item, *, nested: bool) -> Iterator[Record]:
        """Return the rows that an item adds to the table, `schema` first."""
        header = self.header
        for part in self.parts(item):
            # Column by column, three times faster than row by row.
            columns = (column.of(part) for column in self.columns)
            for record in zip(repeat(self.schema, len(part.rows)), *columns, strict=False):
                yield dict(zip(header, record, strict=True)) if nested else record

    def takes(self, item: Item) -> bool:
        """Whether `item` adds rows to the table."""
        if self.probe:
            return is_table(item, self.probe, self.table) or self._makes_of(item)
        return isinstance(item, self.kind)

    def _makes_of(self, item: Item) -> TypeGuard[Snapshot]:
        return self.make is not None and is_table(item, self.probe, "")

    def parts(self, item: Item) -> Iterator[Part]:
        if not self.takes(item):
            return
        if self.make is not None and self._makes_of(item):
            item = self.make(item)
        if isinstance(item, Event) or not self.probe:
            yield Part(item)
        else:
            for at in range(0, len(item.rows), _PART):
                yield Part(item, item.rows[at : at + _PART])


@dataclass(frozen=True, slots=True, eq=False)
class Exported(Snapshot):
    """A snapshot with rows that could not be written to their file."""

    unwritten: int = 0
    """Rows."""

    @classmethod
    def of(cls, item: Snapshot, unwritten: int) -> Exported:
        kept = {each.name: getattr(item, each.name) for each in fields(Snapshot)}
        return cls(**kept, unwritten=unwritten)


@dataclass(frozen=True, slots=True, eq=False)
class OwnedFlows(Snapshot):
    """A window of flows with the tables of its owners."""

    tables: Mapping[str, Snapshot] = field(default_factory=dict)
    """The tables of the probe of sockets by name, of the same window."""

    @classmethod
    def of(cls, flows: Snapshot, tables: Mapping[str, Snapshot]) -> OwnedFlows:
        kept = {each.name: getattr(flows, each.name) for each in fields(Snapshot)}
        return cls(**kept, tables=dict(tables))

    @property
    def ownership(self) -> Array:
        """Rows of dtype OWNERSHIP."""
        return self.tables[OWNERSHIP_TABLE].rows


def is_table(item: object, probe: str, table: str) -> TypeGuard[Snapshot]:
    """Whether `item` is that table of a built-in probe."""
    return (
        isinstance(item, Snapshot)
        and not item.is_metric
        and (item.probe, item.metric) == (probe, table)
    )


def iso(utc_ns: int) -> str:
    """UTC nanoseconds as ISO 8601, `2026-01-31T12:00:00.123456789Z`."""
    return f"{np.datetime64(utc_ns, 'ns')}Z"


def addresses(raw: Array, versions: list[int]) -> Iterator[str]:
    """Text of addresses (n, 16) u1."""
    packed = np.ascontiguousarray(raw).view("V16").ravel().tolist()
    return map(_address, packed, versions)


def where(known: Array, values: Any) -> list[Any]:
    """Return Python's own values, with None for unknown ones. `known` is (n,) bool."""
    if known.all():
        return values.tolist() if isinstance(values, np.ndarray) else list(values)
    found = np.empty(len(known), object)
    found[:] = values
    found[~known] = None
    return found.tolist()


_ABOUT = ("schema", "probe", "side", "metric", "interface", "window", "start", "end", "generation")
"""Columns before the metric's own: the window of the row."""
_NO_TEXT = {
    "window": ColumnType.INTEGER, "start": ColumnType.TIME, "end": ColumnType.TIME,
    "generation": ColumnType.INTEGER,
}  # fmt: skip
_ABOUT_TYPES = tuple(_NO_TEXT.get(name, ColumnType.TEXT) for name in _ABOUT)


class MetricOutput:
    """The table of a metric, as a snapshot defines it."""

    def __init__(self, item: Snapshot) -> None:
        assert item.schema is not None, "a metric's snapshot says what its rows are"
        self._rows = item.schema
        own = columns(item.schema, item.rows.dtype)
        self.header = (*_ABOUT, *own)
        self.types = (*_ABOUT_TYPES, *column_types(item.schema, item.rows.dtype))
        """Types of the columns."""
        self.probe = item.probe
        self.name = f"{item.probe}.{item.side}.{item.metric}"
        """Name of the table and of its file."""
        self.schema = f"{self.name}/{zlib.crc32(','.join(own).encode()):08x}"

    def records(self, item: Snapshot, *, nested: bool) -> Iterator[Record]:
        about = (
            self.schema, item.probe, item.side, item.metric, item.interface, item.window,
            iso(item.start_utc_ns), iso(item.end_utc_ns), item.generation,
        )  # fmt: skip
        if nested:
            window = dict(zip(_ABOUT, about, strict=True))
            return ({**window, **row} for row in objects(self._rows, item.rows, item.utc_ns(0)))
        return ((*about, *row) for row in flat_rows(self._rows, item.rows, item.utc_ns(0)))
