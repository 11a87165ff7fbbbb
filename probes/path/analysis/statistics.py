"""What many round-trip times and outcomes come down to.

Series are told apart by a number, so that one pass does all series of a poll.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probes.path.records import Array

CONFIDENCE_Z = 1.959963984540054
"""Standard deviations of the normal distribution that hold 95 % of it."""
MAX_RTT_NS = (1 << 46) - 1
"""A longer time (20 hours) counts as this."""

_SERIES_SHIFT = np.int64(46)


def loss_interval(lost: Array, ended: Array) -> tuple[Array, Array]:
    """Limits (each (n,) f8, 0 to 1) of the loss of which `lost` of `ended` is a sample, at 95 %.

    Wilson's score interval (E. B. Wilson, 1927): unlike the normal
    approximation it holds for few probes and for losses near 0 and 1. None ended: 0 to 1.
    """
    count = np.maximum(ended, 1).astype("f8")
    share = lost / count
    z2 = CONFIDENCE_Z**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) * CONFIDENCE_Z
    half /= 1 + z2 / count
    none = np.asarray(ended) == 0
    # At both ends the limit is exact, and rounding must not put it beyond the share itself.
    low = np.where((lost == 0) | none, 0.0, np.maximum(centre - half, 0))
    high = np.where((lost == ended) | none, 1.0, np.minimum(centre + half, 1))
    return low, high


def cleared(lost: Array, ended: Array) -> Array:
    """Whether a later hop clears each of its loss: (flows, hops) counts, hops ascending, to bool.

    Who loses probes on their way loses those to later hops too. Where one of these loses less,
    beyond what 95 % limits allow for chance, this hop only answers seldom (a limited rate), or its
    answers get lost on a way back that later hops' answers do not take.
    """
    low, high = loss_interval(lost, ended)
    least_later = np.ones_like(high)
    least_later[:, :-1] = np.minimum.accumulate(high[:, ::-1], axis=1)[:, -2::-1]
    result: Array = low > least_later
    return result


def group_starts(series: Array) -> Array:
    """Where each run of equal numbers begins, (m,) of (n,)."""
    if not len(series):
        return np.empty(0, "i8")
    return np.flatnonzero(np.concatenate(([True], series[1:] != series[:-1])))


def packed(series: Array, value: Array) -> Array:
    """Numbers (n,) i8 that sort by series (below 2**17), then by value (clipped to 46 bits)."""
    result: Array = (series.astype("i8") << _SERIES_SHIFT) | np.clip(value, 0, MAX_RTT_NS)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Round-trip times of several series in ascending order."""

    series: Array
    """(m,) i8, ascending: those that have any."""
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
        """The quantile (m,) i8 of each series by nearest rank: a time that was measured.

        0 is the lowest, 1 the highest, 0.5 the median (of an even number the lower middle one).
        """
        rank = np.maximum(np.ceil(self.counts * fraction).astype("i8"), 1)
        result: Array = self._values[self._ends - self.counts + rank - 1]
        return result


def jitter(rtts_ns: Array, starts: Array, before_ns: Array) -> Array:
    """Mean absolute difference of consecutive times, (m,) i8; -1 where there is no pair.

    `rtts_ns` (n,) has series after series, each in order of sending from `starts` (m,) on;
    `before_ns` (m,) is the last time of each before these, -1 where none. Not RFC 3550's smoothed
    estimate, which differs in its memory only (about 16 answers): this one belongs to the very
    second it is told for, and is the same at 1 and at 10,000 probes per second.
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
