"""The monitor's counters against counting in Python, packet by packet."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bpf.compiler import Compiler
from probes.monitor.options import Input, MonitorOptions, Receiver
from tests.probes.monitor.bed import Bed, frame, records

TCP, UDP, ICMP, SCTP, GRE = 6, 17, 1, 132, 47
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10


class Sent(NamedTuple):
    """A packet of IPv4, or of IPv6 with the same numbers in its addresses."""

    version: int
    source: int
    destination: int
    protocol: int
    sport: int
    dport: int
    flags: int
    size: int

    def frame(self) -> bytes:
        ports = struct.pack("!HH", self.sport, self.dport)
        if self.protocol == TCP:
            ports += struct.pack("!IIBBHHH", 1, 1, 5 << 4, self.flags, 64, 0, 0)
        length = self.size - 14
        if self.version == 4:
            head = struct.pack("!BBHIBBHII", 0x45, 0, length, 0, 64, self.protocol, 0,
                               self.source, self.destination)  # fmt: skip
        else:
            head = struct.pack("!IHBBQQQQ", 6 << 28, length - 40, self.protocol, 64, 0x20010DB8,
                               self.source, 0x20010DB8, self.destination)  # fmt: skip
        kind = b"\x08\x00" if self.version == 4 else b"\x86\xdd"
        return (bytes(12) + kind + head + ports).ljust(self.size, b"\0")


def random_packets(number: int, seed: int = 1) -> list[Sent]:
    dice = random.Random(seed)
    return [
        Sent(
            dice.choice((4, 4, 6)),
            dice.randrange(40),
            dice.randrange(60),
            dice.choice((TCP, TCP, TCP, UDP, UDP, SCTP, GRE)),
            dice.randrange(1, 65536),
            dice.choice((53, 80, 443, 8080)),
            dice.randrange(256),
            dice.randrange(80, 200),
        )
        for _ in range(number)
    ]


@pytest.fixture
def bed(compiler: Compiler) -> Iterator[Bed]:
    with Bed(compiler, MonitorOptions(bits=10, seed="test")) as made:
        yield made


def test_tcp_flags_and_protocols_are_counted_exactly(bed: Bed) -> None:
    """S2.6: whatever other bits byte 13 has, and whatever stands there in other protocols."""
    packets = random_packets(300)
    for packet in packets:
        bed.run(packet.frame())
    (row,) = bed.window()["metrics"]
    flags = [packet.flags for packet in packets if packet.protocol == TCP]
    assert {name: row[name] for name in row.dtype.names[-6:]} == {
        "syn_packets": sum(each & (SYN | ACK) == SYN for each in flags),
        "syn_ack_packets": sum(each & (SYN | ACK) == SYN | ACK for each in flags),
        "fin_packets": sum(each & FIN == FIN for each in flags),
        "rst_packets": sum(each & RST == RST for each in flags),
        "fragment_packets": 0,
        "protocols": 4,
    }
    (row,) = bed.window()["metrics"]
    assert not any(row.tolist()), "each window counts for itself"


def test_flags_of_telemetry_are_those_of_tcp(compiler: Compiler) -> None:
    """S2.3: a switch's record has a flags byte for every protocol."""
    receiver = Receiver("192.0.2.1", 5000, "198.51.100.2", 6343)
    options = MonitorOptions(input=Input.TELEMETRY, receivers=(receiver,), seed="test")
    ends = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    with Bed(compiler, options) as made:
        made.run(frame(layer=records(*((*ends, 9, 80, p, 60) for p in (TCP, TCP, UDP, GRE)))))
        (row,) = made.window()["metrics"]
    assert (row["syn_packets"], row["rst_packets"], row["protocols"]) == (2, 0, 3)
