"""The choice of packets by a keyed hash, on frames that a test runs through a host's hooks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6TimeExceeded,
    IPv6ExtHdrFragment,
    fragment6,
)
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.path.marks import request_mark
from probes.segment.options import SegmentOptions
from probes.segment.records import CLOCK, CLOCK_TABLE, DIGESTS_TABLE, SEEN_TABLE
from probes.snapshot import LossReason
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck, open_deck
from tests.probes.segment.tools import (
    DATA,
    MSS,
    STREAM,
    digests,
    each_digest,
    four,
    framed,
    large,
    measuring,
    run,
    six,
    tables,
    tcp,
    udp,
)

MARK = request_mark(1, 0x5EC1)


def same(packet: Packet, changed: Packet) -> tuple[bytes, bytes]:
    return framed(packet), framed(changed, tag=7)


FORWARDED = {
    "TCP": same(
        four(ttl=64, tos=0, id=1) / tcp(chksum=1) / DATA,
        four(ttl=63, tos=184, id=9, options=[b"\x01" * 4])
        / tcp(chksum=0xFFFF, options=[("Timestamp", (1, 2))]) / DATA,
    ),
    "TCP by IPv6": same(
        six(hlim=64, tc=0, fl=1) / tcp(chksum=1) / DATA,
        six(hlim=9, tc=184, fl=7) / tcp(chksum=2) / DATA,
    ),
    "UDP": same(
        four(ttl=64, tos=0, flags="DF") / udp(chksum=1) / DATA,
        four(ttl=2, tos=3, flags=0) / udp(chksum=0) / DATA,
    ),
    "UDP by IPv6": same(
        six(hlim=64) / udp(chksum=1) / b"abc", six(hlim=1, tc=3) / udp(chksum=9) / b"abc"
    ),
    "ICMP": same(
        four(id=7) / ICMP(id=3, seq=4, chksum=1), four(id=7, ttl=3) / ICMP(id=3, seq=4, chksum=2)
    ),
    "ICMPv6": same(
        six() / ICMPv6EchoRequest(seq=4, cksum=1), six(hlim=3) / ICMPv6EchoRequest(seq=4, cksum=2)
    ),
    "SCTP": same(
        four(id=7) / SCTP(sport=1, dport=2, chksum=1) / DATA,
        four(id=7, ttl=9) / SCTP(sport=1, dport=2, chksum=2) / DATA,
    ),
    "another protocol": same(
        four(id=7, proto=89) / Raw(DATA), four(id=7, proto=89, ttl=1) / Raw(DATA)
    ),
}  # fmt: skip
OTHERS = {
    "source": four(src="192.0.2.2") / tcp() / DATA,
    "port": four() / tcp(sport=1001) / DATA,
    "sequence number": four() / tcp(seq=6) / DATA,
    "acknowledgement": four() / tcp(ack=10) / DATA,
    "length": four() / tcp() / DATA[1:],
    "SYN": four() / tcp(flags="S") / DATA,
    "FIN": four() / tcp(flags="FA") / DATA,
    "RST": four() / tcp(flags="RA") / DATA,
    "no data": four() / tcp(),
    "UDP": four() / udp() / DATA,
    "UDP's first byte": four() / udp() / (b"\1" + DATA[1:]),
    "UDP's 32nd byte": four() / udp() / (DATA[:31] + b"\0" + DATA[32:]),
    "UDP's length": four() / udp() / DATA[:-1],
    "no data by UDP": four() / udp(),
    "ICMP": four(id=1) / ICMP(id=3, seq=4),
    "ICMP's number": four(id=1) / ICMP(id=3, seq=5),
    "IP's identification": four(id=2) / ICMP(id=3, seq=5),
    "IPv6": six() / tcp() / DATA,
    "a label of SCTP": four(id=7) / SCTP(sport=1, dport=2, tag=9) / DATA,
}


@pytest.fixture(scope="module")
def measured(compiler: Compiler) -> Iterator[Deck]:
    options = SegmentOptions("secret", interval=0)
    with open_deck(compiler) as deck, measuring(deck.controller, options):
        yield deck


@pytest.mark.slow
def test_hosts_choose_packets_alike(measured: Deck) -> None:
    """Whatever a router changes; at the end of this and of the other host. Then fields that differ,
    fragments, large segments, and packets that no host compares."""
    for name, (sent, received) in FORWARDED.items():
        (before,) = each_digest(measured, [sent])
        (after,) = each_digest(measured, [received], Hook.TC_INGRESS)
        assert before == after, name

    base = framed(four() / tcp() / DATA)
    others = [base, *map(framed, OTHERS.values())]
    found = each_digest(measured, others)
    assert len(set(found)) == len(others), dict(zip(("base", *OTHERS), found, strict=True))
    assert each_digest(measured, [base] * 3) == found[:1] * 3


def test_payloads_of_a_repeated_word_differ(measured: Deck) -> None:
    frames = [framed(four() / udp() / (number.to_bytes(4, "big") * 25)) for number in range(40)]
    assert len(set(each_digest(measured, frames))) == len(frames)


def fragments() -> dict[str, list[Packet]]:
    whole6 = six() / IPv6ExtHdrFragment(id=77) / udp() / (DATA * 2)
    return {
        "IPv4": fragment(four(id=5) / udp() / (DATA * 2), fragsize=120),
        "IPv4 of another datagram": fragment(four(id=6) / udp() / (DATA * 2), fragsize=120),
        "IPv6": fragment6(whole6, 200),
        "TCP": fragment(four(id=5) / tcp() / (DATA * 2), fragsize=120),
    }


def test_each_fragment_has_a_digest_of_its_own(measured: Deck) -> None:
    seen: set[int] = set()
    for name, parts in fragments().items():
        assert len(parts) > 2
        sent = each_digest(measured, map(framed, parts))
        for part in parts:
            part.ttl = 3
        received = each_digest(measured, map(framed, reversed(parts)), Hook.TC_INGRESS)
        assert sent == received[::-1], name
        assert len(set(sent)) == len(parts), name
        assert not seen & set(sent), name
        seen |= set(sent)


def on_wire(headers: Packet, size: int, last: str = "") -> list[bytes]:
    """The packets that a NIC makes of a large segment."""
    frames = []
    data = STREAM[:size]
    for number, at in enumerate(range(0, max(size, 1), MSS)):
        part = headers.copy()
        if IP in part:
            part[IP].id = (part[IP].id + number) % 65536
        if TCP in part:
            part[TCP].seq = (part[TCP].seq + at) % (1 << 32)
            part[TCP].flags = "FPA" if last and at + MSS >= size else "A"
        frames.append(framed(part / data[at : at + MSS]))
    return frames


@pytest.mark.parametrize("size", [1, MSS, MSS + 1, 5 * MSS, 5 * MSS + 37])
def test_a_large_segment_is_the_packets_that_it_is_on_the_wire(measured: Deck, size: int) -> None:
    """However the other host's kernel joins them. A sequence number wraps on the way."""
    for headers in (
        four(id=65534) / tcp(seq=(1 << 32) - 150, flags="FPA"),
        six() / tcp(flags="FPA", options=[("Timestamp", (1, 2))]),
        four() / udp(),
        six() / udp(),
    ):
        wire = on_wire(headers, size, last="F")
        expected = each_digest(measured, wire, Hook.TC_INGRESS)
        assert len(set(expected)) == -(-size // MSS)
        for hook, side in ((Hook.TC_EGRESS, "egress"), (Hook.TC_INGRESS, "ingress")):
            frame, context = large(headers, size)
            run(measured, hook, frame, context=context)
            found = digests(measured, side)
            assert found["digest"].tolist() == expected
            assert (np.diff(found["time"].astype("i8")) > 0).all()
            lengths = [len(each) - 14 for each in wire]
            assert found["bytes"].tolist() == lengths


def test_padding_is_no_part_of_a_packet(measured: Deck) -> None:
    short = framed(four() / udp() / b"x")
    found = each_digest(measured, [short, short + bytes(60 - len(short))])
    assert found[0] == found[1]


def test_packets_that_no_host_can_compare_are_left_out_and_counted(measured: Deck) -> None:
    inner = Ether() / four() / tcp() / DATA
    tunnels = [
        four() / UDP(dport=4789) / VXLAN(vni=7) / inner,
        four() / four() / tcp(),
        six() / six() / tcp(),
    ]
    run(measured, Hook.TC_EGRESS, *map(framed, tunnels), framed(Raw(b"no IP")))
    found = tables(measured)["egress", DIGESTS_TABLE]
    assert not len(found.rows)
    assert found.losses[LossReason.FILTERED].packets == len(tunnels)
    assert found.losses[LossReason.NOT_IP].packets == 1

    # A chunk bundle can't be split by its size alone; more packets than a program walks through.
    frame, context = large(four() / SCTP(sport=1, dport=2), 300)
    run(measured, Hook.TC_EGRESS, frame, context=context)
    assert tables(measured)["egress", DIGESTS_TABLE].lost.packets == 3
    frame, context = large(four() / tcp(), 1300, 2)
    run(measured, Hook.TC_EGRESS, frame, context=context)
    found = tables(measured)["egress", DIGESTS_TABLE]
    assert (len(found.rows), found.lost.packets) == (192, 458)


TRACING = {
    "TCP": four() / tcp(urgptr=7, flags="A"),
    "TCP without a flag, by IPv6": six() / tcp(urgptr=1, flags=""),
    "UDP": four() / udp() / MARK,
    "UDP that claims more": six() / udp(len=900) / MARK,
    "an echo request": four() / ICMP(id=3, seq=4) / (MARK + bytes(4)),
    "its reply": six() / ICMPv6EchoReply(id=3, seq=4, data=MARK + bytes(4)),
    "a large echo request of user space": four() / ICMP(id=3) / (MARK + bytes(1000)),
    "an ended TTL": four() / ICMP(type=11) / four() / tcp(),
    "an ended hop limit": six() / ICMPv6TimeExceeded() / six() / udp(),
}
NOT_TRACING = {
    "urgent data": four() / tcp(urgptr=7, flags="UA"),
    "an urgent pointer with data": four() / tcp(urgptr=7) / b"x",
    "an urgent pointer with options": four() / tcp(urgptr=7, options=[("Timestamp", (1, 2))]),
    "no urgent pointer": four() / tcp(),
    "a mark behind UDP's first bytes": four() / udp() / (b"x" + MARK),
    "an echo request": four() / ICMP(id=3, seq=4) / DATA,
    "reassembly that took too long": four() / ICMP(type=11, code=1) / four() / tcp(),
    "a closed port": four() / ICMP(type=3, code=3) / four() / udp(),
}


@pytest.mark.parametrize("hook", [Hook.TC_EGRESS, Hook.TC_INGRESS])
def test_both_hosts_leave_out_packets_of_path_tracing(measured: Deck, hook: Hook) -> None:
    side = "egress" if hook is Hook.TC_EGRESS else "ingress"
    for name, packet in TRACING.items():
        run(measured, hook, framed(packet))
        found = tables(measured)
        table, seen = found[side, DIGESTS_TABLE], found[side, SEEN_TABLE]
        assert not len(table.rows), name
        assert table.losses[LossReason.FILTERED].packets == 1, name
        assert not seen.rows["value"]["packets"].sum(), name
    for name, packet in NOT_TRACING.items():
        assert each_digest(measured, [framed(packet)], hook), name


def test_a_full_table_counts_the_packets_that_it_lacks(measured: Deck) -> None:
    frame, context = large(four() / tcp(), 1300, 10)
    prog_test_run(measured.fd(Hook.TC_EGRESS), frame, context=context, repeat=505)
    found = tables(measured)
    full = found["egress", DIGESTS_TABLE]
    assert len(full.rows) == 65536
    assert full.lost.packets == 505 * 130 - 65536
    assert full.occupancy == 1
    assert int(found["egress", SEEN_TABLE].rows["value"]["packets"].sum()) == 505 * 130
    assert not found["ingress", DIGESTS_TABLE].losses


def test_the_host_tells_its_clocks(measured: Deck) -> None:
    (table,) = (item for item in tables(measured).values() if item.metric == CLOCK_TABLE)
    assert table.rows.dtype == CLOCK
    (clock,) = table.rows["value"].tolist()
    monotonic, utc, error, boot = clock
    assert 0 <= monotonic - table.end_ns < 1_000_000_000
    assert abs(utc - monotonic - (table.end_utc_ns - table.end_ns)) < 2_000_000
    assert 0 < error < 1_000_000
    assert any(boot)
