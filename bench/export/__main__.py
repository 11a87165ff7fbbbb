"""Flows to a collector: the cost of a window of 25,000 flows.

Each round sends one window of IPv4 and IPv6 flows to a process on 127.0.0.1 that only reads. CPU
times are of the exporter's thread; the kernel delivers datagrams of 127.0.0.1 in it. The elapsed
time has the pauses between datagrams.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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
from bench.runner.cases import Case, Effort, Group, at_most
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


def messages(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    count = effort.of(25_000, 200)
    flows = window(rows_of(count))
    yield Case(f"messages of a window, {count} flows", "ms of CPU", lambda: encoding(flows) * 1e3)


def delivery(
    name: str, transport: str, url: str, stack: ExitStack, effort: Effort
) -> Iterator[Case]:
    """Yield the costs of delivering a window; the last case reads what the others measured."""
    count = effort.of(25_000, 200)
    flows = window(rows_of(count))
    made = exporter(url.format(stack.enter_context(reader(transport))))
    made.open()
    stack.callback(made.close)
    used = [0.0]

    def deliver() -> float:
        elapsed, spent = cost(made, flows)
        used.append(spent)
        return elapsed * 1e3

    yield Case(f"a window to a collector, {name}, {count} flows", "ms", deliver,
               goal=at_most(WINDOW_S * 1e3))  # fmt: skip
    yield Case(f"a window to a collector, {name}, {count} flows: CPU", "ms of CPU",
               lambda: used[-1] * 1e3)  # fmt: skip


GROUPS = (
    Group("messages", messages, 10),
    *(
        Group(name, partial(delivery, name, transport, url), 10)
        for name, transport, url in (
            ("ipfix over udp", "udp", "ipfix://127.0.0.1:{}"),
            ("netflow9 over udp", "udp", "netflow9://127.0.0.1:{}"),
            ("ipfix over tcp", "tcp", "ipfix://127.0.0.1:{}?transport=tcp"),
        )
    ),
)
