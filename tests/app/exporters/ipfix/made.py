"""Made-up windows of flows of every kind, and exporters of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from app.exporters.host import ExportHost
from app.exporters.ipfix.exporter import FlowExporter, ipfix, netflow9
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.outputs.owners.owner_join import with_owners
from app.outputs.view import OwnedFlows
from bpf.arrays import Array
from probes.control_plane import ControlPlane
from probes.flow.records import FLOW
from probes.reports import OutputConfig
from probes.snapshot import Snapshot
from probes.tunnels import TUNNELS
from tests.support.console.owners import POSTGRES, WEB, owner_tables, sockets_for
from tests.support.paths import packed

SECOND = 10**9


def flow(source: str, destination: str, **fields: object) -> Array:
    """A flow (1,) of TCP, with further fields."""
    row = np.zeros(1, FLOW)
    row["source"], row["destination"] = packed(source), packed(destination)
    row["version"], row["protocol"] = 6 if ":" in source else 4, 6
    row["source_port"], row["destination_port"], row["packets"], row["bytes"] = 40000, 443, 1, 66
    for name, value in fields.items():
        row[name] = value
    return row


def every_kind() -> Array:
    """Flows of both versions of IP, of ICMP, VLAN and tunnels; and numbers of 64 bits."""
    four, six = ("10.0.0.5", "192.0.2.9"), ("2001:db8::5", "2001:db8::9")
    return np.concatenate((
        flow(*four, packets=2**40 + 3, bytes=2**50 + 7, tcp_flags=0x1B, tos=0x2E, direction=1),
        flow(*six, packets=5, bytes=500, tcp_flags=0x10, vlan=4094),
        flow(*four, protocol=1, source_port=77, destination_port=8 * 256, packets=2, bytes=196),
        flow(*six, protocol=58, source_port=9, destination_port=1 * 256 + 4, direction=1),
        flow(*four, protocol=17, tunnel=TUNNELS["vxlan"], tunnel_id=0xABCDEF),
        flow(*six, protocol=17, tunnel=TUNNELS["gtp"], tunnel_id=0xFFFFFFFE),
        flow(*four, protocol=17, tunnel=TUNNELS["gre"], tunnel_id=7),
        flow(*four, protocol=2, source_port=0, destination_port=0),
    ))  # fmt: skip


def many(count: int, first: int = 0) -> Array:
    """Flows (count,) of TCP, IPv4, each another one."""
    rows = flow("10.0.0.0", "192.0.2.9").repeat(count)
    numbers = np.arange(first, first + count)
    rows["source"][:, :4] = (0x0A000000 + numbers).astype(">u4").view("u1").reshape(count, 4)
    rows["packets"], rows["bytes"] = numbers % 9 + 1, numbers % 1400 + 60
    return rows


def window(rows: Array, number: int = 1, end_ns: int = 0, **of: Any) -> Snapshot:
    """A window of `lo` that ends now, or at a time of CLOCK_MONOTONIC."""
    now = time.monotonic_ns()
    end = end_ns or now
    end_utc = time.time_ns() + end - now
    if not rows["first_ns"].any():
        rows["first_ns"], rows["last_ns"] = end - SECOND // 2, end - SECOND // 4
    return Snapshot(
        "flow", "lo", number, 1, end - SECOND, end, end_utc, rows, of.get("losses", {}), 0.1, 0, 0
    )


def owned_window() -> OwnedFlows:
    """Conversations of two owners, and one without; each has both directions.

    One has the same port at both ends.
    """
    rows = np.concatenate([
        flow(*ends, source_port=ports[0], destination_port=ports[1], direction=direction)
        for port in (40001, 443, 40003)
        for direction, ends, ports in (
            (1, ("10.0.0.5", "192.0.2.9"), (port, 443)), (0, ("192.0.2.9", "10.0.0.5"), (443, port))
        )
    ])  # fmt: skip
    flows = window(rows)
    talks = sockets_for(
        rows, np.ones(3, int), rtt_us=1500, min_rtt_us=900, retransmitted=3, limit=6
    )
    talks = np.sort(talks, order="near_port")[:2]
    talks["owner"] = 2, 1
    joined = with_owners(flows, owner_tables(flows, talks, (WEB, POSTGRES)))
    assert isinstance(joined, OwnedFlows)
    return joined


def totals(rows: Array) -> tuple[int, int, int]:
    """Return flows, packets and bytes."""
    return len(rows), int(rows["packets"].sum()), int(rows["bytes"].sum())


@dataclass
class Output:
    """An exporter as a run has it."""

    url: str
    ledger: Ledger = field(default_factory=Ledger)
    lost: list[tuple[int, str]] = field(default_factory=list)

    def exporter(self) -> FlowExporter:
        config = parse(OutputConfig(self.url, "out"))
        host = ExportHost(
            config, cast("ControlPlane", None), self.ledger,
            lambda rows, reason: self.lost.append((rows, reason)),
        )  # fmt: skip
        return (netflow9 if config.kind.scheme == "netflow9" else ipfix)(host)
