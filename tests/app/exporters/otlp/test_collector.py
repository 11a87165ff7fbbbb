"""Real receivers have what the controller counted, also after a restart."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from app.exporters.delivery import Outputs
from app.lab import netns
from app.outputs.views import counted
from app.run.totals import Totals
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.reports import OutputConfig, OutputState
from probes.snapshot import Item, Snapshot
from tests.app.exporters.openmetrics.test_prometheus import Prometheus, free_address
from tests.app.exporters.otlp.received import Received
from tests.support.sight import becomes
from tests.support.veth import veth_pair

CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "ADDRESS"}}}}
exporters: {file: {path: DIR/out.jsonl, append: true}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    metrics: {receivers: [otlp], exporters: [file]}
    logs: {receivers: [otlp], exporters: [file]}
"""


METRICS = ("probedeck.flow.packet.count", "probedeck.flow.io")


@contextmanager
def collector(directory: Path, address: str) -> Iterator[None]:
    """Run a collector that appends what it gets to a file; it ends with all of it written."""
    program = shutil.which("otelcol") or shutil.which("otelcol", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("otelcol is not installed (.ci/otelcol builds it)")
    config = directory / "config.yaml"
    config.write_text(CONFIG.replace("ADDRESS", address).replace("DIR", str(directory)))
    with (directory / "log").open("a") as log:
        child = subprocess.Popen([program, "--config", config], stdout=log, stderr=log)
    try:
        yield
    finally:
        child.terminate()
        child.wait()


def received(directory: Path) -> Received:
    found = []
    for line in (directory / "out.jsonl").read_text().splitlines():
        is_logs = line.startswith('{"resourceLogs')
        made = ExportLogsServiceRequest() if is_logs else ExportMetricsServiceRequest()
        path = "/v1/logs" if is_logs else "/v1/metrics"
        found.append((path, Parse(line, made).SerializeToString()))
    return Received(found)


@contextmanager
def victoria_metrics(directory: Path, address: str) -> Iterator[None]:
    """Run VictoriaMetrics, which keeps metrics in files."""
    program = Path(sys.executable).parent / "victoria-metrics"
    if not program.exists():
        pytest.skip("VictoriaMetrics is not there (.ci/otlp unpacks it)")
    with (directory / "log").open("a") as log:
        child = subprocess.Popen(
            [program, f"-storageDataPath={directory / 'values'}", f"-httpListenAddr={address}",
             "-search.latencyOffset=0s"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        child.terminate()
        child.wait()


def answers(store: Prometheus, query: str, value: float) -> bool:
    """Whether a query has this value; not while the program starts."""
    with suppress(OSError):
        return store.value(query) == value
    return False


Receiver = Callable[[Path, str], AbstractContextManager[None]]


def windows_through_a_restart(
    directory: Path, address: str, receiver: Receiver, url: str
) -> tuple[int, int]:
    """Count packets while a receiver ends and starts again.

    Returns the sums of the columns `packets` and `bytes` of windows.csv.
    """
    totals = Totals()
    windows: list[Item] = []
    options = FlowOptions(0.2)
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        running.enter_context(receiver(directory, address))
        left, right = stack.enter_context(veth_pair())
        controller = stack.enter_context(Controller())
        outputs = controller.outputs = Outputs(controller)
        controller.listen(totals.add)
        controller.listen(windows.append)
        outputs.add(OutputConfig(f"otlp+http://{address}{url}"))
        with netns.inside(left.ns):
            controller.start(FLOW_PROBE, left.ifname, options)

        def send() -> None:
            before = totals.packets
            with netns.inside(right.ns), socket.socket(type=socket.SOCK_DGRAM) as sender:
                for number in range(300):
                    sender.sendto(bytes(number), (left.ipv4, 9))
            assert becomes(lambda: totals.packets >= before + 300, 5)

        send()
        assert becomes(lambda: outputs.status()[0].delivered > 2, 10)
        running.close()
        send()
        assert becomes(lambda: outputs.status()[0].state is OutputState.FAILING, 10)
        stack.enter_context(receiver(directory, address))
        send()
        with netns.inside(left.ns):
            controller.remove("flow")
        assert becomes(lambda: outputs.status()[0].queued == 0, 20)
        ended = outputs.remove(outputs.status()[0].name)
        assert ended.undelivered == {}
    assert totals.packets >= 900
    each = [counted(item) or (0, 0) for item in windows if isinstance(item, Snapshot)]
    packets, size = map(sum, zip(*each, strict=True))
    return packets, size


@pytest.mark.slow
def test_a_collector_has_the_controllers_totals(tmp_path: Path) -> None:
    totals = windows_through_a_restart(tmp_path, free_address(), collector, "?every=300ms&flows=on")
    found = received(tmp_path)
    flows = [own for record, own in found.logs if record.event_name == "probedeck.flow"]
    for unit, metric, total in zip(("packets", "bytes"), METRICS, totals, strict=True):
        assert found.sum(metric) == total
        assert sum(own[f"probedeck.{unit}"] for own in flows) == total
    assert found.sum("probedeck.packet.lost") == 0


@pytest.mark.slow
def test_victoria_metrics_has_the_controllers_totals(tmp_path: Path) -> None:
    url = "/opentelemetry?every=300ms&logs=off"
    totals = windows_through_a_restart(tmp_path, free_address(), victoria_metrics, url)
    address = free_address()
    with victoria_metrics(tmp_path, address):
        store = Prometheus(address)
        for metric, total in zip(METRICS, totals, strict=True):
            query = f"sum(last_over_time({{__name__='{metric}'}}[10m]))"
            assert becomes(partial(answers, store, query, total), 10)
