"""Flows to a collector: records per second, and the cost of a window of 25,000 flows.

    python -I -m bench.export [--flows N] [--rounds N]

Each round sends one window of IPv4 and IPv6 flows to a process on 127.0.0.1 that only reads. CPU
times are of the exporter's thread; the kernel delivers datagrams of 127.0.0.1 in it. The columns:
elapsed time with the pauses between datagrams, CPU time, records per second of both.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import cast

import numpy as np

from app.exporters.host import ExportHost
from app.exporters.ipfix.about import Encoder
from app.exporters.ipfix.exporter import FlowExporter, ipfix, netflow9
from app.exporters.ipfix.message import ObservationDomain
from app.exporters.ipfix.records import exported
from app.exporters.ipfix.templates import IPFIX
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from bench.support.report import Report
from bpf.arrays import Array
from probes.control_plane import ControlPlane
from probes.flow.records import FLOW
from probes.reports import OutputConfig
from probes.snapshot import Snapshot

WINDOW_S = 1.0
"""Length of a window by default: an exporter must be faster."""
_READER = """
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
made = socket.socket(socket.AF_INET, kind)
made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
made.bind(("127.0.0.1", 0))
if kind == socket.SOCK_STREAM:
    made.listen()
print(made.getsockname()[1], flush=True)
if kind == socket.SOCK_STREAM:
    made = made.accept()[0]
while made.recv(1 << 16):
    pass
"""


@contextmanager
def reader(transport: str) -> Iterator[int]:
    """Run a process that reads; yields its port."""
    command = [sys.executable, "-I", "-c", _READER, transport]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def rows_of(count: int) -> Array:
    """Flows (count,) of TCP, each fourth of IPv6."""
    rows, numbers = np.zeros(count, FLOW), np.arange(count)
    rows["source"][:, :4] = (0x0A000000 + numbers).astype(">u4").view("u1").reshape(count, 4)
    rows["destination"][:, :4] = 192, 0, 2, 9
    rows["version"] = np.where(numbers % 4, 4, 6)
    rows["protocol"], rows["source_port"], rows["destination_port"] = 6, numbers % 60000, 443
    rows["packets"], rows["bytes"], rows["direction"] = 10, 1000, numbers % 2
    return rows


def window(rows: Array) -> Snapshot:
    end = time.monotonic_ns()
    rows["first_ns"], rows["last_ns"] = end - 9 * 10**8, end - 10**8
    return Snapshot("flow", "lo", 1, 1, end - 10**9, end, time.time_ns(), rows, {}, 0, 0, 0)


def exporter(url: str) -> FlowExporter:
    config = parse(OutputConfig(url, "bench"))
    host = ExportHost(config, cast("ControlPlane", None), Ledger(), lambda rows, reason: None)
    return (netflow9 if config.kind.scheme == "netflow9" else ipfix)(host)


def cost(made: FlowExporter, flows: Snapshot) -> tuple[float, float]:
    """Return elapsed seconds and CPU seconds of a delivery."""
    elapsed, used = time.perf_counter(), time.thread_time()
    made.deliver(flows, 0)
    return time.perf_counter() - elapsed, time.thread_time() - used


def encoding(flows: Snapshot) -> float:
    """Return the CPU seconds of making messages, without sending them."""
    encoder, domain = Encoder(IPFIX, 1420), ObservationDomain("lo")
    used = time.thread_time()
    rows = exported(flows, owners=False)
    for message in encoder.messages(domain, np.ones(len(rows), int), rows):
        message.frame(IPFIX)
    return time.thread_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--flows", type=int, default=25_000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    flows = window(rows_of(options.flows))
    report = Report(f"a window of {options.flows} flows, median of {options.rounds}")
    spent = median(encoding(flows) for _ in range(options.rounds))
    report.row(
        "messages alone", f"{spent * 1e3:7.1f} ms CPU {options.flows / spent / 1e3:7.0f} k/s"
    )
    for name, transport, url in (
        ("ipfix over udp", "udp", "ipfix://127.0.0.1:{}"),
        ("netflow9 over udp", "udp", "netflow9://127.0.0.1:{}"),
        ("ipfix over tcp", "tcp", "ipfix://127.0.0.1:{}?transport=tcp"),
    ):
        with reader(transport) as port:
            made = exporter(url.format(port))
            made.open()
            costs = [cost(made, flows) for _ in range(options.rounds)]
            made.close()
        elapsed, used = (median(column) for column in zip(*costs, strict=True))
        text = (
            f"{elapsed * 1e3:7.1f} ms {used * 1e3:6.1f} ms CPU "
            f"{options.flows / elapsed / 1e3:7.0f} k/s {options.flows / used / 1e3:7.0f} k/s of CPU"
        )
        report.target(name, text, elapsed < WINDOW_S)
    report.end()


if __name__ == "__main__":
    main()
