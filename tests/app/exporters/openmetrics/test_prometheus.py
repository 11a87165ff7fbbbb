"""The real Prometheus scrapes a real controller: its sums are the controller's."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.exporters.openmetrics.metric_state import MetricState
from app.lab import netns
from app.run.totals import Totals
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.monitor.options import MonitorOptions
from probes.snapshot import Item, Snapshot
from tests.app.api.conftest import token_files
from tests.app.exporters.scraped import tool
from tests.support.sight import becomes
from tests.support.veth import veth_pair

DEPLOYED = Path("deploy/prometheus")


class Prometheus:
    """A running Prometheus on a free port of loopback."""

    def __init__(self, address: str) -> None:
        self._address = address

    def is_up(self) -> bool:
        """Whether it has scraped its target."""
        with contextlib.suppress(OSError):
            return bool(self.query("up == 1"))
        return False

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def value(self, text: str) -> float:
        """Return the value of the only series of a query; NaN without one."""
        found = self.query(text)
        return float(found[0]["value"][1]) if len(found) == 1 else float("nan")


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Prometheus]:
    """Run Prometheus with the deployed configuration, but another target and scrape interval."""
    program, address = tool("prometheus"), free_address()
    text = (DEPLOYED / "prometheus.yml").read_text()
    for pattern, value in (
        (r"(?<=scrape_interval: ).*", "500ms"),
        (r"(?<=scrape_timeout: ).*", "500ms"),
        (r"(?<=evaluation_interval: ).*", "1s"),
        (r"(?<=credentials_file: ).*", str(directory / "read_token")),
        (r"(?<=targets: ).*", f"['{target}']"),
        (r"(?<=- )probedeck.rules.yml", str((DEPLOYED / "probedeck.rules.yml").resolve())),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, pattern
    (directory / "prometheus.yml").write_text(text)
    with (directory / "log").open("w") as log:
        child = subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(address)
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_sums_are_the_controllers_to_the_packet(tmp_path: Path) -> None:
    target = free_address()
    tokens = token_files(tmp_path) | {"listen": target}
    totals = Totals()
    windows: list[Item] = []
    options = FlowOptions(0.2)
    with contextlib.ExitStack() as stack:
        # Prometheus makes its first scrape five seconds after its start.
        scraper = stack.enter_context(prometheus(tmp_path, target))
        left, right = stack.enter_context(veth_pair())
        with netns.inside(left.ns):
            controller = stack.enter_context(Controller())
            metrics = MetricState()
            controller.listen(metrics.take)
            controller.listen(totals.add)
            controller.listen(windows.append)
            controller.start(FLOW_PROBE, left.ifname, options)
            controller.watch_metrics(left.ifname, MonitorOptions(interval=0.2))
        stack.enter_context(ApiListener(controller, Api("1", socket="", **tokens), None, metrics))
        assert becomes(scraper.is_up, 30), (tmp_path / "log").read_text()
        with netns.inside(right.ns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(1000):
                sender.sendto(bytes(number), (left.ipv4, 9))
        with netns.inside(left.ns):
            controller.remove("flow")
            controller.remove("monitor")
        flows = [item for item in windows if isinstance(item, Snapshot) and item.probe == "flow"]
        sent = sum(int(item.rows["packets"].sum()) for item in flows)
        assert sent == totals.packets >= 1000
        size = sum(int(item.rows["bytes"].sum()) for item in flows)
        seen = totals.seen

        def agree() -> bool:
            return (
                scraper.value("sum(probedeck_flow_packets_total)") == sent
                and scraper.value("sum(probedeck_flow_bytes_total)") == size
                and scraper.value("sum(probedeck_monitor_packets_total)") == seen
                and scraper.value('probedeck_probe_windows_total{probe="flow"}') == len(flows)
                and scraper.value("sum(probedeck_lost_packets_total)") == 0
            )

        assert becomes(agree, 10), scraper.query('{__name__=~"probedeck_.*"}')
        assert not scraper.query('ALERTS{alertstate="firing"}'), "a healthy host raises no alert"
