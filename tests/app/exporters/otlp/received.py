"""The content of a receiver of OTLP: the last values of metrics, and log records."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from tests.app.exporters.alerts.receivers import Web

Series = tuple[str, tuple[tuple[str, Any], ...]]


class Received:
    """The content of requests to a web server, or of messages."""

    def __init__(self, bodies: Iterable[tuple[str, bytes]]) -> None:
        self.values: dict[Series, float] = {}
        """The last value of each series of numbers."""
        self.times: dict[str, set[int]] = {}
        """UTC nanoseconds of the values of each metric."""
        self.points: dict[str, list[Any]] = {}
        self.logs: list[tuple[Any, dict[str, Any]]] = []
        """Records, and their attributes."""
        for path, body in bodies:
            if path.endswith("/v1/metrics"):
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            else:
                self._take_logs(ExportLogsServiceRequest.FromString(body))

    @classmethod
    def by(cls, web: Web) -> Received:
        """Return what a server has accepted: it must have answered 200 to all requests."""
        return cls((path, gzip.decompress(body)) for path, _, body in web.got)

    def sum(self, name: str) -> float:
        return sum(value for (metric, _), value in self.values.items() if metric == name)

    def _take_metrics(self, request: Any) -> None:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                self.points.setdefault(metric.name, []).append(point)
                self.times.setdefault(metric.name, set()).add(point.time_unix_nano)
                if hasattr(point, "as_int"):
                    key = metric.name, tuple(sorted(attributes(point).items()))
                    self.values[key] = getattr(point, point.WhichOneof("value"))

    def _take_logs(self, request: Any) -> None:
        for record in request.resource_logs[0].scope_logs[0].log_records:
            self.logs.append((record, attributes(record)))


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in of.attributes}


def plain(value: Any) -> Any:
    """Return the Python value of an AnyValue."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {each.key: plain(each.value) for each in value.kvlist_value.values}
    return getattr(value, kind)
