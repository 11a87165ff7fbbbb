"""OTLP: a receiver that goes and comes has all windows; refusals and waits are as it says."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from app.exporters.backlog import Backlog
from app.exporters.delivery import Outputs
from app.exporters.openmetrics import families as of
from app.exporters.otlp import encoding, names
from bpf.errors import UsageError
from probes.control.controller import Controller
from probes.flow.records import FlowDirection
from probes.monitor.state import PolicyState
from probes.reports import OutputConfig, OutputState, OutputStatus
from probes.snapshot import Event, Item, Snapshot
from tests.app.exporters.alerts.receivers import FINDING, Web, health, transitions, web
from tests.app.exporters.certificates import certificate
from tests.app.exporters.otlp.received import Received, attributes
from tests.app.exporters.receiver import PACKETS, flows, until

NAME = "otel"


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as plane:
        plane.outputs = Outputs(plane)
        yield plane


def add(controller: Controller, server: Web, options: str = "") -> None:
    url = f"otlp+http://127.0.0.1:{server.port}/in?name={NAME}{options}"
    controller.outputs.add(OutputConfig(url))


def at(number: int) -> Snapshot:
    """A window of ten flows, a second after the one before."""
    return replace(flows(number, 10), end_utc_ns=(1_700_000_000 + number) * 10**9)


def status(controller: Controller) -> OutputStatus:
    return next(each for each in controller.outputs.status() if each.name == NAME)


def is_settled(controller: Controller, records: int) -> bool:
    now = status(controller)
    return now.delivered + sum(now.undelivered.values()) == records


def test_a_receiver_that_restarts_has_every_window_once(controller: Controller) -> None:
    with web() as server:
        add(controller, server, "&every=1s&flows=on")
        for number in (1, 2):
            controller.publish(at(number))
        assert until(partial(is_settled, controller, 22))
        before = [(path, headers, body) for path, headers, body in server.got]
    for number in (3, 4, 5):
        controller.publish(at(number))
    assert until(lambda: status(controller).state is OutputState.FAILING)
    with web(server.port) as again:
        # Five windows, and the event of the failure; the event of its end comes.
        assert until(lambda: status(controller).queued == 0)
        ended = controller.outputs.remove(NAME)
        again.got = before + again.got
        found = Received.by(again)
    assert (ended.delivered, ended.undelivered) == (5 * 11 + 2, {})
    assert found.sum("probedeck.flow.packet.count") == 50 * PACKETS
    assert found.sum("probedeck.flow.io") == 50 * 100 * PACKETS
    assert len(found.times["probedeck.flow.packet.count"]) == 5, "windows that waited have values"
    sent = [own for record, own in found.logs if record.event_name == "probedeck.flow"]
    assert sum(own["probedeck.packets"] for own in sent) == 50 * PACKETS
    assert len(sent) == len(found.logs), "no record is about this output"
    assert {path for path, _, _ in again.got} == {"/in/v1/metrics", "/in/v1/logs"}
    assert again.got[0][1]["content-type"] == "application/x-protobuf"


def test_refused_records_are_counted_and_others_follow(controller: Controller) -> None:
    partly = ExportLogsServiceResponse()
    partly.partial_success.rejected_log_records = 4
    partly.partial_success.error_message = "too old"
    events: list[Item] = []
    controller.listen(events.append)
    with web() as server:
        add(controller, server, "&every=1h&flows=on")
        server.bodies = [partly.SerializeToString(), b"fine"]
        controller.publish(flows(1, 10))
        # Two events tell the refusal, and its end.
        assert until(partial(is_settled, controller, 11 + 2))
        now = status(controller)
        assert (now.delivered, now.undelivered) == (7 + 2, {"refused": 4})
        assert "does not take records: 4 log records: too old" in repr(events)
        server.statuses = [400, 200]
        controller.publish(flows(2, 10))
        assert until(partial(is_settled, controller, 2 * (11 + 2)))
        assert status(controller).undelivered == {"refused": 14}
        answer = ExportMetricsServiceResponse()
        answer.partial_success.rejected_data_points = 3
        server.bodies = [answer.SerializeToString()]
        # The last values of both tables are refused in part.
        assert controller.outputs.remove(NAME).undelivered["refused"] == 16


@pytest.mark.parametrize(
    ("code", "header", "wanted"),
    [
        (503, "30", (29, 31)), (429, formatdate(4e9, usegmt=True), (300, 301)),
        (502, "soon", (0.2, 0.3)), (504, formatdate(1e9), (0.2, 0.3)),
    ],
)  # fmt: skip
def test_the_receiver_says_when_to_come_again(
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    header: str,
    wanted: tuple[float, float],
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Backlog, "pause", lambda _, seconds: waits.append(seconds))
    with web() as server:
        server.statuses, server.headers = [code, 200], {"retry-after": header}
        add(controller, server, "&flows=on")
        controller.publish(at(1))
        # The window, the event of the failure, and of its end.
        assert until(partial(is_settled, controller, 11 + 2))
        assert controller.outputs.remove(NAME).undelivered == {}
        assert len(waits) == 1
        assert Received.by(server).sum("probedeck.flow.packet.count") == 10 * PACKETS, "once"
        assert wanted[0] <= waits[0] <= wanted[1]


def test_without_a_receiver_everything_is_undelivered(controller: Controller) -> None:
    with web() as server:
        pass
    add(controller, server, "&every=1h")
    controller.publish(flows(1, 3))
    # The table counts as delivered until its values can't be sent.
    assert until(partial(is_settled, controller, 1))
    ended = controller.outputs.remove(NAME)
    assert (ended.delivered, ended.undelivered) == (0, {"ended": 1})


def test_events_and_alarms_are_log_records(controller: Controller) -> None:
    with web() as server:
        add(controller, server)
        event = Event.now("error", "path", "hop 3 is gone", "10.0.0.1", "begin", 12.5, "ms")
        repeated = health("begin", "monitor", "policy flood")
        armed = PolicyState.ARMED, PolicyState.ACTIVE
        for item in (event, repeated, transitions(armed)):
            controller.publish(item)
        assert until(partial(is_settled, controller, 4))
        controller.outputs.remove(NAME)
        found = Received.by(server)
    (first, own), (alarm, evidence) = found.logs
    assert (first.event_name, first.body.string_value) == ("probedeck.event", "hop 3 is gone")
    assert (first.severity_number, first.severity_text) == (17, "error")
    assert first.time_unix_nano == event.utc_ns
    assert own == {
        "probedeck.event.source": "path", "probedeck.event.subject": "10.0.0.1",
        "probedeck.event.phase": "begin", "probedeck.event.value": 12.5,
        "probedeck.event.unit": "ms",
    }  # fmt: skip
    assert alarm.event_name == "probedeck.policy"
    assert alarm.body.string_value.startswith(f"flood: {FINDING}, since ")
    assert evidence["probedeck.event.evidence"]["found_packets"] == 77
    events = {dict(key)["probedeck.severity"]: value for (name, key), value in found.values.items()
              if name == "probedeck.event.count"}  # fmt: skip
    assert events == {"info": 0, "warning": 1, "error": 1}, "as /metrics has them"


def test_a_receiver_of_metrics_gets_no_logs_and_trusts_its_authority(
    controller: Controller, tmp_path: Path
) -> None:
    own = certificate(tmp_path)
    with web(tls=own.server()) as server:
        url = f"otlp+https://127.0.0.1:{server.port}?name={NAME}&logs=off&ca={own.cert}"
        controller.outputs.add(OutputConfig(url))
        controller.publish(health("begin"))
        controller.publish(transitions((PolicyState.ARMED, PolicyState.ACTIVE)))
        assert until(partial(is_settled, controller, 2))
        assert controller.outputs.remove(NAME).undelivered == {}
        assert [path for path, _, _ in server.got] == ["/v1/metrics"]
        assert Received.by(server).sum("probedeck.event.count") == 1


def test_a_flow_has_the_attributes_of_the_conventions(controller: Controller) -> None:
    item = flows(1, 2)
    rows = item.rows.copy()
    rows["interface"], rows["version"], rows["direction"] = b"eth0", 4, FlowDirection.EGRESS
    rows["protocol"] = 6, 1
    rows["source"][:], rows["destination"][:] = _raw("192.0.2.1"), _raw("192.0.2.9")
    rows["source_port"], rows["destination_port"] = 40001, 443
    with web() as server:
        add(controller, server, "&flows=on")
        controller.publish(replace(item, rows=rows))
        assert until(partial(is_settled, controller, 3))
        controller.outputs.remove(NAME)
        (tcp, own), (_, icmp) = Received.by(server).logs
    assert tcp.time_unix_nano == item.end_utc_ns
    wanted = {
        "network.interface.name": "eth0", "network.io.direction": "transmit",
        "network.type": "ipv4", "network.transport": "tcp", "source.address": "192.0.2.1",
        "source.port": 40001, "destination.address": "192.0.2.9", "destination.port": 443,
        "probedeck.packets": PACKETS, "probedeck.bytes": 100 * PACKETS,
    }  # fmt: skip
    assert wanted.items() <= own.items()
    assert "destination.port" not in icmp, "443 is type and code"
    assert icmp["probedeck.destination_port"] == 443


def test_kinds_of_metrics_keep_their_values() -> None:
    rtt, histogram = ("192.0.2.1", "3"), ("p", "egress", "sizes", "")
    samples = [
        of.FLOW_PACKETS("eth0", "in", "tcp", value=(1 << 53) + 1),
        of.PEAK("eth0", "out", value=12.5),
        of.POLICY_STATE("flood", "armed", value=1),
        of.PATH_RTT(*rtt, value=0.002, quantile="0.5"),
        of.PATH_RTT(*rtt, value=7, suffix="_count"),
        of.PATH_RTT(*rtt, value=0.021, suffix="_sum"),
        *(of.METRIC_HISTOGRAM(*histogram, value=value, suffix="_bucket", le=high)
          for high, value in (("10.0", 2), ("100.0", 5), ("+Inf", 6))),
    ]  # fmt: skip
    metrics = {each.name: each for each in encoding.metrics_of(samples, 5, 9)}
    total = metrics["probedeck.flow.packet.count"].sum
    (point,) = total.data_points
    assert (total.is_monotonic, total.aggregation_temporality) == (True, 2)
    assert (point.as_int, point.start_time_unix_nano, point.time_unix_nano) == ((1 << 53) + 1, 5, 9)
    assert attributes(point) == {
        "network.interface.name": "eth0", "network.io.direction": "receive",
        "network.transport": "tcp",
    }  # fmt: skip
    assert metrics["probedeck.flow.peak"].gauge.data_points[0].as_double == 12.5
    assert not metrics["probedeck.policy.state"].sum.is_monotonic
    (summary,) = metrics["probedeck.path.rtt"].summary.data_points
    assert (summary.count, summary.sum) == (7, 0.021)
    assert [(each.quantile, each.value) for each in summary.quantile_values] == [(0.5, 0.002)]
    assert attributes(summary) == {"destination.address": "192.0.2.1", "probedeck.hop": "3"}
    (buckets,) = metrics["probedeck.metric.histogram"].histogram.data_points
    assert (list(buckets.explicit_bounds), list(buckets.bucket_counts)) == ([10, 100], [2, 3, 1])
    assert buckets.count == 6


def test_each_family_has_one_name_and_stands_in_the_document() -> None:
    found = [names.metric_of(family) for family in of.FAMILIES]
    assert len({name for name, _ in found}) == len(of.FAMILIES)
    page = Path("docs/otlp.md").read_text()
    for family, (name, unit) in zip(of.FAMILIES, found, strict=True):
        assert f"| `{family.series}` | `{name}` | `{unit}` |" in page
    for label in {label for family in of.FAMILIES for label in family.labels}:
        assert f"`{names.attribute(label)}`" in page, label


def test_a_file_has_headers_of_requests(controller: Controller, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("api-key: hush\nX-Scope: 3\n")
    file.chmod(0o600)
    with web() as server:
        add(controller, server, f"&headers={file}")
        controller.publish(health("begin"))
        assert until(partial(is_settled, controller, 1))
        assert server.got[0][1].items() >= {"api-key": "hush", "x-scope": "3"}.items()
        assert "hush" not in repr(controller.outputs.status())
    file.write_text("api-key hush")
    with pytest.raises(UsageError, match="a line is not NAME: VALUE"):
        add(controller, server, f"&headers={file}&name=other")


def _raw(text: str) -> Any:
    return np.frombuffer(ipaddress.ip_address(text).packed.ljust(16, b"\0"), "u1")
