"""The engines of the demo: goflow2, Kafka, ClickHouse's engine and Prometheus, on the collector."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from app.lab import netns
from bpf.errors import ProbedeckError
from deploy.demo.network import COLLECTOR, Network, Process, running

FLEET = Path(__file__).parents[1] / "fleet"
EXPORT_PORT, METRICS_PORT = 4739, 9464
STORE = "http://127.0.0.1:8123"
_GOFLOW, _PROMETHEUS = "http://127.0.0.1:8080", "http://127.0.0.1:9090"
_TOPIC = "flow-messages"
_START_S = 60.0
_KAFKA = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
log.dirs={logs}
"""
_CLUSTER = "cHJvYmVkZWNrLWRlbW8tMQ"
_SCRAPE = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: probedeck
    static_configs: [{{targets: [{targets}]}}]
"""


class Engines:
    """The running engines, by their HTTP interfaces."""

    def __init__(self, space: int) -> None:
        self._space = space

    def ask(self, url: str, body: bytes | None = None) -> bytes:
        """Raises OSError."""
        with netns.inside(self._space), urllib.request.urlopen(url, body, timeout=10) as answer:
            found: bytes = answer.read()
        return found

    def has_kafka(self) -> bool:
        """Whether Kafka takes connections. Raises OSError if not."""
        with netns.inside(self._space), socket.create_connection(("127.0.0.1", 9092), 1.0):
            return True

    def query(self, text: str) -> list[dict[str, Any]]:
        """Rows of a query to ClickHouse's engine."""
        answer = self.ask(f"{STORE}/?default_format=JSONEachRow", text.encode())
        return [json.loads(line) for line in answer.splitlines()]

    def in_topic(self) -> dict[str, int]:
        """Records, packets and bytes that Kafka delivered."""
        found: dict[str, int] = json.loads(self.ask(f"{STORE}/kafka"))
        return found

    def decoded(self) -> int:
        """Records of flows that goflow2 decoded."""
        lines = self.ask(f"{_GOFLOW}/metrics").decode().splitlines()
        name = "goflow2_flow_process_nf_flowset_records_total"
        return sum(
            int(float(line.rsplit(" ", 1)[1]))
            for line in lines
            if line.startswith(name) and 'type="DataFlowSet"' in line
        )

    def scraped(self, metric: str) -> int:
        """The sum of a metric over all hosts, as Prometheus last saw it."""
        answer = json.loads(self.ask(f"{_PROMETHEUS}/api/v1/query?query=sum({metric})"))
        return sum(int(float(each["value"][1])) for each in answer["data"]["result"])


def until(what: str, holds: Callable[[], bool], *needs: Process) -> None:
    """Wait until something holds.

    Raises ProbedeckError after some time, and if a process that it `needs` has ended.
    """
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if any(process.poll() is not None for process in needs):
            raise ProbedeckError(f"{what} did not happen: its process has ended")
        try:
            if holds():
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.2)
    raise ProbedeckError(f"{what} did not happen within {_START_S:g} s")


@contextmanager
def engines(made: Network, demo: Path, work: Path) -> Iterator[Engines]:
    """Run all engines during the block. `demo` has their packages, `work` their files."""
    found = Engines(made.collector)
    java = ["java", "-XX:-UsePerfData", "-Xmx384m", "-cp", f"{demo}/kafka/*"]
    settings = work / "kafka.properties"
    settings.write_text(_KAFKA.format(logs=work / "kafka"))
    store = [demo / "venv/bin/python", Path(__file__).with_name("store.py"), _TOPIC]
    targets = ",".join(f"'{address}:{METRICS_PORT}'" for address in made.managed.values())
    scrape = work / "prometheus.yml"
    scrape.write_text(_SCRAPE.format(targets=targets))
    with ExitStack() as stack:

        def start(name: str, *command: object) -> Process:
            words = list(map(str, command))
            return stack.enter_context(running(made.collector, words, work / f"{name}.log"))

        form = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        subprocess.run([*java, *form], check=True, capture_output=True)
        kafka = start("kafka", *java, "kafka.Kafka", settings)
        until("the start of Kafka", found.has_kafka, kafka)
        clickhouse = start("store", *store, "8123", FLEET / "clickhouse/schema.sql")
        goflow2 = start(
            "goflow2", demo / "goflow2", "-listen", f"netflow://{COLLECTOR}:{EXPORT_PORT}",
            "-mapping", FLEET / "goflow2/mapping.yaml", "-transport", "kafka",
            "-transport.kafka.brokers", "127.0.0.1:9092", "-transport.kafka.topic", _TOPIC,
            "-transport.kafka.flushfreq", "500ms", "-addr", "127.0.0.1:8080",
        )  # fmt: skip
        prometheus = start(
            "prometheus", "prometheus", f"--config.file={scrape}",
            f"--storage.tsdb.path={work / 'prometheus'}", "--web.listen-address=127.0.0.1:9090",
        )  # fmt: skip
        until("the start of goflow2", lambda: bool(found.ask(f"{_GOFLOW}/metrics")), goflow2)
        answers = [{"one": 1}]
        until(
            "the start of ClickHouse", lambda: found.query("SELECT 1 AS one") == answers, clickhouse
        )
        ready = f"{_PROMETHEUS}/-/ready"
        until("the start of Prometheus", lambda: bool(found.ask(ready)), prometheus)
        yield found
