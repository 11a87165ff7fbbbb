"""Rates of maps: from readings, one after another, to rows with a rate and its last minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from probes.reports import MapReading, MapReadings

SAMPLES = 60
"""Rates that are kept of a counter."""
_FEW = 16
"""Most entries of an array of counters; a longer array is a distribution."""
_VALUES = ("value", "count")


class Drawing(StrEnum):
    """How the entries of a map are drawn."""

    COUNTERS = "counters"
    """A few numbers, each with its last minute."""
    HISTOGRAM = "histogram"
    """Slots in their order, as bars."""
    TABLE = "table"
    """Keys, the largest first, as bars."""
    NOTHING = "nothing"
    """Only named, with its size."""


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry of a map."""

    key: str
    value: str
    number: float
    """The first number of its value; NaN without one."""
    rate: float
    """Growth of that number in a second; NaN if it is unknown."""
    trend: tuple[float, ...]
    """The last rates, the oldest first; only of counters."""
    share: float
    """Share of the largest entry, 0 to 1."""


@dataclass(frozen=True, slots=True)
class MapView:
    """A map, ready to be drawn."""

    probe: str
    reading: MapReading
    drawing: Drawing
    entries: tuple[EntryView, ...]


@dataclass(slots=True)
class _Past:
    """The last reading of a map."""

    window: int = -1
    at_ns: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    trends: dict[str, deque[float]] = field(default_factory=dict)


class MapHistory:
    """Follows the readings of probes. Only the event loop calls it."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, str, str], _Past] = {}
        self._generations: dict[str, int] = {}

    def take(self, readings: MapReadings) -> tuple[MapView, ...]:
        """Return the maps of a reading, with rates since the one before."""
        probe = readings.probe
        if self._generations.get(probe) != readings.generation:
            self._generations[probe] = readings.generation
            self._past = {key: past for key, past in self._past.items() if key[0] != probe}
        return tuple(self._view(readings, reading) for reading in readings.maps)

    def _view(self, readings: MapReadings, reading: MapReading) -> MapView:
        drawing = drawing_of(reading)
        rows = [_parts(reading, row) for row in reading.rows]
        past = self._past.setdefault((readings.probe, reading.side, reading.name), _Past())
        # Rows of a metric change only with the window.
        if not reading.metrics or past.window != readings.window:
            _advance(past, readings, reading, {key: number for key, _, number in rows}, drawing)
        largest = max((number for _, _, number in rows if number > 0), default=0.0)
        entries = tuple(
            EntryView(
                key, value, number, past.rates.get(key, math.nan),
                tuple(past.trends.get(key, ())), number / largest if number > 0 else 0.0,
            )
            for key, value, number in rows
        )  # fmt: skip
        return MapView(readings.probe, reading, drawing, entries)


def _advance(
    past: _Past,
    readings: MapReadings,
    reading: MapReading,
    numbers: dict[str, float],
    drawing: Drawing,
) -> None:
    if reading.metrics:
        seconds = readings.seconds * max(1, readings.window - past.window)
    else:
        seconds = (readings.at_ns - past.at_ns) / 1e9
    is_first = past.window < 0
    rates: dict[str, float] = {}
    for key, number in numbers.items():
        if reading.cleared and reading.metrics:
            rates[key] = number / readings.seconds if readings.seconds > 0 else math.nan
        elif not is_first and seconds > 0:
            grown = number - past.numbers.get(key, 0.0)
            # A smaller number is no counter, or another one.
            rates[key] = grown / seconds if grown >= 0 else math.nan
    past.rates, past.numbers = rates, numbers
    past.window, past.at_ns = readings.window, readings.at_ns
    if drawing is Drawing.COUNTERS:
        for key in numbers:
            past.trends.setdefault(key, deque(maxlen=SAMPLES)).append(rates.get(key, math.nan))


def drawing_of(reading: MapReading) -> Drawing:
    """Return how a map is drawn: by its table's kind, else by its shape."""
    if not reading.table:
        return Drawing.NOTHING
    if reading.table == "histogram" and reading.columns[0] == "slot":
        return Drawing.HISTOGRAM
    if reading.table == "array":
        return Drawing.COUNTERS if len(reading.rows) <= _FEW else Drawing.HISTOGRAM
    return Drawing.TABLE


def is_value(column: str) -> bool:
    """Whether a column of a table's flat rows is of the value, not of the key."""
    return column.partition(".")[0].partition("[")[0] in _VALUES


def key_and_value(columns: Iterable[str], cells: Iterable[object]) -> tuple[str, str]:
    """Return the cells of the key and of the value of a flat row, as two texts."""
    keys: list[str] = []
    values: list[str] = []
    for name, cell in zip(columns, cells, strict=True):
        field = name.partition(".")[2]
        if not is_value(name):
            keys.append(str(cell))
        else:
            values.append(f"{field}={cell}" if field else str(cell))
    return " ".join(keys), " ".join(values)


def _parts(reading: MapReading, row: tuple[object, ...]) -> tuple[str, str, float]:
    """Return key and value of a row as texts, and the first number of its value."""
    cells = dict(zip(reading.columns, row, strict=True))
    if "low" in cells:
        low, high = cells.pop("low"), cells.pop("high")
        slot = cells.pop("slot")
        cells = {"slot": slot if low == high == slot else f"{low}..{high}", **cells}
    numbers = (
        float(cell)
        for name, cell in cells.items()
        if is_value(name) and isinstance(cell, int | float) and not isinstance(cell, bool)
    )
    return *key_and_value(cells, cells.values()), next(numbers, math.nan)
