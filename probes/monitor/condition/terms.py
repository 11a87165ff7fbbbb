"""Quantities: numbers, metrics and expressions, evaluated with their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from bpf.arrays import Array
from bpf.errors import TextError
from probes.monitor.condition.band import INFINITE, LIMITS, NAN, OPERATIONS, Band, Samples
from probes.monitor.condition.selection import written
from probes.monitor.condition.series import METRIC_NAMES, WindowSeries
from probes.monitor.condition.units import METRIC_COUNTS, RATIO, Unit
from probes.monitor.selected import OUT, RECENT, SelectedMetric

LEAST_WINDOWS = 3
"""Fewest windows of a baseline."""
LEAST_SHARE = 0.25
"""Least part of a baseline's time that must be covered."""
BASELINE = "baseline"
MAX_BYTES = 1514
"""Bytes of the packets of an unseen window with a known number of packets, at most."""


class WindowSelection(NamedTuple):
    """The windows over which a quantity is evaluated."""

    series: WindowSeries
    quiet: WindowSeries | None
    """Windows for baselines; None: `series`."""
    key: int | slice | Array | None
    """One or several windows of `series`; None: an unseen window."""
    bursts: WindowSeries | None = None
    """Windows of bursts that came several times: usual, too."""
    history: bool = True
    """False: the windows before are unknown."""
    most: float = INFINITE
    """Most packets of an unseen window."""
    recent: float = INFINITE
    """Greatest value of a metric of several windows in an unseen window."""

    def metric(self, name: str) -> Band:
        """One of METRIC_NAMES."""
        if self.key is None:
            most = self.most * (MAX_BYTES if "bytes" in name else 1)
            most = np.float64(self.recent if name.removeprefix(OUT) in RECENT else most)
            nothing = np.float64(0)
            return Band(NAN if most else nothing, nothing, most, not most, seen=not most)
        value = self.series.column(name)[self.key]
        if name != "flows":
            return Band(value, value, value, exact=True)
        low, high = (self.series.column(limit)[self.key] for limit in ("flows_low", "flows_high"))
        return Band(value, low, high, exact=bool((low == high).all()))

    def selected(self, metric: SelectedMetric) -> Band:
        """A metric of a selection, unseen if the last window does not know it."""
        if self.key is None:
            return self.metric(metric.name)
        value, low, high = self.series.selected(metric)[:, self.key]
        if not isinstance(self.key, int):
            return Band(value, low, high, exact=bool((low == high).all()))
        if value != value:
            return Band(NAN, np.float64(0), INFINITE, seen=False)
        return Band(value, low, high, exact=bool(low == high))

    @property
    def seconds(self) -> Samples:
        """Length of each window."""
        return 1.0 if self.key is None else self.series.column("seconds")[self.key]


UNSEEN = WindowSelection(WindowSeries(), None, None)


@dataclass(frozen=True, slots=True)
class Number:
    digits: str
    suffix: str
    scale: float
    unit: Unit
    value: np.float64

    def __str__(self) -> str:
        return self.digits + self.suffix

    def band(self, windows: WindowSelection) -> Band:
        return Band(self.value, self.value, self.value, exact=True)


@dataclass(frozen=True)
class MetricTerm:
    """One of METRIC_NAMES, or a metric of a selection."""

    name: str
    selection: str = ""
    """Filter of its packets; empty: all packets."""
    text: str = ""
    """The term with the names of filters; empty: that of the selection."""

    @cached_property
    def selected(self) -> SelectedMetric | None:
        """The metric that is counted while a policy needs it; None: it is always counted."""
        if self.name in METRIC_NAMES and not self.selection:
            return None
        return SelectedMetric(self.name, self.selection)

    @property
    def unit(self) -> Unit:
        return METRIC_COUNTS.get(self.name.rpartition("_")[2], RATIO)

    @property
    def estimated(self) -> bool:
        name = self.name.removeprefix(OUT)
        return name == "flows" or name not in METRIC_NAMES

    def __str__(self) -> str:
        of = f"{self.name} on {written(self.selection)}" if self.selection else self.name
        return self.text or of

    def band(self, windows: WindowSelection) -> Band:
        selected = self.selected
        return windows.selected(selected) if selected else windows.metric(self.name)


@dataclass(frozen=True, slots=True)
class Negative:
    of: Expression

    @property
    def unit(self) -> Unit:
        return self.of.unit

    def __str__(self) -> str:
        return f"-({self.of})" if isinstance(self.of, Arithmetic) else f"-{self.of}"

    def band(self, windows: WindowSelection) -> Band:
        x = self.of.band(windows)
        return x._replace(value=-x.value, low=-x.high, high=-x.low)


class Operand(NamedTuple):
    symbol: str
    term: Expression
    column: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Terms joined by + and -, or by * and /, from left to right."""

    first: Expression
    steps: tuple[Operand, ...]

    @property
    def adds(self) -> bool:
        return self.steps[0].symbol in "+-"

    @property
    def unit(self) -> Unit:
        """Unit of the result. Raises TextError if a sum mixes units."""
        unit = self.first.unit
        for symbol, term, column in self.steps:
            other = term.unit
            if symbol in "*/":
                unit = unit.times(other if symbol == "*" else other.inverse())
            elif unit.fits(other):
                unit = unit.joined(other)
            else:
                problem = f"{unit.label} and {other.label} can't be added"
                hint = rate_hint((self.first, unit), (term, other))
                raise TextError(problem, "", column, hint=hint)
        return unit

    def __str__(self) -> str:
        text = self._part(self.first)
        return text + "".join(f" {s.symbol} {self._part(s.term)}" for s in self.steps)

    def _part(self, term: Expression) -> str:
        return (
            f"({term})"
            if isinstance(term, Arithmetic) and not (self.adds > term.adds)
            else f"{term}"
        )

    def band(self, windows: WindowSelection) -> Band:
        a = self.first.band(windows)
        for symbol, term, _ in self.steps:
            b = term.band(windows)
            value, exact = OPERATIONS[symbol](a.value, b.value), a.exact and b.exact
            low, high = (value, value) if exact else LIMITS[symbol](a, b)
            a = Band(value, low, high, exact, a.seen and b.seen)
        return a


@dataclass(frozen=True, slots=True)
class Rate:
    """x per second."""

    of: Expression

    @property
    def unit(self) -> Unit:
        return self.of.unit._replace(seconds=-1)

    def __str__(self) -> str:
        return f"rate({self.of})"

    def band(self, windows: WindowSelection) -> Band:
        x, seconds = self.of.band(windows), windows.seconds
        return x._replace(value=x.value / seconds, low=x.low / seconds, high=x.high / seconds)


@dataclass(frozen=True)
class Over:
    """A function over the windows of a time."""

    function: str
    of: Expression | None
    """None: the other side of the comparison, set by `resolved`."""
    seconds: float
    time: str
    """The time in the text."""
    column: int
    alone: bool
    """Whether the argument is missing in the text."""
    floor: Expression | None = None
    """Least value of a baseline, and its value while the usual one is unknown."""

    @property
    def unit(self) -> Unit:
        """Unit of the argument. Raises TextError if the floor has another one."""
        assert self.of
        unit = self.of.unit
        if self.floor and not unit.fits(self.floor.unit):
            problem = f"the least value of {unit.label} can't be {self.floor.unit.label}"
            hint = rate_hint((self.of, unit), (self.floor, self.floor.unit))
            raise TextError(problem, "", self.column, hint=hint)
        return unit

    def __str__(self) -> str:
        of, floor = "" if self.alone else f"{self.of}, ", f", {self.floor}" if self.floor else ""
        return f"{self.function}({of}{self.time}{floor})"

    def band(self, windows: WindowSelection) -> Band:
        assert self.of
        floor = self.floor.band(windows) if self.floor else None
        if not windows.history:
            unseen = self.of.band(UNSEEN)
            if self.function == "min":
                return unseen._replace(high=self.of.band(windows).high)
            return unseen._replace(low=np.maximum(unseen.low, floor.low)) if floor else unseen
        if floor and self.is_low(windows):
            band = floor
        else:
            band = self._band(windows)
            if floor:
                band = _larger(band, floor) if band.seen and not np.isnan(band.value) else floor
        if self.function == BASELINE and windows.bursts is not None and band.seen:
            bursts = self._band(windows._replace(quiet=windows.bursts), least_share=0.0)
            return _larger(band, bursts) if bursts.seen and not np.isnan(bursts.value) else band
        return band

    @cached_property
    def has_floor(self) -> bool:
        """Whether this is a baseline with a floor, of an argument that cannot be 0 / 0."""
        steps = (p.steps for p in parts(self) if isinstance(p, Arithmetic))
        divides = any(step.symbol == "/" for of in steps for step in of)
        return self.function == BASELINE and self.floor is not None and not divides

    def is_low(self, windows: WindowSelection) -> bool:
        """Whether a baseline is at its floor, because most of its windows are not above.

        As long as the windows since the last count cannot change that, it counts none again.
        """
        if not self.has_floor:
            return False
        assert self.of
        assert self.floor
        series, key = self._usual(windows)
        begin, end = series.first + (key.start or 0), series.first + key.stop
        of, since, until, above = series.counts.get(id(self), (None, 0, 0, 0))
        # At worst, all new windows are above, and all that are gone were not.
        if of is self and begin >= since and 2 * (above + end - until) < until - begin:
            return True
        x, floor = self.of.band(WindowSelection(series, None, key)), self.floor.band(windows).value
        low = (x.value <= floor) & (x.low <= floor) & (x.high <= floor)
        above = end - begin - int(np.count_nonzero(low))
        series.counts[id(self)] = self, begin, end, above
        return bool(2 * above < end - begin)

    def _usual(self, windows: WindowSelection) -> tuple[WindowSeries, slice]:
        """Return the windows of a baseline."""
        series, before = windows.series, len(windows.series) - 1
        if windows.quiet is not None:
            series, before = windows.quiet, len(windows.quiet)
        return series, series.usual(self.seconds, before, LEAST_WINDOWS)

    def _band(self, windows: WindowSelection, least_share: float = LEAST_SHARE) -> Band:
        assert self.of
        series, whole = windows.series, True
        key: slice | Array
        if self.function == BASELINE:
            series, key = self._usual(windows)
        else:
            key, whole = series.recent(self.seconds)
        selected = [p.selected for p in parts(self.of) if isinstance(p, MetricTerm) and p.selected]
        if selected and not (known := series.known(selected)[key]).all():
            key, whole = np.arange(len(series))[key][known], self.function == BASELINE
        x = self.of.band(WindowSelection(series, None, key))
        lengths = series.column("seconds")[key]
        vague = not x.exact and bool(np.isnan(x.low + x.high).any())
        undefined = np.isnan(x.value)
        if undefined.any():
            kept = ~undefined
            lengths = lengths[kept]
            x = x._replace(value=x.value[kept], low=x.low[kept], high=x.high[kept])
        if self.function == BASELINE and not self._learnt(lengths, least_share):
            return self.of.band(UNSEEN)
        if not len(lengths):
            return Band(NAN, NAN, NAN, not vague) if whole else self.of.band(UNSEEN)
        reduce = _REDUCE[self.function]
        value = low = high = reduce(x.value, lengths)
        if not x.exact:
            low, high = (NAN if vague else reduce(limit, lengths) for limit in (x.low, x.high))
        if whole or self.function == "avg":
            return Band(value, low, high, x.exact)
        unseen = self.of.band(UNSEEN)
        match self.function:
            case "sum":
                low, high = low if unseen.low >= 0 else -INFINITE, INFINITE
            case "min":
                low = np.minimum(low, unseen.low)
            case "max":
                high = np.maximum(high, unseen.high)
            case other:
                raise NotImplementedError(f"limits of {other} if some windows are missing")
        return Band(value, low, high, seen=False)

    def _learnt(self, lengths: Samples, least_share: float) -> bool:
        # Up to half a window may be missing, as with every time.
        needed = least_share * self.seconds
        return len(lengths) >= LEAST_WINDOWS and lengths.sum() > needed - lengths[-1] / 2


def _larger(one: Band, other: Band) -> Band:
    """The larger one of two known values."""
    value, low, high = map(np.maximum, one[:3], other[:3])
    return Band(value, low, high, one.exact and other.exact)


Expression: TypeAlias = Number | MetricTerm | Negative | Arithmetic | Rate | Over


def parts(term: Expression) -> Iterator[Expression]:
    yield term
    match term:
        case Negative(of) | Rate(of) | Over(of=of) if of:
            yield from parts(of)
        case Arithmetic(first, steps):
            yield from parts(first)
            for step in steps:
                yield from parts(step.term)


def rate_hint(*sides: tuple[Expression, Unit]) -> str:
    """A hint to write one of two sides per second, if that is their only difference."""
    for (term, unit), (_, other) in zip(sides, reversed(sides), strict=True):
        if unit.seconds == 0 and unit._replace(seconds=-1).fits(other):
            return f"write {written}" if (written := _per_second(term)) else ""
    return ""


def _per_second(term: Expression) -> str:
    match term:
        case Number():
            return f"{term}/s"
        case Over(function, of, time=time) if of:
            return f"{function}({_per_second(of)}, {time})"
    possible = term.unit in METRIC_COUNTS.values() and not any(
        isinstance(part, Over) for part in parts(term)
    )
    return f"rate({term})" if possible else ""


def measured(term: Expression) -> bool:
    """Whether the term depends on the last window, unlike a number or a baseline."""
    match term:
        case MetricTerm():
            return True
        case Negative(of) | Rate(of):
            return measured(of)
        case Over(function, of) if of:
            return function != BASELINE and measured(of)
        case Arithmetic(first, steps):
            return measured(first) or any(measured(step.term) for step in steps)
    return False


def constant(term: Expression) -> bool:
    """Whether the term consists of numbers only."""
    return all(isinstance(part, Number | Negative | Arithmetic) for part in parts(term))


def resolved(term: Expression, other: Expression) -> Expression:
    """The term with `other` as the argument of a bare baseline."""
    match term:
        case Over(of=None):
            return replace(term, of=other)
        case Negative(of):
            return Negative(resolved(of, other))
        case Arithmetic(first, steps):
            links = (step._replace(term=resolved(step.term, other)) for step in steps)
            return Arithmetic(resolved(first, other), tuple(links))
    return term


def _median(x: Samples, _: Samples) -> Samples:
    x = np.sort(x)
    return (x[(len(x) - 1) // 2] + x[len(x) // 2]) / 2


_REDUCE: dict[str, Callable[[Samples, Samples], Samples]] = {
    "avg": lambda x, seconds: x @ seconds / seconds.sum(),
    "min": lambda x, _: x.min(),
    "max": lambda x, _: x.max(),
    "sum": lambda x, _: x.sum(),
    BASELINE: _median,
}
FUNCTIONS = tuple(_REDUCE)
"""Functions over the windows of a time."""
