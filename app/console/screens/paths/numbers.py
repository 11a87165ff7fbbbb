"""Counts, percentiles and jitter of hops, from the samples of the last minute."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.console.live.paths import UNTIMED
from probes.path.analysis.statistics import Ordered, group_starts, jitter
from probes.path.options import MAX_HOPS
from probes.path.records import Array
from widgets.sparkline import means


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Numbers of a hop in the last minute. Times are seconds, or NaN."""

    sent: int
    answered: int
    median: float
    p95: float
    jitter: float
    least: float = math.nan

    @property
    def loss(self) -> float:
        """Lost share, 0 to 1; NaN without a probe."""
        return 1 - self.answered / self.sent if self.sent else math.nan


NONE = Numbers(0, 0, *[math.nan] * 3)


def numbers_of(times: Array, series: Array, hops: Array) -> dict[int, Numbers]:
    """Return the numbers by hop. `times` and `series` (n,) come from RecentTimes.of; `hops` (m,) is
    the hop of each series."""
    sent = np.bincount(hops[series], minlength=MAX_HOPS + 1)
    untimed = np.bincount(hops[series[times == UNTIMED]], minlength=len(sent))
    heard = times >= 0
    rtts, ids = times[heard], series[heard]
    hops = hops[ids]
    starts = group_starts(ids)
    steps = jitter(rtts, starts, np.full(len(starts), -1))
    # A series weighs as much as it has answers.
    weights = np.where(steps >= 0, np.diff(starts, append=len(ids)), 0)
    shares = np.bincount(hops[starts], weights, MAX_HOPS + 1)
    steps = means(np.bincount(hops[starts], weights * steps, MAX_HOPS + 1), shares) / 1e9
    ordered = Ordered.of(hops, rtts)
    found = {
        int(n): Numbers(int(sent[n]), int(untimed[n]), *[math.nan] * 3)
        for n in np.flatnonzero(sent)
    }
    quantiles = (ordered.quantile(fraction) / 1e9 for fraction in (0.5, 0.95, 0.0))
    columns = (ordered.counts, *quantiles)
    for number, answered, median, p95, least in zip(
        ordered.series.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        answered += int(untimed[number])
        change = float(steps[number])
        found[number] = Numbers(int(sent[number]), answered, median, p95, change, least)
    return found
