"""The outputs `otlp+http://` and `otlp+https://`: values of metrics at times, and log records."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from app.exporters.alerts.exporter import AlertFilter
from app.exporters.backlog import ENDED
from app.exporters.exporter import DeliveryError, RejectedError, words_of
from app.exporters.host import ExportHost
from app.exporters.http_post import HttpPost, secret_of
from app.exporters.openmetrics.exposition import control_samples
from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.otlp import encoding
from app.exporters.otlp.options import OtlpOptions
from app.outputs.view import is_table
from app.outputs.views import FLOWS
from bpf.errors import UsageError
from probes.snapshot import Event, Item, Snapshot

_LATER = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)  # fmt: skip
"""The only statuses that OTLP/HTTP 1.9 has sent again."""
_HEADERS = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
_MOST_RECORDS = 2000
"""Log records of a request."""
REFUSED = "refused"


class OtlpExporter:
    """Sends the values of all metrics after each `every` seconds of windows, and log records at
    once. An event is a record. A table is one, which the metrics count, and one for each of its log
    records."""

    def __init__(self, host: ExportHost) -> None:
        options = host.config.options
        assert isinstance(options, OtlpOptions)
        self._host = host
        self._logs, self._flows = options.logs, options.flows
        self._every_ns = int(options.every * 1e9)
        self._headers = _HEADERS | (_lines(options.headers) if options.headers else {})
        self._http = HttpPost(host.config, options.ca, _LATER)
        self._resource = encoding.resource(os.uname().nodename, options.instance)
        self._state = MetricState(options.owners)
        self._filter = AlertFilter(host.config.name, "info", ())
        self._counted: Item | None = None
        """The item that the metrics have counted last."""
        self._start_ns = self._end_ns = self._sent_ns = 0
        """UTC start of the first window, end of the newest one, and its end when values were sent
        last."""
        self._unsent = 0
        """Tables that are delivered, and counted by no values that were sent."""

    def records(self, item: Item) -> int:
        if isinstance(item, Event):
            return 1
        return 1 + (len(item.rows) if self._takes_flows(item) else self._alarms(item))

    def open(self) -> None:
        """Each request makes a connection."""

    def deliver(self, item: Item, skip: int) -> None:
        if item is not self._counted:
            if isinstance(item, Snapshot):
                self._begin(item)
            self._state.take(item)
            self._counted = item
        records = islice(self._records(item), skip, None)
        while batch := [*islice(records, _MOST_RECORDS)]:
            self._send_logs(batch, skip)
            skip += len(batch)
        self._unsent += isinstance(item, Snapshot)

    def tick(self) -> None:
        # Without a next window, or with long ones, the clock says when values are due.
        if self._unsent and time.time_ns() - self._end_ns >= self._every_ns:
            self._send_metrics()

    def close(self) -> None:
        try:
            if self._unsent:
                self._send_metrics()
        finally:
            if self._unsent:
                self._host.lost(self._unsent, ENDED)

    def _begin(self, item: Snapshot) -> None:
        """Send the values up to the windows before this one, if they are due."""
        end_ns = item.end_utc_ns
        self._start_ns = self._start_ns or item.start_utc_ns
        self._sent_ns = self._sent_ns or self._start_ns
        if self._end_ns < end_ns:
            if self._unsent and self._end_ns - self._sent_ns >= self._every_ns:
                self._send_metrics()
            self._end_ns = end_ns

    def _send_metrics(self) -> None:
        """Raises DeliveryError, OSError and RejectedError."""
        now = control_samples(self._host.plane)
        metrics = [
            *encoding.metrics_of(self._state.samples(), self._start_ns, self._end_ns),
            *encoding.metrics_of(now, self._start_ns, time.time_ns()),
        ]
        request = encoding.metrics_request(self._resource, metrics)
        answer = ExportMetricsServiceResponse()
        try:
            self._send("/v1/metrics", request, answer)
            if refused := answer.partial_success.rejected_data_points:
                text = f"{refused} values of metrics: {answer.partial_success.error_message}"
                raise RejectedError(text, 0)
        except RejectedError as error:
            self._host.lost(self._unsent, REFUSED)
            self._sent_ns, self._unsent = self._end_ns, 0
            raise RejectedError(error.message, 0) from None
        self._sent_ns, self._unsent = self._end_ns, 0

    def _send_logs(self, batch: list[LogRecord], sent: int) -> None:
        """Send records of an item; `sent` are before them. Raises DeliveryError, RejectedError."""
        answer, size = ExportLogsServiceResponse(), len(batch)
        try:
            self._send("/v1/logs", encoding.logs_request(self._resource, batch), answer)
        except RejectedError as error:
            raise RejectedError(error.message, size, sent) from None
        except DeliveryError as error:
            raise DeliveryError(error.message, sent, error.wait_s) from None
        except OSError as error:
            raise DeliveryError(words_of(error), sent) from None
        if refused := min(answer.partial_success.rejected_log_records, size):
            text = f"{refused} log records: {answer.partial_success.error_message}"
            raise RejectedError(text, refused, sent + size - refused)

    def _send(self, path: str, request: Message, answer: Message) -> None:
        """Send a request, and read its answer."""
        body = gzip.compress(request.SerializeToString(), 1)
        text = self._http.send(path, body, self._headers)
        try:
            answer.ParseFromString(text)
        except DecodeError:
            # A receiver that answers in words has taken everything.
            answer.Clear()

    def _takes_flows(self, item: Item) -> bool:
        return self._flows and is_table(item, "flow", "")

    def _takes_event(self, event: Event) -> bool:
        # A receiver without logs would refuse the event of each refusal, too.
        return self._logs and not self._filter.leaves_out(event)

    def _alarms(self, item: Snapshot) -> int:
        return self._filter.count(item) if self._logs else 0

    def _records(self, item: Item) -> Iterator[LogRecord]:
        if isinstance(item, Snapshot) and self._takes_flows(item):
            for row in FLOWS.records(item, nested=True):
                assert isinstance(row, dict)
                yield encoding.flow_record(row, item.end_utc_ns)
        elif self._takes_event(item) if isinstance(item, Event) else self._alarms(item):
            yield from map(encoding.alert_record, self._filter.alerts(item))


def _lines(path: str) -> dict[str, str]:
    """Return the headers in a file. Raises UsageError."""
    found = {}
    for line in secret_of("headers", path).decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if not (colon and name.strip()):
            raise UsageError(f"option headers: {path}: a line is not NAME: VALUE")
        found[name.strip().lower()] = value.strip()
    return found
