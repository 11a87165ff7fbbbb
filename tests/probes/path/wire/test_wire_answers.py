"""Answers to probes, byte by byte: matching, contents, and fate."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.path.records import Altered, ProbeOutcome
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
)

PASS = {Hook.XDP: 2, Hook.TC_INGRESS: 0xFFFFFFFF}
DROP = {Hook.XDP: 1, Hook.TC_INGRESS: 2}
LABELS = (0x12345101, 0x00FFF0FF, 0xABCDE13E, 0x11111202, 0x22222303)
LEAST = 54
"""Bytes of a frame that BPF_PROG_TEST_RUN takes: Ethernet and IPv6."""
PROTOCOLS = ["tcp", "udp", "echo"]


class Answering:
    """A traced host, and its ingress program for single frames."""

    def __init__(self, opened: Wire, tracing: Tracing, hook: Hook) -> None:
        self.wire, self.tracing, self.hook = opened, tracing, hook
        (self._fd,) = (p.chain.fd for p in tracing.hooks.in_use() if p.hook is hook)
        for destination in PEER.values():
            tracing.probe.trace(destination)

    def probe(self, version: int, protocol: int) -> Packet:
        """One in flight, its cause of 100 bytes' payload."""
        self.tracing.force(7)
        self.wire.sent()
        header = {
            TCP: struct.pack(">HHIIBBHHH", 1000, 80, 77, 88, 5 << 4, 0x18, 9, 0, 0),
            UDP: struct.pack(">HHHH", 1000, 53, 108, 0),
        }.get(protocol, struct.pack(">BBHHH", ECHO_REQUEST[version], 0, 0, 5, 6))
        ip = ip_packet(
            packed(HOST[version]), packed(PEER[version]), protocol, header + bytes(100), 64
        )
        self.wire.send(bytes(12) + (b"\x08\x00" if version == 4 else b"\x86\xdd") + ip)
        probe, _ = self.wire.sent()
        assert probe.ttl == 7
        return probe

    def verdict(self, ip: bytes, tags: bytes = b"") -> int:
        """The program's verdict on a packet."""
        kind = b"\x08\x00" if ip[0] >> 4 == 4 else b"\x86\xdd"
        return self.of_frame(bytes(12) + tags + kind + ip)

    def of_frame(self, frame: bytes) -> int:
        return prog_test_run(self._fd, frame).verdict

    def drops(self, ip: bytes, tags: bytes = b"") -> bool:
        """Whether it keeps the packet from the host; it passes it otherwise."""
        verdict = self.verdict(ip, tags)
        assert verdict in (PASS[self.hook], DROP[self.hook])
        return verdict == DROP[self.hook]

    def rows(self) -> Array:
        """What was answered."""
        rows = self.tracing.rows()
        # From 5 s on, user space asks on its own: by another key than the programs' here.
        for target in self.tracing.probe._targets:
            target._kernel["foreign_ns"] = 0
        return rows[rows["outcome"] <= ProbeOutcome.UNREACHABLE]


@pytest.fixture(scope="module", params=[Hook.XDP, Hook.TC_INGRESS], ids=["xdp", "tc"])
def host(request: pytest.FixtureRequest, compiler: Compiler) -> Iterator[Answering]:
    with wire(ethernet=True) as opened:
        options = replace(tracing_options(), rate=1000)  # as few slots as there can be
        tracing = Tracing(compiler, opened.name, options, request.param)
        yield Answering(opened, tracing, request.param)
        tracing.close()


def number(protocol: str, version: int) -> int:
    return {"tcp": TCP, "udp": UDP, "echo": ECHO[version]}[protocol]


def altered(ip: bytes, at: int, by: int = 0x40) -> bytes:
    data = bytearray(ip)
    data[at] ^= by
    return bytes(data)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_is_dropped_and_told_once(host: Answering, protocol: str, version: int) -> None:
    """S3.11, S3.16: whatever tags it has, and however much it quotes."""
    host.rows()
    least = 28 if version == 4 else 60 if protocol == "tcp" else 56
    tags = (b"", b"\x81\0\0\7", b"\x88\xa8\0\1\x81\0\0\7")
    for quote in (least, least + 1, 200):
        for tag in tags:
            probe = host.probe(version, number(protocol, version))
            packet = answer(probe, ROUTER[version] % 7, quote=quote)
            assert host.drops(packet, tag)
            assert host.drops(packet, tag)  # the network doubled it
            (row,) = host.rows()
            router = ipaddress.ip_address(ROUTER[version] % 7).packed
            assert bytes(row["responder"]) == router.ljust(16, b"\0")
            assert (row["hop"], row["outcome"], row["ttl"]) == (7, ProbeOutcome.ANSWERED, 60)
            assert (row["quoted_ttl"], row["label_count"]) == (1, 0)
            assert row["altered"] == 0
            assert row["received_ns"] >= row["sent_ns"]
            ports = {"tcp": (1000, 80), "udp": (1000, 53)}.get(
                protocol, (5, ECHO_REQUEST[version] << 8)
            )
            assert (row["source_port"], row["destination_port"]) == ports
            assert row["packet_bytes"] == (20 if version == 4 else 40) + 100 + (
                20 if protocol == "tcp" else 8
            )
    short = answer(
        host.probe(version, number(protocol, version)), ROUTER[version] % 7, quote=least - 1
    )
    assert not host.drops(short)
    assert not host.drops(answer(probe, ROUTER[version] % 7), b"\x81\0\0\7" * 3)


def fields_of(protocol: str, version: int) -> dict[str, int]:
    """Offsets of a byte of each field in an ICMP error about a probe."""
    outer = 20 if version == 4 else 40
    quote = outer + 8
    first = quote + (20 if version == 4 else 40)
    fields = {"type": outer, "code": outer + 1, "version": quote}
    fields |= {"protocol": quote + (9 if version == 4 else 6)}
    if version == 4:
        fields |= {"length": quote + 3, "identification": quote + 4}
        fields |= {"source": quote + 15, "destination": quote + 19}
    else:
        fields |= {"length": quote + 5, "source": quote + 23, "destination": quote + 39}
    if protocol == "echo":
        fields |= {"identifier": first + 5, "echo's sequence": first + 7}
    else:
        fields |= {"source port": first + 1, "destination port": first + 3}
    if protocol == "udp":
        fields["UDP length"] = first + 5
    if protocol == "tcp":
        fields |= {"TCP sequence": first + 5, "TCP acknowledgement": first + 9}
        fields |= {"urgent pointer": first + 18, "urgent pointer, low": first + 19}
    else:
        fields |= {"magic": first + 8, "magic, low": first + 11, "sequence": first + 12}
        fields |= {"sequence, low": first + 13, "tag": first + 14, "tag, low": first + 15}
    fields["checksum"] = first + {"tcp": 16, "udp": 6, "echo": 2}[protocol]
    return fields


OTHERS = {"type", "code", "version", "protocol", "destination"}
"""Fields without which a message is about something else."""
CHANGES = {
    "identification": Altered.IDENTIFICATION,
    "length": Altered.LENGTH,
    "UDP length": Altered.LENGTH,
    "source": Altered.SOURCE,
    "source port": Altered.SOURCE,
    "destination port": Altered.SOURCE,
    "identifier": Altered.SOURCE,
    "echo's sequence": Altered.SOURCE,
    "TCP sequence": Altered.SEQUENCE,
    "TCP acknowledgement": Altered.SEQUENCE,
    "checksum": Altered.CHECKSUM,
}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_to_something_else_is_not_touched(
    host: Answering, protocol: str, version: int
) -> None:
    """S3.16: a message about a packet that is alike but for one field is passed, and no answer."""
    host.rows()
    probe = host.probe(version, number(protocol, version))
    right = answer(probe, ROUTER[version] % 7)
    fields = fields_of(protocol, version)
    decisive = OTHERS | (set(fields) - set(CHANGES))
    if version == 4:
        decisive -= {"magic", "magic, low"}  # the rest proves it as in a quote of 8 bytes
    elif protocol == "tcp":
        decisive |= {"TCP sequence", "TCP acknowledgement"}
    for name in decisive:
        assert not host.drops(altered(right, fields[name])), name
    if version == 4:
        assert not host.drops(altered(right, 6, 0x20)), "a fragment of an answer"
        assert not host.drops(altered(right, 28, 3)), "options in the quote"
        short = answer(probe, ROUTER[version] % 7, quote=28)
        for name in set(fields) - {"checksum"}:
            assert fields[name] >= len(short) or not host.drops(altered(short, fields[name])), name
    assert not len(host.rows())
    # That is to say, but for these: fields that routers change.
    quote = 28 if version == 4 else 48
    passing = {"TTL": quote + (8 if version == 4 else 7), "class": quote + 1}
    changed = right
    for at in passing.values():
        changed = altered(changed, at, 0x10)
    assert host.drops(changed)
    assert host.rows()["altered"].tolist() == [0]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_changes_by_middleboxes_are_told(host: Answering, protocol: str, version: int) -> None:
    """The mark proves the answer; TCP's needs its sequence numbers or IPv4's identification."""
    host.rows()
    needed = ("TCP sequence", "TCP acknowledgement") if version == 6 else ()
    for name, at in fields_of(protocol, version).items():
        if name in CHANGES and name not in needed:
            probe = host.probe(version, number(protocol, version))
            assert host.drops(altered(answer(probe, ROUTER[version] % 7), at)), name
            assert host.rows()["altered"].tolist() == [CHANGES[name]], name


@pytest.mark.parametrize("protocol", ["udp", "echo"])
def test_beside_another_tracer_the_checksum_has_to_prove_a_short_quote(
    host: Answering, protocol: str
) -> None:
    """The checksum covers the mark, and only the mark differs."""
    (target,) = (t for t in host.tracing.probe._targets if t.destination.version == 4)
    host.rows()
    for foreign in (0, 1):
        target._kernel["foreign_ns"] = foreign
        right = answer(host.probe(4, number(protocol, 4)), ROUTER[4] % 7, quote=28)
        assert host.drops(altered(right, fields_of(protocol, 4)["checksum"])) == (not foreign)
        assert host.drops(right)
        assert len(host.rows()) == 1
    target._kernel["foreign_ns"] = 0


@pytest.mark.parametrize("version", [4, 6])
def test_two_changes_of_a_tcp_probe_leave_no_proof(host: Answering, version: int) -> None:
    host.rows()
    packet = answer(host.probe(version, TCP), ROUTER[version] % 7)
    fields = fields_of("tcp", version)
    for name in ("identification", "TCP sequence") if version == 4 else ("TCP sequence",):
        packet = altered(packet, fields[name])
    assert not host.drops(packet)
    assert not len(host.rows())


@pytest.mark.parametrize("version", [4, 6])
def test_unreachable_is_told_and_passed(host: Answering, version: int) -> None:
    host.rows()
    for kind in [(3, 0), (3, 1), (3, 3), (3, 13)] if version == 4 else [(1, 0), (1, 1), (1, 4)]:
        probe = host.probe(version, UDP)
        assert not host.drops(answer(probe, ROUTER[version] % 7, kind))
        (row,) = host.rows()
        assert row["outcome"] == ProbeOutcome.UNREACHABLE
        assert (row["icmp_type"], row["icmp_code"]) == kind
    for kind in [(3, 4), (11, 1), (12, 0), (5, 0)] if version == 4 else [(2, 0), (3, 1), (4, 0)]:
        assert not host.drops(answer(host.probe(version, UDP), ROUTER[version] % 7, kind))
        assert not len(host.rows())


def stack(*labels: int, more: bytes = b"") -> bytes:
    """An extension with one MPLS label stack (RFC 4950)."""
    entries = struct.pack(f">{len(labels)}I", *labels)
    return struct.pack(">HHHBB", 2 << 12, 0, 4 + len(entries), 1, 1) + entries + more


@pytest.mark.parametrize("version", [4, 6])
def test_label_stacks(host: Answering, version: int) -> None:
    """RFC 4884 and 4950: where the message says that they are, and where old routers put them."""
    host.rows()
    unit = 4 if version == 4 else 8

    def told(
        extension: bytes, at: int, *, says: bool = True, cut: int = 0, after: bytes = b""
    ) -> list[int]:
        probe = host.probe(version, UDP)
        packet = answer(
            probe, ROUTER[version] % 7, quote=at, words=at // unit * says, extension=extension
        )
        assert host.drops(packet[: len(packet) - cut] + after)
        (row,) = host.rows()
        return [int(label) for label in row["labels"][: row["label_count"]]]

    for count in range(1, 6):
        labels = list(LABELS[:count])
        assert told(stack(*labels), 128) == labels[:4]
        assert told(stack(*labels), 128, says=False) == labels[:4]
    assert told(stack(*LABELS[:2]), 64) == list(LABELS[:2])
    assert told(stack(*LABELS[:2]), 160) == list(LABELS[:2])
    interface = struct.pack(">HBBI", 8, 2, 1, 0)  # RFC 5837
    assert told(stack(LABELS[0], more=interface), 128) == [LABELS[0]]
    # Neither an extension of another kind nor half of one is a label.
    assert told(struct.pack(">HH", 2 << 12, 0) + interface, 128) == []
    assert told(stack(LABELS[0])[:8], 128) == []
    assert told(stack(LABELS[0])[:10], 128) == []
    assert told(stack(LABELS[0], LABELS[1]), 128, cut=2) == [LABELS[0]]
    padding = struct.pack(">I", LABELS[1])
    assert told(stack(LABELS[0], LABELS[1])[:12], 128, after=padding) == [LABELS[0]]
    assert told(altered(stack(LABELS[0]), 0, 0x30), 128) == []
    assert told(bytes(20), 128, says=False) == []


def test_options_before_an_answer(host: Answering) -> None:
    host.rows()
    packet = answer(host.probe(4, UDP), ROUTER[4] % 7)
    routed = bytes([0x46]) + packet[1:2] + struct.pack(">H", len(packet) + 4) + packet[4:20]
    assert host.drops(routed + b"\x94\4\0\0" + packet[20:])
    assert len(host.rows()) == 1


garbage = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@garbage
@given(st.data())
def test_garbage_is_passed(host: Answering, data: st.DataObject) -> None:
    """Nothing but a whole answer is dropped: not half of one with anything behind it."""
    version = data.draw(st.sampled_from([4, 6]))
    protocol = data.draw(st.sampled_from(PROTOCOLS))
    packet = answer(host.probe(version, number(protocol, version)), ROUTER[version] % 7)
    frame = bytes(12) + (b"\x08\x00" if version == 4 else b"\x86\xdd") + packet
    # All that a match needs is before the last byte of it.
    kept = data.draw(st.integers(0, len(frame) - (7 if version == 6 else 13)))
    end = frame[kept:]
    tail = data.draw(st.binary(max_size=200).filter(lambda tail: not tail.startswith(end[:1])))
    verdict = host.of_frame((frame[:kept] + tail).ljust(LEAST, b"\0"))
    assert verdict == PASS[host.hook]


def test_sixteen_bits_come_round(host: Answering) -> None:
    """S3.14: sequence numbers go on where a packet's part of them begins again; 0 is skipped."""
    host.rows()
    for version in (4, 6):
        for target in host.tracing.probe._targets:
            target._kernel["sequence"] = (target.sequence | 0xFFFF) - 1
        host.rows()
        found = []
        for _ in range(5):
            probe = host.probe(version, UDP)
            assert host.drops(answer(probe, ROUTER[version] % 7))
            found += list(host.rows()["sequence"])
        assert len(found) == 5
        assert [number & 0xFFFF for number in found] == [0xFFFE, 0xFFFF, 1, 2, 3]
