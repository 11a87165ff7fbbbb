"""Windows of the monitor, made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bpf.arrays import Array
from probes.monitor.condition.series import WindowSeries
from probes.monitor.records import METRIC


def row(**metrics: float) -> Array:
    """A row of dtype METRIC, shape (); flows are exact where no limits are given."""
    made = np.zeros((), METRIC)
    flows = metrics.get("flows", 0)
    for name, value in ({"flows_low": flows, "flows_high": flows} | metrics).items():
        made[name] = value
    return made[()]


def series_of(rows: Iterable[Mapping[str, float]], seconds: float = 1.0) -> WindowSeries:
    """Windows that adjoin."""
    series = WindowSeries(3600)
    for number, metrics in enumerate(rows, 1):
        series.append(row(**metrics), round(number * seconds * 1e9), seconds)
    return series
