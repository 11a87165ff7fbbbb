"""A monitor and its applications that see only what a test runs through their hook."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Self

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.config.model import ProbeConfig, parse
from probes.hooks import Hooks
from probes.hooks.interface_hook import InterfaceHook
from probes.monitor.applications.application import ApplicationProbe
from probes.monitor.engine import PolicyTransition
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE
from probes.program.loading import compile_probe
from probes.snapshot import Snapshot

PASS, DROP = 2, 1
COUNTING = """\
#include "application.h"

struct total {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_ARRAY(totals, struct total, 1);

APPLICATION(counting) {
    u32 zero = 0;
    struct total *total = totals.lookup(&zero);
    if (!total)
        return;
    total->packets += packet->packets;
    total->bytes += packet->bytes;
}
"""
"""Policies that an operator might write."""


def frame(
    source: str = "192.0.2.1", destination: str = "198.51.100.2", layer: Any = None, size: int = 60
) -> bytes:
    """A frame with a transport header, UDP 1000 -> 53 where none is given."""
    ip = IPv6(src=source, dst=destination) if ":" in source else IP(src=source, dst=destination)
    made = bytes(Ether(src="02::1", dst="02::2") / ip / (layer or UDP(sport=1000, dport=53)))
    return made.ljust(size, b"\0")


def tcp(sport: int = 1000, dport: int = 80, flags: str = "S") -> Any:
    return TCP(sport=sport, dport=dport, flags=flags)


def udp(sport: int = 1000, dport: int = 53) -> Any:
    return UDP(sport=sport, dport=dport)


def ping() -> Any:
    return ICMP()


ARP = bytes(12) + b"\x08\x06" + bytes(46)


def records(*packets: tuple[Any, ...], version: int = 1, count: int | None = None) -> Any:
    """A datagram's payload: of (source, destination, sport, dport, protocol, bytes) each."""
    head = struct.pack("!HH", version, len(packets) if count is None else count)
    body = b"".join(
        struct.pack(
            "!4s4sHHIQHHHBB", source, destination, sport, dport, 7, 123456, 3, size, 99, protocol, 2
        )
        for source, destination, sport, dport, protocol, size in packets
    )
    return UDP(sport=5000, dport=6343) / Raw(head + body)


def application(name: str, source: str = COUNTING, **more: Any) -> ProbeConfig:
    """Its metric is the map `totals`."""
    metric = {"name": "totals", "map": "totals", "snapshot": True, "agg": "sum"}
    ingress = {"interface": "lo", "hook": "monitor", "source": source, "metrics": [metric]}
    return parse({"name": name, "interval": 0, "ingress": {**ingress, **more}}, "test")


class Bed:
    """Everything on the loopback interface's XDP hook, if `options` name no other, and attached
    to nothing."""

    def __init__(self, compiler: Compiler, options: MonitorOptions) -> None:
        self.compiler = compiler
        self.hooks = Hooks(lambda point: None)
        self.changes: list[PolicyTransition] = []
        options = replace(options, ingress=options.ingress or Hook.XDP)
        self.monitor = MonitorProbe(compiler, self.hooks.find("lo"), self.hooks, options)
        self.monitor.changed = self.changes.extend
        self.applications: dict[str, ApplicationProbe] = {}

    def add(self, configured: ProbeConfig) -> ApplicationProbe:
        with compile_probe(self.compiler, configured, self.hooks) as compiled:
            probe = ApplicationProbe(self.compiler, compiled, self.hooks)
        self.applications[configured.name] = probe
        return probe

    def remove(self, name: str) -> None:
        self.applications.pop(name).close()

    def set(self, text: str) -> None:
        """A policy in its short form."""
        policy = Policy.parse_short(text)
        self.monitor.set_policy(policy, policy.run)

    def run(self, packet: bytes, repeat: int = 1, context: bytes = b"") -> int:
        """The verdict."""
        point = self.monitor.points()["ingress"]
        assert isinstance(point, InterfaceHook)
        return prog_test_run(point.chain.fd, packet, repeat=repeat, context=context).verdict

    def window(self) -> dict[str, Any]:
        """Tables of the window that so ends, by name."""
        items = self.monitor.export()
        tables = {each.metric: each.rows for each in items if isinstance(each, Snapshot)}
        assert set(tables) <= {METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE}
        return tables

    def counted(self, name: str) -> tuple[int, int]:
        """Packets and bytes of a `counting` application's window that so ends."""
        self.applications[name].export()
        (table,) = self.applications[name].latest
        value = table.rows["value"][0]
        return int(value["packets"]), int(value["bytes"])

    def close(self) -> None:
        for name in tuple(self.applications):
            self.remove(name)
        self.monitor.close()
        assert not self.hooks.in_use()

    def reset(self) -> None:
        """Remove policies and applications, and end the window: a new test finds it as made."""
        for policy in self.monitor.policies():
            self.monitor.remove_policy(policy.policy.name)
        for name in tuple(self.applications):
            self.remove(name)
        self.monitor.export()
        self.changes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
