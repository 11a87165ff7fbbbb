"""The present values of all series, from published items."""

from __future__ import annotations

import threading
from collections import Counter

from app import VERSION
from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, Series
from app.exporters.openmetrics.options import MOST_OWNERS
from app.exporters.openmetrics.paths import PathSeries
from app.exporters.openmetrics.probe_metrics import MetricSeries
from app.exporters.openmetrics.series import (
    DropSeries,
    FlowSeries,
    MonitorSeries,
    OwnerSeries,
    PolicySeries,
    ProbeSeries,
)
from probes.snapshot import REMOVED, SEVERITIES, Event, Item


class MetricState:
    """The series of a control plane since its start. Any thread may call a method.

    The number of series is bounded: no series belongs to a flow.
    """

    def __init__(self, owners: int = MOST_OWNERS) -> None:
        self._lock = threading.Lock()
        self._events = Counter(dict.fromkeys(SEVERITIES, 0))
        self._series: tuple[Series, ...] = (
            FlowSeries(),
            MonitorSeries(),
            PolicySeries(),
            PathSeries(),
            OwnerSeries(owners),
            DropSeries(),
            ProbeSeries(),
            MetricSeries(),
        )

    def take(self, item: Item) -> None:
        """Count an item."""
        with self._lock:
            if isinstance(item, Event):
                self._events[item.severity] += 1
                if item.text == REMOVED:
                    for each in self._series:
                        each.removed(item.source)
                return
            for each in self._series:
                each.take(item)

    def samples(self) -> list[Sample]:
        """Return the present values."""
        with self._lock:
            return [
                of.BUILD(VERSION),
                *(sample for each in self._series for sample in each.samples()),
                *(of.EVENTS(severity, value=n) for severity, n in self._events.items()),
            ]
