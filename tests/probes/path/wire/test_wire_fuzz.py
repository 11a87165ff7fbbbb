"""Whatever an application sends: it leaves unchanged and once, with a sound probe or with none."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from bpf.compiler import Compiler
from probes.path import targets
from probes.path.options import Guard, Order
from probes.path.records import ProbeOutcome
from tests.probes.path.wire.frames import (
    CHECKSUM_AT,
    ECHO,
    ECHO_REQUEST,
    HOST,
    ID_FACTOR,
    PEER,
    TCP,
    UDP,
    Packet,
    Tracing,
    Wire,
    ip_packet,
    ones_sum,
    packed,
    tracing_options,
    wire,
    with_checksum,
)

SEED = 20261121
PACKETS = 2000
VLAN, SERVICE_VLAN = b"\x81\x00\x00\x07", b"\x88\xa8\x00\x07"
OTHERS = (2, 47, 50, 132, 136)
"""IGMP, GRE, ESP, SCTP, UDP-Lite."""
EXTENSIONS = (0, 43, 44, 60)
FIRST = 0x6C00
"""Number of the first probe: with the seed, a later probe would have the mark of a marked frame."""


@dataclass
class Case:
    """A frame, and the probe that it must cause."""

    frame: bytes
    tags: int
    probed: bool
    checksum: tuple[int, int] = (0, 0)
    marks: frozenset[int] = frozenset()
    """Numbers whose probes have the marks of the frame, modulo 65536, if it is marked."""


@pytest.fixture(scope="module", params=list(Order), ids=str)
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[tuple[Wire, Tracing]]:
    with wire(ethernet=True) as opened, pytest.MonkeyPatch.context() as patch:
        opened.offload(True)
        patch.setattr(targets, "secrets", SimpleNamespace(randbits=lambda bits: FIRST))
        tracing = Tracing(compiler, opened.name, tracing_options(order=request.param))
        for destination in PEER.values():
            tracing.probe.trace(destination)
        tracing.force(*range(1, 31))
        yield opened, tracing
        tracing.close()


def transport(rng: random.Random, version: int, protocol: int) -> tuple[bytes, bool]:
    """Headers of any sense and none, any length; whether a probe may have them."""
    size = rng.choice([rng.randrange(0, 40), rng.randrange(40, 1300)])
    data = bytearray(rng.randbytes(size))
    if protocol == TCP and size > 13:
        if rng.random() < 0.8:
            data[13] &= ~7
        return bytes(data), size >= 20 and not data[13] & 7
    if protocol == UDP and size > 5:
        if rng.random() < 0.6:
            data[4:6] = struct.pack(">H", size)
        return bytes(data), size >= 8
    if protocol == ECHO[version] and size:
        if rng.random() < 0.8:
            data[0] = ECHO_REQUEST[version]
        return bytes(data), size >= 8 and data[0] == ECHO_REQUEST[version]
    return bytes(data), False


def is_marked(protocol: int, payload: bytes, ttl: int) -> bool:
    """Whether it looks like the TCP probe of another host's tracer."""
    return (
        (protocol, len(payload)) == (TCP, 20)
        and ttl <= 32
        and not payload[13] & 0x20
        and any(payload[18:])
    )


def any_case(rng: random.Random) -> Case:
    version = rng.choice([4, 6])
    common = [TCP, UDP, ECHO[version]]
    protocol = rng.choice(common * 5 + list(OTHERS))
    payload, probed = transport(rng, version, protocol)
    addresses = packed(HOST[version]) + packed(PEER[version])
    tos, ident, ttl = rng.randrange(256), rng.randrange(1 << 16), rng.randrange(1, 256)
    odd = rng.random() < 0.3
    if version == 4:
        options = rng.randbytes(4 * rng.randrange(1, 11)) if odd and rng.random() < 0.5 else b""
        fragment = rng.choice([0x2000, 0x2001, 0x0001, 0x1FFF]) if odd and not options else 0
        fragment |= rng.choice([0, 0x4000])
        size = 20 + len(options)
        total = size + len(payload) if rng.random() < 0.9 else rng.randrange(1 << 16)
        ip = struct.pack(
            ">BBHHHBBH", 0x40 | size // 4, tos, total, ident, fragment, ttl, protocol, 0
        )
        ip = with_checksum(ip + addresses + options, 10)
        probed = probed and not options and not fragment & 0x3FFF
    else:
        extension = bytes([protocol, 0]) + bytes(6) if odd else b""
        kind = rng.choice(EXTENSIONS) if odd else protocol
        size = 40 + len(extension)
        ip = struct.pack(">IHBB", 6 << 28 | tos << 20 | ident, len(extension + payload), kind, ttl)
        ip += addresses + extension
        probed = probed and not extension
    marked = is_marked(protocol, payload, ttl)
    probed = probed and not marked
    tags = rng.choice([0] * 6 + [1, 2, 3])
    link = rng.randbytes(12).replace(b"\x01", b"\x02")
    link += rng.choice([VLAN, SERVICE_VLAN]) * tags + struct.pack(
        ">H", 0x0800 if version == 4 else 0x86DD
    )
    case = Case(link + ip + payload, tags, probed and tags <= 2)
    if marked:
        # The field behind the first 4 bytes is the identification of IPv4, and read of any version.
        identification = int.from_bytes(ip[4:6], "big") * pow(ID_FACTOR, -1, 1 << 16)
        case.marks = frozenset((identification & 0xFFFF, int.from_bytes(payload[18:20], "big")))
    at = CHECKSUM_AT.get(protocol, 0)
    if protocol in (TCP, UDP) and len(payload) >= at + 2 and rng.random() < 0.5:
        # Left to the interface: the field has the pseudo header's sum.
        seed = ones_sum(addresses + struct.pack(">II", len(payload), protocol))
        start = len(link + ip)
        frame = case.frame[: start + at] + struct.pack(">H", seed) + case.frame[start + at + 2 :]
        case.frame, case.checksum = frame, (start, at)
    return case


def test_any_packet_leaves_once_and_unchanged(host: tuple[Wire, Tracing]) -> None:
    """S3.15, S3.16: fragments, options, extension headers, tags, and headers of no sense."""
    opened, tracing = host
    rng = random.Random(SEED)
    caused = 0
    marks: set[int] = set()
    for _ in range(PACKETS):
        case = any_case(rng)
        version = case.frame[14 + 4 * case.tags] >> 4
        number = tracing.sequence(PEER[version])
        marks |= case.marks
        opened.send(case.frame, case.checksum)
        packets = opened.sent()
        assert len(packets) == 1 + case.probed, case
        app = packets[-1 if tracing.options.order is Order.PROBE else 0]
        if any(case.checksum):
            assert app.partial
            assert app.checksum_is_right or app.protocol in EXTENSIONS
            start = sum(case.checksum)
            whole = app.link + app.ip
            assert whole[:start] == case.frame[:start]
            assert whole[start + 2 :] == case.frame[start + 2 :]
        else:
            assert app.link + app.ip == case.frame
        if case.probed:
            packets.remove(app)
            (probe,) = packets
            # Each CPU skips the numbers of the last marked frame that it saw.
            sequence = tracing.sequence(PEER[version]) - 1
            assert {n & 0xFFFF for n in range(number, sequence)} <= marks
            expected = app.probe(probe.ttl, sequence, Guard.DISCARD)
            assert probe.without_checksum() == expected.without_checksum()
            assert (probe.link, probe.partial) == (app.link, app.partial)
            assert probe.header_is_right
            assert probe.checksum_is_right == (probe.protocol in (TCP, UDP))
            caused += 1
    assert caused > PACKETS / 4


@pytest.mark.parametrize("protocol", [TCP, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("version", [4, 6])
def test_the_largest_segment(host: tuple[Wire, Tracing], version: int, protocol: int) -> None:
    """64 KB that the interface is to cut: cut down, the probe is one packet like any other."""
    opened, tracing = host
    addresses = packed(HOST[version]) + packed(PEER[version])
    head = 20 if protocol == TCP else 8
    size = 65_535 - 40 - head - 14
    header = bytearray(random.Random(SEED).randbytes(head))
    if protocol == TCP:
        header[12:14] = b"\x50\x10"
    else:
        header[4:6] = struct.pack(">H", head + size)
    seed = ones_sum(addresses + struct.pack(">II", head + size, protocol))
    at = CHECKSUM_AT[protocol]
    header[at : at + 2] = struct.pack(">H", seed)
    if version == 4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + head + size, 1, 0, 64, protocol, 0)
        ip = with_checksum(ip + addresses, 10)
    else:
        ip = struct.pack(">IHBB", 6 << 28, head + size, protocol, 64) + addresses
    link = bytes(12) + (b"\x08\x00" if version == 4 else b"\x86\xdd")
    sequence = tracing.sequence(PEER[version])
    opened.send(link + ip + header + bytes(size), (len(link + ip), at), segment=1400)
    packets = opened.sent()
    assert len(packets) == 2
    app = packets.pop(-1 if tracing.options.order is Order.PROBE else 0)
    (probe,) = packets
    assert (app.segment, len(app.ip)) == (1400, len(ip) + head + size)
    assert app.checksum_is_right
    expected = app.probe(probe.ttl, sequence, Guard.DISCARD)
    assert probe.without_checksum() == expected.without_checksum()
    assert (probe.segment, probe.partial, probe.checksum_is_right) == (0, True, True)


@pytest.mark.parametrize("version", [4, 6])
def test_a_checksum_of_zero(host: tuple[Wire, Tracing], version: int) -> None:
    """If UDP's checksum is 0, the packet carries 0xffff: 0 means "no checksum"."""
    opened, tracing = host
    addresses = packed(HOST[version]), packed(PEER[version])
    sequence = tracing.sequence(PEER[version])
    datagram = struct.pack(">HHHH", 0, 9, 58, 0) + bytes(50)
    cause = Packet(ip_packet(*addresses, UDP, datagram, 64))
    bare = Packet(cause.probe(1, sequence, Guard.DISCARD).without_checksum())
    rest = ones_sum(b"".join(addresses) + struct.pack(">II", len(bare.transport), UDP))
    port = 0xFFFF - ones_sum(struct.pack(">H", rest) + bare.transport)
    link = bytes(12) + (b"\x08\x00" if version == 4 else b"\x86\xdd")
    opened.send(link + ip_packet(*addresses, UDP, struct.pack(">H", port) + datagram[2:], 64))
    (probe,) = (packet for packet in opened.sent() if packet.ttl < 31)
    assert probe.checksum == b"\xff\xff"
    assert probe.checksum_is_right


def test_a_checksum_deeper_inside(host: tuple[Wire, Tracing]) -> None:
    """The kernel cannot cut a tunnel's packet so short if its inner checksum is left to the
    interface.

    The packet leaves once, and its probe's row says dropped here. If the application's packet goes
    first, its sender gets the error: its packet became the probe.
    """
    opened, tracing = host
    tracing.force(1)
    sequence = tracing.sequence(PEER[4])
    addresses = packed(HOST[4]), packed(PEER[4])
    datagram = struct.pack(">HHHH", 4789, 4789, 208, 0) + bytes(200)
    frame = bytes(12) + b"\x08\x00" + ip_packet(*addresses, UDP, datagram, 64)
    first = tracing.options.order is Order.APPLICATION
    with pytest.raises(OSError, match="No buffer") if first else contextlib.nullcontext():
        opened.send(frame, (34 + 50, 16))
    (packet,) = opened.sent()
    assert packet.partial
    assert packet.transport[:58] == frame[34:92]
    rows = tracing.rows()
    (row,) = rows[(rows["version"] == 4) & (rows["sequence"] == sequence)]
    assert row["outcome"] == ProbeOutcome.DROPPED
    tracing.force(*range(1, 31))
