"""Whole probes: valid packets of their flow, at the hops of a mask; and packets without a probe."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpf.arrays import Array
from bpf.compiler import Compiler
from probes.path.options import Guard, Order
from probes.path.records import DESTINATION_HOP, Altered, ProbeOutcome
from probes.path.targets import TracedDestination
from tests.probes.path.network import answer
from tests.probes.path.wire.frames import (
    ECHO,
    ECHO_REQUEST,
    HOST,
    PEER,
    ROUTER,
    TCP,
    UDP,
    Packet,
    Tracing,
    Wire,
    ip_packet,
    packed,
    tracing_options,
    wire,
    with_checksum,
)

ETHERTYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}
WHOLE_HOPS = (1, 2, 3)
LAST = 5


class Host:
    """A host that traces PEER, with masks of whole probes."""

    def __init__(self, opened: Wire, tracing: Tracing) -> None:
        self.wire, self.tracing = opened, tracing
        for destination in PEER.values():
            tracing.probe.trace(destination)

    def target(self, version: int) -> TracedDestination:
        (found,) = (t for t in self.tracing.probe._targets if t.destination.version == version)
        return found

    def send(self, version: int, protocol: int, transport: bytes) -> list[Packet]:
        """Send a packet to PEER; return what left."""
        self.wire.sent()
        ip = ip_packet(packed(HOST[version]), packed(PEER[version]), protocol, transport, 64)
        self.wire.send(bytes(12) + ETHERTYPE[version] + ip)
        return self.wire.sent()

    def answered(self) -> Array:
        """Rows of the answered probes since the last call."""
        rows = self.tracing.rows()
        answered = rows["outcome"] == ProbeOutcome.ANSWERED
        found: Array = rows[answered & (rows["hop"] < DESTINATION_HOP)]
        return found

    def probe_at(self, hop: int, version: int, protocol: int, transport: bytes) -> Packet:
        self.tracing.force(hop)
        kernel = self.target(version)._kernel
        kernel["whole"] = sum(1 << hop for hop in WHOLE_HOPS)
        found = self.send(version, protocol, transport)
        probe, application = found if found[0].ttl == hop else reversed(found)
        assert (probe.ttl, application.ttl) == (hop, 64)
        return probe


@pytest.fixture(scope="module", params=[
    (Guard.DISCARD, Order.PROBE), (Guard.CHECKSUM, Order.PROBE), (Guard.DISCARD, Order.APPLICATION),
], ids="-".join)  # fmt: skip
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[Host]:
    with wire(ethernet=True) as opened:
        tracing = Tracing(compiler, opened.name, tracing_options(*request.param))
        yield Host(opened, tracing)
        tracing.close()


def tcp(flags: int = 0x18, payload: bytes = b"data") -> bytes:
    """A segment with a timestamp option."""
    option = struct.pack(">BBBBII", 1, 1, 8, 10, 5, 6)
    return struct.pack(">HHIIBBHHH", 1000, 80, 77, 88, 8 << 4, flags, 9, 0, 0) + option + payload


def echo(version: int) -> bytes:
    return struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 5, 6) + random.randbytes(56)


@pytest.mark.parametrize("version", [4, 6])
def test_a_whole_tcp_probe_is_an_acknowledgement(host: Host, version: int) -> None:
    for hop in range(1, LAST + 1):
        probe = host.probe_at(hop, version, TCP, tcp())
        ports, sequence, acknowledgement = struct.unpack_from(">III", probe.transport)
        assert (ports, sequence, acknowledgement) == (1000 << 16 | 80, 77, 88)
        assert (len(probe.transport), probe.transport[12]) == (20, 5 << 4)
        assert probe.transport[14:16] == b"\0\x09"  # the window
        whole = hop in WHOLE_HOPS
        discards = host.tracing.options.guard is Guard.DISCARD
        assert probe.transport[13] == (0x10 if whole or not discards else 0)
        assert probe.checksum_is_right == (whole or discards)


@pytest.mark.parametrize("version", [4, 6])
def test_a_datagram_is_guarded_at_every_hop(host: Host, version: int) -> None:
    """A path may become shorter at any moment, and a whole datagram reach the application."""
    for hop in range(1, LAST + 1):
        probe = host.probe_at(hop, version, UDP, struct.pack(">HHHH", 9, 53, 108, 0) + bytes(100))
        (claimed,) = struct.unpack_from(">H", probe.transport, 4)
        assert (len(probe.transport), claimed) == (16, 108)
        assert probe.checksum_is_right == (host.tracing.options.guard is Guard.DISCARD)


@pytest.mark.parametrize("version", [4, 6])
def test_an_echo_keeps_its_checksum(host: Host, version: int) -> None:
    """Load balancers may hash it. It is right for a whole probe, and wrong for a guarded one."""
    for hop in range(1, LAST + 1):
        request = echo(version)
        probe = host.probe_at(hop, version, ECHO[version], request)
        addresses = packed(HOST[version]), packed(PEER[version])
        application = Packet(ip_packet(*addresses, ECHO[version], request, 64))
        assert probe.checksum == application.checksum
        assert probe.checksum_is_right == (hop in WHOLE_HOPS)


def test_a_row_says_whether_its_probe_was_whole(host: Host) -> None:
    host.tracing.rows()
    for version in (4, 6):
        for protocol, transport in ((TCP, tcp()), (UDP, struct.pack(">HHHH", 9, 53, 8, 0))):
            for hop in range(1, LAST + 1):
                probe = host.probe_at(hop, version, protocol, transport)
                host.wire.receive(answer(probe, ROUTER[version] % hop))
    rows = host.answered()
    assert len(rows) == 4 * LAST
    for row in rows:
        assert row["whole"] == (row["protocol"] != UDP and row["hop"] in WHOLE_HOPS)
        assert row["altered"] == 0


@pytest.mark.parametrize("version", [4, 6])
def test_a_checksum_that_the_interface_completes_is_known(host: Host, version: int) -> None:
    """Else each probe of such an interface would have an altered one."""
    host.wire.offload(True)
    host.tracing.rows()
    with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((PEER[version], 4000))
        for expected in (Altered(0), Altered.CHECKSUM):
            host.wire.sent()
            host.tracing.force(1)
            s.send(bytes(99))
            (probe,) = (packet for packet in host.wire.sent() if packet.ttl == 1)
            quote = bytearray(answer(probe, ROUTER[version] % 1))
            at = (20 if version == 4 else 40) + 8 + probe.header + 6
            quote[at] ^= bool(expected)
            host.wire.receive(with_icmp_checksum(bytes(quote), version))
            assert host.answered()["altered"].tolist() == [expected]
    host.wire.offload(False)


def with_icmp_checksum(ip: bytes, version: int) -> bytes:
    """An ICMP error whose checksum is right again."""
    start = 20 if version == 4 else 40
    source = ip[12:16] if version == 4 else ip[8:24]
    destination = ip[16:20] if version == 4 else ip[24:40]
    return ip_packet(source, destination, ECHO[version], ip[start:], 60)


def reply_to(request: Packet, source: str) -> bytes:
    kind = {4: 0, 6: 129}[request.version]
    payload = with_checksum(bytes([kind]) + request.transport[1:], 2)
    return ip_packet(packed(source), request.addresses[0], ECHO[request.version], payload, 61)


def replies_in(sock: socket.socket, version: int) -> int:
    """Echo replies that came to a raw socket since the last call."""
    count = 0
    try:
        while True:
            data = sock.recv(2000)
            count += data[20 if version == 4 else 0] == {4: 0, 6: 129}[version]
    except BlockingIOError:
        return count


@pytest.mark.parametrize("version", [4, 6])
def test_an_echo_reply_to_a_probe_is_not_the_hosts(host: Host, version: int) -> None:
    """It answers the probe: its hop reaches the destination. The application's own reply passes."""
    host.tracing.rows()
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_RAW, ECHO[version]) as sock:
        sock.setblocking(False)
        host.tracing.force(3)
        host.target(version)._kernel["whole"] = 1 << 3
        found = host.send(version, ECHO[version], echo(version))
        probe, application = sorted(found, key=lambda packet: packet.ttl)
        before = host.target(version).summary()
        host.wire.receive(reply_to(application, PEER[version]))
        assert replies_in(sock, version) == 1
        for _ in range(2):  # the network doubles it
            host.wire.receive(reply_to(probe, PEER[version]))
        host.wire.receive(reply_to(probe, ROUTER[version] % 9))  # it has another address, too
        assert replies_in(sock, version) == 0
        foreign = bytearray(probe.transport)
        foreign[14] ^= 1
        stranger = replace(probe, ip=probe.ip[: probe.header] + bytes(foreign))
        host.wire.receive(reply_to(stranger, PEER[version]))
        assert replies_in(sock, version) == 1  # another tracer's on this host
    after = host.target(version).summary()
    (row,) = host.answered()
    assert (row["outcome"], row["hop"], row["whole"]) == (ProbeOutcome.ANSWERED, 3, 1)
    assert bytes(row["responder"]) == packed(PEER[version]).ljust(16, b"\0")
    assert (row["ttl"], row["icmp_type"]) == (61, 0 if version == 4 else 129)
    assert (row["altered"], row["quoted_tos"]) == (0, row["tos"])
    size = len(reply_to(probe, PEER[version]))
    assert after.matched - before.matched == 1
    assert after.matched_bytes - before.matched_bytes == size
    assert after.unmatched - before.unmatched == 1


@pytest.mark.parametrize("version", [4, 6])
def test_a_syn_of_the_tracers_own_flow_causes_a_probe(host: Host, version: int) -> None:
    kernel = host.target(version)._kernel
    before = host.target(version).summary().unprobed.get("TCP SYN, FIN or RST", 0)
    host.tracing.force(2)
    kernel["whole"] = 1 << 2
    assert len(host.send(version, TCP, tcp(0x02))) == 1
    ports = int.from_bytes(struct.pack(">HH", 1000, 80), "little")
    kernel["own"] = TCP << 32 | ports
    for flags, wanted in ((0x02, 2), (0xC2, 2), (0x12, 2), (0x11, 1), (0x04, 1), (0x03, 1)):
        host.tracing.force(2)
        found = host.send(version, TCP, tcp(flags))
        assert len(found) == wanted, flags
        if wanted == 2:
            (probe,) = (packet for packet in found if packet.ttl == 2)
            assert (probe.transport[13], len(probe.transport)) == (flags & 0x12, 20)
            assert probe.checksum_is_right
    kernel["own"] = 0
    unprobed = host.target(version).summary().unprobed
    assert unprobed["TCP SYN, FIN or RST"] == before + 1  # own packets are not counted


def test_packets_without_a_probe_are_counted_by_reason(host: Host) -> None:
    def since(version: int) -> dict[str, int]:
        after = host.target(version).summary().unprobed
        return {k: v - before[version].get(k, 0) for k, v in after.items()}

    def raw(version: int, ip: bytes) -> None:
        host.wire.sent()
        host.tracing.force(1)
        host.wire.send(bytes(12) + ETHERTYPE[version] + ip)
        assert len(host.wire.sent()) == 1

    before = {version: host.target(version).summary().unprobed for version in (4, 6)}
    udp = struct.pack(">HHHH", 9, 53, 108, 0) + bytes(100)
    four = ip_packet(packed(HOST[4]), packed(PEER[4]), UDP, udp, 64)
    for fragment in (0x2000, 0x0001):
        raw(4, with_checksum(four[:6] + struct.pack(">H", fragment) + four[8:20], 10) + four[20:])
    longer = b"\x46" + four[1:2] + struct.pack(">H", len(four) + 4) + four[4:20] + b"\1\1\1\0"
    raw(4, with_checksum(longer, 10) + four[20:])
    gre = ip_packet(packed(HOST[4]), packed(PEER[4]), TCP, tcp(), 64)
    raw(4, with_checksum(gre[:9] + b"\x2f" + gre[10:20], 10) + gre[20:])
    raw(4, ip_packet(packed(HOST[4]), packed(PEER[4]), ECHO[4], bytes(30), 64))
    raw(4, four[:24])
    assert {k: v for k, v in since(4).items() if v} == {
        "fragments": 2, "IPv4 options": 1, "other protocols": 1, "other ICMP messages": 1,
        "headers cut short": 1,
    }  # fmt: skip
    six = ip_packet(packed(HOST[6]), packed(PEER[6]), UDP, udp, 64)
    for kind in (0, 43, 44, 60):
        header = bytes([UDP, 0]) + bytes(6)
        raw(6, six[:4] + struct.pack(">HB", len(udp) + 8, kind) + six[7:40] + header + six[40:])
    assert {k: v for k, v in since(6).items() if v} == {
        "fragments": 1, "IPv6 extension headers": 3,
    }  # fmt: skip


@pytest.mark.parametrize("version", [4, 6])
def test_the_destination_is_heard_and_reports_of_its_mtu_are_kept(host: Host, version: int) -> None:
    kernel = host.target(version)._kernel
    kernel["heard_ns"] = kernel["mtu"] = 0
    datagram = struct.pack(">HHHH", 53, 9, 8, 0)
    ip = ip_packet(packed(ROUTER[version] % 1), packed(HOST[version]), UDP, datagram, 64)
    host.wire.receive(ip)
    assert kernel["heard_ns"] == 0
    ip = ip_packet(packed(PEER[version]), packed(HOST[version]), UDP, datagram, 64)
    host.wire.receive(ip)
    first = int(kernel["heard_ns"][0])
    assert first > 0
    host.wire.receive(ip)
    assert kernel["heard_ns"] == first  # not for each packet
    cause = Packet(ip_packet(packed(HOST[version]), packed(PEER[version]), UDP, datagram, 64))
    host.wire.receive(
        answer(cause, ROUTER[version] % 2, (3, 4) if version == 4 else (2, 0), word=1380)
    )
    assert kernel["mtu"] == 1380
    assert kernel["mtu_reporter"][0].tobytes() == packed(ROUTER[version] % 2).ljust(16, b"\0")
    assert kernel["mtu_ns"] > first


def test_bytes_of_probes_and_answers_are_counted(host: Host) -> None:
    for version in (4, 6):
        before = host.target(version).summary()
        probe = host.probe_at(1, version, TCP, tcp())
        reply = answer(probe, ROUTER[version] % 1)
        host.wire.receive(reply)
        after = host.target(version).summary()
        assert after.sent - before.sent == after.matched - before.matched == 1
        assert after.sent_bytes - before.sent_bytes == len(probe.ip)
        assert after.matched_bytes - before.matched_bytes == len(reply)
