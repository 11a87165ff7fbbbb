"""Series of the metrics of user probes, as far as their tables are small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import MetricFamily, Sample, Series
from probes.drops.counted import PROBE as DROPS
from probes.names.learned import PROBE as NAMES
from probes.segment.options import PROBE as SEGMENT
from probes.snapshot import Snapshot
from probes.tables.conversion import (
    TableKind,
    TableSchema,
    column_types,
    columns,
    flat_rows,
    objects,
)
from probes.tables.map_layout import ColumnType

_BUILT_IN = (DROPS, NAMES, SEGMENT)
MOST_ENTRIES = 1000
"""Entries of a table in a window; a larger table has no series: every entry costs some time."""
MOST_SERIES = 100
"""Series of a metric, or buckets of a histogram."""
MOST_HISTOGRAMS = 10
"""Histograms of a metric."""
_LONGEST_KEY = 200
"""Characters of the label `key`."""
_NUMBERS = (ColumnType.INTEGER, ColumnType.UNSIGNED, ColumnType.FLOAT, ColumnType.TRUTH)
_KEYS = ("key", "index")


class _Name(NamedTuple):
    probe: str
    side: str
    metric: str


class _Numbers:
    """Numbers of entries: sums over all windows, or those of the last window."""

    def __init__(self, schema: TableSchema, dtype: Any) -> None:
        self.layout = schema, dtype
        names = columns(schema, dtype)
        types = column_types(schema, dtype)
        self._keys = [i for i, name in enumerate(names) if name.split(".")[0] in _KEYS]
        self._key_names = [names[i].removeprefix("key.") for i in self._keys]
        self._fields = [
            (i, name.removeprefix("value").removeprefix("."))
            for i, (name, kind) in enumerate(zip(names, types, strict=True))
            if name.startswith("value") and kind in _NUMBERS
        ]
        self._most = MOST_SERIES // max(1, len(self._fields))
        self._values: dict[str, list[float]] = {}
        """By key, in the order of the fields."""

    def take(self, item: Snapshot) -> int:
        schema, _ = self.layout
        if not self._fields:
            return len(item.rows)
        before, left_out = self._values, 0
        found: dict[str, list[float]] = {}
        for row in flat_rows(schema, item.rows):
            found[self._key(row)] = [float(row[i]) for i, _ in self._fields]
        kept = before if schema.adds_up else {key: [] for key in before if key in found}
        for key, values in found.items():
            if key not in kept and not any(values):
                continue
            if key not in kept and (len(kept) >= self._most or len(key) > _LONGEST_KEY):
                left_out += 1
            elif schema.adds_up:
                sums = kept.setdefault(key, [0.0] * len(values))
                sums[:] = [sum(pair) for pair in zip(sums, values, strict=True)]
            else:
                kept[key] = values
        self._values = kept
        return left_out

    def _key(self, row: tuple[Any, ...]) -> str:
        if len(self._keys) == 1:
            return str(row[self._keys[0]])
        named = zip(self._key_names, self._keys, strict=True)
        return ",".join(f"{name}={row[i]}" for name, i in named)

    def samples(self, name: _Name) -> Iterator[Sample]:
        family: MetricFamily = of.METRIC_COUNT if self.layout[0].adds_up else of.METRIC_VALUE
        for key, values in self._values.items():
            for (_, named), value in zip(self._fields, values, strict=True):
                yield family(*name, key, named, value=value)


class _Histograms:
    """Histograms by the part of the key before the slot."""

    def __init__(self, schema: TableSchema, dtype: Any) -> None:
        self.layout = schema, dtype
        self._buckets: dict[str, dict[int, int]] = {}
        """Counts by the highest value of the bucket, by key."""

    def take(self, item: Snapshot) -> int:
        schema, _ = self.layout
        left_out = 0
        if not schema.adds_up:
            self._buckets = {}
        for row in objects(schema, item.rows):
            count = row["count"]
            key = ",".join(f"{name}={value}" for name, value in row.get("key", {}).items())
            if not count:
                continue
            if not isinstance(count, int):
                left_out += 1
                continue
            if key not in self._buckets and (
                len(self._buckets) >= MOST_HISTOGRAMS or len(key) > _LONGEST_KEY
            ):
                left_out += 1
                continue
            buckets = self._buckets.setdefault(key, {})
            if row["high"] not in buckets and len(buckets) >= MOST_SERIES:
                left_out += 1
            else:
                buckets[row["high"]] = buckets.get(row["high"], 0) + count
        return left_out

    def samples(self, name: _Name) -> Iterator[Sample]:
        for key, buckets in self._buckets.items():
            total = 0
            for high, count in sorted(buckets.items()):
                total += count
                yield of.METRIC_HISTOGRAM(
                    *name, key, value=total, suffix="_bucket", le=str(float(high))
                )
            yield of.METRIC_HISTOGRAM(*name, key, value=total, suffix="_bucket", le="+Inf")


@dataclass(slots=True)
class _Metric:
    shown: _Numbers | _Histograms
    left_out: int = 0
    """Entries of the last window without series."""


class MetricSeries(Series):
    """Series of the metrics of user probes."""

    def __init__(self) -> None:
        self._metrics: dict[_Name, _Metric] = {}

    def take(self, item: Snapshot) -> None:
        schema = item.schema
        if schema is None or item.probe in _BUILT_IN:
            return
        name = _Name(item.probe, item.side, item.metric)
        dtype = item.rows.dtype
        metric = self._metrics.get(name)
        if metric is None or metric.shown.layout != (schema, dtype):
            # A replacement may have other columns.
            is_histogram = schema.kind is TableKind.HISTOGRAM
            metric = self._metrics[name] = _Metric(
                _Histograms(schema, dtype) if is_histogram else _Numbers(schema, dtype)
            )
        # Series need keys that last, and one value for all CPUs.
        no_series = schema.kind in (TableKind.QUEUE, TableKind.STACK) or dtype["value"].shape
        if no_series or len(item.rows) > MOST_ENTRIES:
            metric.left_out = len(item.rows)
        else:
            metric.left_out = metric.shown.take(item)

    def removed(self, probe: str) -> None:
        for name in [name for name in self._metrics if name.probe == probe]:
            del self._metrics[name]

    def samples(self) -> Iterator[Sample]:
        for name, metric in self._metrics.items():
            yield from metric.shown.samples(name)
            yield of.METRIC_LEFT_OUT(*name, value=metric.left_out)
