"""From samples, alerts and flows to the messages of OTLP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from app import VERSION
from app.exporters.alerts.exporter import Alert
from app.exporters.openmetrics.families import MetricFamily, Sample
from app.exporters.otlp import names

_SCOPE = InstrumentationScope(name="probedeck", version=VERSION)
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_SEVERITIES = {
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warning": SeverityNumber.SEVERITY_NUMBER_WARN,
    "error": SeverityNumber.SEVERITY_NUMBER_ERROR,
}
_LARGEST = 1 << 63
_PARTS = {"quantile", "le"}
"""Labels of a part of a point, not of its series."""


def resource(host: str, instance: str) -> Resource:
    """Return the resource of a run on a host."""
    return Resource(
        attributes=_attributes(
            {
                "service.name": "probedeck", "service.version": VERSION,
                "service.instance.id": instance or host, "host.name": host,
            }.items()
        )
    )  # fmt: skip


def metrics_of(samples: Iterable[Sample], start_ns: int, utc_ns: int) -> Iterator[Metric]:
    """Yield the metrics of samples. Sums begin at `start_ns`; all times are UTC."""
    found: dict[MetricFamily, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.family, []).append(sample)
    times: dict[str, Any] = {"start_time_unix_nano": start_ns, "time_unix_nano": utc_ns}
    for family, of in found.items():
        name, unit = names.metric_of(family)
        made = Metric(name=name, unit=unit, description=family.help)
        if family.kind == "gauge":
            made.gauge.data_points.extend(_number(each, times) for each in of)
        elif family.kind == "summary":
            made.summary.data_points.extend(_summary(each, times) for each in _points(of))
        elif family.kind == "histogram":
            made.histogram.aggregation_temporality = _CUMULATIVE
            made.histogram.data_points.extend(_histogram(each, times) for each in _points(of))
        else:
            # Infos and sets of states are sums, as OpenTelemetry's rules for OpenMetrics say.
            made.sum.aggregation_temporality = _CUMULATIVE
            made.sum.is_monotonic = family.kind == "counter"
            made.sum.data_points.extend(_number(each, times) for each in of)
        yield made


def metrics_request(of: Resource, metrics: Iterable[Metric]) -> ExportMetricsServiceRequest:
    scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url=names.SCHEMA_URL)
    whole = ResourceMetrics(resource=of, scope_metrics=[scope], schema_url=names.SCHEMA_URL)
    return ExportMetricsServiceRequest(resource_metrics=[whole])


def logs_request(of: Resource, records: Iterable[LogRecord]) -> ExportLogsServiceRequest:
    scope = ScopeLogs(scope=_SCOPE, log_records=records, schema_url=names.SCHEMA_URL)
    whole = ResourceLogs(resource=of, scope_logs=[scope], schema_url=names.SCHEMA_URL)
    return ExportLogsServiceRequest(resource_logs=[whole])


def alert_record(alert: Alert) -> LogRecord:
    """Return the log record of an event, or of a transition of a policy."""
    utc_ns = int(np.datetime64(alert.time.removesuffix("Z"), "ns").astype("i8"))
    evidence = {key: value for key, value in alert.evidence.items() if value not in (None, "")}
    fields = {
        "source": alert.source, "subject": alert.subject, "phase": alert.phase,
        "value": alert.value, "unit": alert.unit, "evidence": evidence or None,
    }  # fmt: skip
    return LogRecord(
        time_unix_nano=utc_ns,
        observed_time_unix_nano=utc_ns,
        severity_number=_SEVERITIES[alert.severity],
        severity_text=alert.severity,
        event_name="probedeck.policy" if evidence else "probedeck.event",
        body=_any(alert.text),
        attributes=_attributes(
            (names.attribute(f"event.{name}"), value)
            for name, value in fields.items()
            if value not in (None, "")
        ),
    )


def flow_record(row: Mapping[str, Any], utc_ns: int) -> LogRecord:
    """Return the log record of a row of the table `flows`, of a window that ended at `utc_ns`."""
    return LogRecord(
        time_unix_nano=utc_ns, observed_time_unix_nano=utc_ns, event_name="probedeck.flow",
        severity_number=_SEVERITIES["info"], attributes=_attributes(names.flow(row)),
    )  # fmt: skip


def _points(samples: Iterable[Sample]) -> Iterator[Sequence[Sample]]:
    """Yield the samples of each point of a summary or histogram."""
    found: dict[tuple[str, ...], list[Sample]] = {}
    for each in samples:
        own = tuple(value for label, value in each.labels.items() if label not in _PARTS)
        found.setdefault(own, []).append(each)
    yield from found.values()


def _number(sample: Sample, times: Mapping[str, Any]) -> NumberDataPoint:
    value, attributes = sample.value, _labels(sample)
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return NumberDataPoint(as_int=value, attributes=attributes, **times)
    return NumberDataPoint(as_double=value, attributes=attributes, **times)


def _summary(samples: Sequence[Sample], times: Mapping[str, Any]) -> SummaryDataPoint:
    point = SummaryDataPoint(attributes=_labels(samples[0]), **times)
    for each in samples:
        if each.suffix == "_count":
            point.count = int(each.value)
        elif each.suffix == "_sum":
            point.sum = each.value
        else:
            point.quantile_values.add(quantile=float(each.labels["quantile"]), value=each.value)
    return point


def _histogram(samples: Sequence[Sample], times: Mapping[str, Any]) -> HistogramDataPoint:
    """The samples' values are sums over all smaller buckets, too; the last one is of all."""
    bounds = sorted((float(each.labels["le"]), int(each.value)) for each in samples)
    sums = [total for _, total in bounds]
    counts = [after - before for before, after in zip([0, *sums], sums, strict=False)]
    return HistogramDataPoint(
        attributes=_labels(samples[0]), count=sums[-1], bucket_counts=counts,
        explicit_bounds=[high for high, _ in bounds[:-1]], **times,
    )  # fmt: skip


def _labels(sample: Sample) -> Any:
    own = {label: value for label, value in sample.labels.items() if label not in _PARTS}
    return _attributes(names.labels(own))


def _attributes(of: Iterable[tuple[str, Any]]) -> Any:
    """Return KeyValues as dictionaries: protobuf takes these three times faster than messages."""
    return [{"key": name, "value": _any(value)} for name, value in of]


def _any(value: object) -> Any:
    """Return an AnyValue as a dictionary."""
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return {"int_value": value}
    if isinstance(value, (int, float)):
        return {"double_value": value}
    if isinstance(value, Mapping):
        return {"kvlist_value": {"values": _attributes(value.items())}}
    if isinstance(value, (list, tuple)):
        return {"array_value": {"values": list(map(_any, value))}}
    return {"string_value": str(value)}
