"""The parser in the kernel against scapy: built packets, cut ones, and random bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from scapy.layers.ipsec import AH
from scapy.layers.l2 import ARP, GRE, Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet, Raw

from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run as run
from probes.filter.hosts import address_text
from probes.snapshot import LossReason, Snapshot
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.oracle import Flow, Oracle

HOOKS = [Hook.XDP, Hook.TC_INGRESS, Hook.TC_EGRESS]
PASSED = {Hook.XDP: 2, Hook.TC_INGRESS: 0xFFFFFFFF, Hook.TC_EGRESS: 0xFFFFFFFF}
SHORTEST = 15
"""PROG_TEST_RUN takes no packet without a byte after its Ethernet header."""


FOUR = {"src": "192.0.2.1", "dst": "198.51.100.7"}
SIX = {"src": "2001:db8::1", "dst": "2001:db8:7::99"}
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
"""Scapy would ask the network for addresses that are missing."""


def links() -> Iterable[Packet]:
    yield ETHER
    yield ETHER / Dot1Q(vlan=7)
    yield ETHER / Dot1AD(vlan=5) / Dot1Q(vlan=7)
    yield ETHER / Dot1Q(vlan=5) / Dot1Q(vlan=7)
    yield ETHER / Dot1Q(vlan=1) / Dot1Q(vlan=2) / Dot1Q(vlan=3)


def rare_links(type_: int) -> dict[str, bytes]:
    """Headers before IP of an Ethernet type."""
    to_from, kind = bytes.fromhex("020000000002 020000000001"), type_.to_bytes(2, "big")
    ppp = {0x0800: "0021", 0x86DD: "0057"}[type_]
    tags = [bytes.fromhex("8100 00") + bytes([vlan]) for vlan in range(12)]
    headers = {
        "tag of 0, then 7": tags[0] + tags[7] + kind,
        "five tags": b"".join(tags[1:6]) + kind,
        "ten tags": b"".join(tags[1:11]) + kind,
        "PPPoE": bytes.fromhex(f"8864 1100 0001 0099 {ppp}"),
        "PPPoE in a VLAN": tags[9] + bytes.fromhex(f"8864 1100 0001 0099 {ppp}"),
        "MPLS": bytes.fromhex("8847 00001140"),
        "three labels": bytes.fromhex("8848 00001040 00002040 00003140"),
        "a pseudowire": bytes.fromhex("8847 00001140 00000000") + to_from + tags[8] + kind,
        "PBB": bytes.fromhex("88a8 0005 88e7 00123456") + to_from + kind,
        "PBB of a VLAN": bytes.fromhex("88e7 00123456") + to_from + tags[6] + kind,
        "FabricPath": bytes.fromhex("8903 0040") + to_from + tags[6] + kind,
    }
    return {name: to_from + header for name, header in headers.items()}


def in_rare_links() -> list[bytes]:
    return [
        link + bytes(network / UDP(sport=1000, dport=53) / Raw(b"x" * 20))
        for network in (IP(**FOUR), IPv6(**SIX))
        for link in rare_links(0x0800 if network.version == 4 else 0x86DD).values()
    ]


def networks() -> Iterable[Packet]:
    yield IP(**FOUR)
    yield IP(**FOUR, options=[b"\x01" * 8])
    yield IP(**FOUR, flags="MF")
    yield IP(**FOUR, frag=185)
    six = IPv6(**SIX)
    pad = PadN(optdata=b"\0" * 4)
    yield six
    yield six / IPv6ExtHdrHopByHop(options=[pad])
    yield six / IPv6ExtHdrFragment(id=9)
    yield six / IPv6ExtHdrFragment(id=9, offset=100)
    yield six / IPv6ExtHdrRouting(addresses=["2001:db8::5", "2001:db8::6"])
    yield six / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 20)])
    yield six / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting() / IPv6ExtHdrFragment(id=1)
    yield six / AH(payloadlen=4, icv=b"\0" * 12)
    long_chain = six
    for _ in range(9):
        long_chain = long_chain / IPv6ExtHdrDestOpt()
    yield long_chain


def transports() -> Iterable[Packet]:
    yield TCP(sport=1234, dport=443, flags="S")
    yield TCP(sport=443, dport=1234, flags="SAPUEC")
    yield TCP(sport=443, dport=1234, flags="FR", options=[("MSS", 1460), ("NOP", None)])
    yield UDP(sport=53, dport=65535) / Raw(b"x" * 30)
    yield ICMP(type=3, code=4)
    yield ICMP(type=13, id=77)
    yield ICMPv6EchoRequest(id=4711)
    yield SCTP(sport=7, dport=8)
    yield GRE() / Raw(b"gre")
    yield Raw(b"nothing in particular")


def built() -> list[bytes]:
    """Every combination: 5 x 13 x 9 packets, and frames that are not IP."""
    frames = [
        bytes(link / network / transport)
        for link in links()
        for network in networks()
        for transport in transports()
    ]
    frames.append(bytes(Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="192.0.2.9")))
    frames.append(bytes(Ether(type=0x88CC)) + b"lldp" * 8)
    return frames


def garbled(count: int) -> list[bytes]:
    """Random bytes, cut frames, and frames with random bytes changed; always the same ones."""
    random_ = random.Random(20261121)
    frames = built() + 20 * in_rare_links()
    out: list[bytes] = []
    for _ in range(count):
        frame = bytearray(random_.choice(frames))
        if random_.randrange(3):
            out.append(garbled_frame(random_, bytes(frame)))
            continue
        frame = bytearray(random_.randbytes(random_.randrange(SHORTEST, 120)))
        frame[12:14] = random_.choice([b"\x08\x00", b"\x86\xdd", b"\x81\x00", frame[12:14]])
        out.append(bytes(frame))
    return out


def garbled_frame(dice: random.Random, whole: bytes, first: int = 12) -> bytes:
    """A frame that is cut, or has other bytes from byte `first` on."""
    if dice.randrange(2):
        return whole[: dice.randrange(SHORTEST, len(whole) + 1)]
    frame = bytearray(whole)
    for _ in range(dice.randrange(1, 6)):
        frame[dice.randrange(first, len(frame))] = dice.randrange(256)
    return bytes(frame)


def seen(snapshot: Snapshot) -> Counter[Flow | str]:
    """Packets by flow, and by reason for those that are in none."""
    counted: Counter[Flow | str] = Counter()
    for row in snapshot.rows:
        version = int(row["version"])
        flow = Flow(
            version,
            int(row["protocol"]),
            address_text(row["source"].tobytes(), version),
            address_text(row["destination"].tobytes(), version),
            int(row["source_port"]),
            int(row["destination_port"]),
            int(row["tcp_flags"]),
            int(row["vlan"]),
            int(row["tunnel"]),
            int(row["tunnel_id"]),
        )
        counted[flow] += int(row["packets"])
    for reason, loss in snapshot.losses.items():
        counted[reason.name.lower()] += loss.packets
    return counted


def without_flags(counted: Counter[Flow | str]) -> Counter[Flow | str]:
    """TCP flags of all packets of a flow together, as its row has them."""
    flags: dict[Flow, int] = {}
    packets: Counter[Flow | str] = Counter()
    for flow, count in counted.items():
        if isinstance(flow, str):
            packets[flow] += count
            continue
        bare = replace(flow, tcp_flags=0)
        flags[bare] = flags.get(bare, 0) | flow.tcp_flags
        packets[bare] += count
    for bare, together in flags.items():
        count = packets.pop(bare)
        packets[replace(bare, tcp_flags=together)] = count
    return packets


def check(loose: LooseProbe, frames: list[bytes], *, ethernet: bool = True) -> None:
    for frame in frames:
        assert run(loose.fd, frame).verdict == PASSED[loose.hook]
    assert frames
    snapshot = loose.probe.poll()
    expected = Counter(map(Oracle(ethernet).flow_of, frames))
    assert seen(snapshot) == without_flags(expected)
    assert int(snapshot.rows["bytes"].sum()) + sum(
        loss.bytes for loss in snapshot.losses.values()
    ) == sum(map(len, frames))


@pytest.mark.parametrize("hook", HOOKS)
def test_built_packets_are_in_the_flow_that_scapy_says(make_probe: MakeProbe, hook: Hook) -> None:
    check(make_probe(hook), built())


@pytest.mark.parametrize("hook", HOOKS)
def test_random_bytes_are_judged_as_scapy_judges_them(make_probe: MakeProbe, hook: Hook) -> None:
    frames = garbled(6000)
    if hook is not Hook.XDP:
        # The kernel makes no socket buffer, in a test run, of half an IP header.
        whole = {b"\x08\x00": 34, b"\x86\xdd": 54}
        frames = [f for f in frames if len(f) >= whole.get(f[12:14], 0)]
    check(make_probe(hook, records=16384), frames)


@pytest.mark.parametrize("hook", HOOKS)
def test_rare_headers_before_ip_are_looked_through(make_probe: MakeProbe, hook: Hook) -> None:
    frames = in_rare_links()
    oracle = Oracle()
    judged = [oracle.flow_of(frame) for frame in frames]
    assert sum(isinstance(flow, Flow) for flow in judged) == len(frames)
    assert {flow.vlan for flow in judged if isinstance(flow, Flow)} == {0, 1, 5, 6, 7, 8, 9}
    check(make_probe(hook), [*frames, *(frame[:-45] for frame in frames)])


def test_packets_without_a_link_layer(make_probe: MakeProbe) -> None:
    frames = [bytes(network / transport) for network in networks() for transport in transports()]
    check(
        make_probe(Hook.XDP, ethernet=False),
        [f for f in frames if len(f) >= SHORTEST],
        ethernet=False,
    )


def test_not_ip_is_no_loss_but_malformed_is(make_probe: MakeProbe) -> None:
    loose = make_probe()
    run(loose.fd, bytes(ETHER / ARP()))
    run(loose.fd, bytes(ETHER / IP() / UDP())[:20])
    snapshot = loose.probe.poll()
    assert snapshot.losses[LossReason.NOT_IP].packets == 1
    assert snapshot.losses[LossReason.MALFORMED].packets == 1
    assert snapshot.lost.packets == 1
