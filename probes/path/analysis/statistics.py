"""Statistics of round-trip times and outcomes: loss limits, quantiles, jitter.

Each series has a number, so that one pass handles all series of a poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.records import HOP, ProbeOutcome

CONFIDENCE_Z = 1.959963984540054
"""Standard deviations of the normal distribution that contain 95 % of it."""
MAX_RTT_NS = (1 << 46) - 1
"""Longer times (over 20 hours) count as this."""

_SERIES_SHIFT = np.int64(46)
_QUANTILES = (("min_ns", 0.0), ("median_ns", 0.5), ("p95_ns", 0.95), ("max_ns", 1.0))

HOP_STATISTICS = np.dtype([
    ("answered", "i8"), ("lost", "i8"), *((name, "i8") for name, _ in _QUANTILES),
])  # fmt: skip
"""One hop: its answered and lost probes, and its round-trip times (-1: none)."""


def timed(rows: Rows[HOP]) -> Array:
    """Which rows (n,) are answers with a time: a round trip of the flow may be answered without."""
    return (rows["outcome"] <= ProbeOutcome.UNREACHABLE) & (rows["received_ns"] > 0)


def hop_statistics(rows: Rows[HOP], series: Array, count: int) -> Rows[HOP_STATISTICS]:
    """Return the statistics (count,) of rows (n,) of dtype HOP; `series` (n,) has the place of the
    hop of each row."""
    found = np.full(count, -1, HOP_STATISTICS)
    places = series.astype("i8") * len(ProbeOutcome) + rows["outcome"]
    outcomes = np.bincount(places, minlength=count * len(ProbeOutcome)).reshape(count, -1)
    found["answered"] = outcomes[:, : ProbeOutcome.UNREACHABLE + 1].sum(axis=1)
    found["lost"] = outcomes[:, ProbeOutcome.UNANSWERED]
    is_timed = timed(rows)
    rtts_ns = (rows["received_ns"] - rows["sent_ns"])[is_timed]
    ordered = Ordered.of(series[is_timed], rtts_ns)
    ordered.fill(found, ordered.series)
    return found


def quantiles(values: Array, fractions: Sequence[float]) -> Array:
    """Return quantiles of n > 0 values by nearest rank, as Ordered.quantile."""
    result: Array = np.quantile(values, fractions, method="inverted_cdf")
    return result


def loss_interval(lost: Array, ended: Array) -> tuple[Array, Array]:
    """95 % limits (each (n,) f8, 0 to 1) of the loss rate, from samples of `lost` of `ended`
    probes.

    Wilson's score interval (E. B. Wilson, 1927): unlike the normal approximation it holds for few
    probes and for losses near 0 and 1. Without ended probes: 0 to 1.
    """
    count = np.maximum(ended, 1).astype("f8")
    share = lost / count
    z2 = CONFIDENCE_Z**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) * CONFIDENCE_Z
    half /= 1 + z2 / count
    none = np.asarray(ended) == 0
    # Both ends are exact: rounding must not move the limit beyond the share.
    low = np.where((lost == 0) | none, 0.0, np.maximum(centre - half, 0))
    high = np.where((lost == ended) | none, 1.0, np.minimum(centre + half, 1))
    return low, high


def cleared(lost: Array, ended: Array) -> Array:
    """Whether a later hop clears each hop of its loss: counts (flows, hops), hops ascending, to
    bool.

    Probes that are lost on the way to a hop are lost for later hops too. If a later hop loses less,
    beyond the 95 % limits, this hop only answers seldom (a limited rate), or its answers get lost
    on a way back that later hops' answers do not take.
    """
    low, high = loss_interval(lost, ended)
    least_later = np.ones_like(high)
    least_later[:, :-1] = np.minimum.accumulate(high[:, ::-1], axis=1)[:, -2::-1]
    return low > least_later


def group_starts(series: Array) -> Array:
    """The begin (m,) of each run of equal numbers (n,)."""
    if not len(series):
        return np.empty(0, "i8")
    return np.flatnonzero(np.concatenate(([True], series[1:] != series[:-1])))


def packed(series: Array, value: Array) -> Array:
    """Sort keys (n,) i8: by series (below 2**17), then by value (clipped to 46 bits)."""
    return (series.astype("i8") << _SERIES_SHIFT) | np.clip(value, 0, MAX_RTT_NS)


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Round-trip times of several series in ascending order."""

    series: Array
    """(m,) i8, ascending: the series with any times."""
    counts: Array
    """(m,) i8."""
    _ends: Array
    _values: Array

    @classmethod
    def of(cls, series: Array, rtts_ns: Array) -> Ordered:
        """Order times (n,) i8, each of the series of the same place."""
        # Numbers sort several times faster than a lexsort of two columns.
        both = np.sort(packed(series, rtts_ns))
        numbers = both >> _SERIES_SHIFT
        starts = group_starts(numbers)
        ends = np.append(starts[1:], len(both)) if len(starts) else starts
        return cls(numbers[starts], ends - starts, ends, both & MAX_RTT_NS)

    def quantile(self, fraction: float) -> Array:
        """The quantile (m,) i8 of each series by nearest rank: a measured time.

        0 is the lowest, 1 the highest, 0.5 the median (of an even number the lower middle one).
        """
        rank = np.maximum(np.ceil(self.counts * fraction).astype("i8"), 1)
        found: Array = self._values[self._ends - self.counts + rank - 1]
        return found

    def fill(self, rows: Array, at: Array) -> None:
        """Set `min_ns`, `median_ns`, `p95_ns` and `max_ns` of the rows at (m,), one a series."""
        for name, fraction in _QUANTILES:
            rows[name][at] = self.quantile(fraction)


def jitter(rtts_ns: Array, starts: Array, before_ns: Array) -> Array:
    """Mean absolute difference of consecutive times, (m,) i8; -1 without a pair.

    `rtts_ns` (n,) has series after series, each in order of sending from `starts` (m,) on;
    `before_ns` (m,) is the last time of each before these, -1 if none. RFC 3550's smoothed estimate
    differs: it remembers about 16 answers, while this value belongs to one second and does not
    depend on the rate of probes.
    """
    if not len(starts):
        return np.empty(0, "i8")
    previous = np.concatenate((before_ns[:1], rtts_ns[:-1]))
    previous[starts] = before_ns
    known = previous >= 0
    differences = np.where(known, np.abs(rtts_ns - previous), 0)
    pairs = np.add.reduceat(known.astype("i8"), starts)
    mean = np.add.reduceat(differences, starts) // np.maximum(pairs, 1)
    result: Array = np.where(pairs > 0, mean, -1)
    return result
