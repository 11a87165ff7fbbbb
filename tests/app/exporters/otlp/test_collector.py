"""The Collector of OpenTelemetry has what the controller counted, also after a restart."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from probes.flow.filter import FlowFilter
from probes.flow.options import FlowOptions
from probes.reports import OutputConfig, OutputState
from probes.snapshot import Item, Snapshot
from probes.tunnels import Tunnels
from tests.app.exporters.openmetrics.test_prometheus import free_address
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


@pytest.mark.slow
def test_its_totals_are_the_controllers_through_a_restart(tmp_path: Path) -> None:
    address, totals = free_address(), Totals()
    windows: list[Item] = []
    options = FlowOptions(0.2, None, FlowFilter.parse(""), Tunnels.OUTER)
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        running.enter_context(collector(tmp_path, address))
        left, right = stack.enter_context(veth_pair())
        controller = stack.enter_context(Controller())
        outputs = controller.outputs = Outputs(controller)
        controller.listen(totals.add)
        controller.listen(windows.append)
        outputs.add(OutputConfig(f"otlp+http://{address}?every=300ms&flows=on"))
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
        stack.enter_context(collector(tmp_path, address))
        send()
        with netns.inside(left.ns):
            controller.remove("flow")
        assert becomes(lambda: outputs.status()[0].queued == 0, 20)
        ended = outputs.remove(outputs.status()[0].name)
        assert ended.undelivered == {}
    found = received(tmp_path)
    flows = [own for record, own in found.logs if record.event_name == "probedeck.flow"]
    # The columns `packets` and `bytes` of windows.csv.
    each = [counted(item) or (0, 0) for item in windows if isinstance(item, Snapshot)]
    for at, unit, metric in ((0, "packets", "packet.count"), (1, "bytes", "io")):
        total = sum(sums[at] for sums in each)
        assert found.sum(f"probedeck.flow.{metric}") == total
        assert sum(own[f"probedeck.{unit}"] for own in flows) == total
    assert totals.packets >= 900
    assert found.sum("probedeck.packet.lost") == 0
