"""Flows in tunnels: one frame of each kind, and random bytes, against the oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.packet import Packet, Raw

from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run as run
from probes.tunnels import TUNNELS, Tunnels
from tests.probes.conftest import MakeProbe
from tests.probes.flow.oracle import Flow, Oracle
from tests.probes.flow.test_parser import (
    ETHER,
    FOUR,
    HOOKS,
    SIX,
    garbled_frame,
    seen,
    without_flags,
)

INNER = {4: IP(src="10.0.0.1", dst="10.0.0.2"), 6: IPv6(src="fd00::1", dst="fd00::2")}
UDP_IN = UDP(sport=1111, dport=53) / Raw(b"y" * 30)
TYPE = {4: "0800", 6: "86dd"}


def udp(port: int, header: str) -> Packet:
    return UDP(sport=50000, dport=port) / Raw(bytes.fromhex(header))


def tunnels(version: int) -> Iterator[tuple[str, int, int, Packet]]:
    """Kind, id, VLAN of the inner flow, and the frame behind the outer IP header."""
    inner, type_ = INNER[version] / UDP_IN, TYPE[version]
    frame = Ether(src="02:00:00:00:00:03", dst="02:00:00:00:00:04")
    flags = {"proto": int(type_, 16)}
    yield "ipip", 0, 0, inner
    yield "gre", 0, 0, GRE(**flags) / inner
    yield (
        "gre",
        77,
        0,
        GRE(**flags, chksum_present=1, key_present=1, key=77, seqnum_present=1) / inner,
    )
    yield "gre", 5, 9, GRE(proto=0x6558, key_present=1, key=5) / frame / Dot1Q(vlan=9) / inner
    yield "gre", 0, 0, GRE(proto=0x8847) / Raw(bytes.fromhex("00001140")) / inner
    yield "vxlan", 0x123456, 0, udp(4789, "08000000 12345600") / frame / inner
    yield "vxlan", 7, 8, udp(8472, "08000000 00000700") / frame / Dot1Q(vlan=8) / inner
    yield "geneve", 3, 0, udp(6081, f"0200{type_} 00000300 0000000000000000") / inner
    yield "geneve", 3, 0, udp(6081, "00006558 00000300") / frame / inner
    yield "gtp", 0xDEADBEEF, 0, udp(2152, "30ff0000 deadbeef") / inner
    yield "gtp", 1, 0, udp(2152, "32ff0000 00000001 00010000") / inner
    yield "gtp", 1, 0, udp(2152, "34ff0000 00000001 00000085 01100500") / inner
    yield "vxlan", 4, 0, GRE() / IP(**FOUR) / udp(4789, "08000000 00000400") / frame / inner


def outer(version: int, inside: Packet) -> Packet:
    if version == 4:
        protocol = {IP: 4, IPv6: 41, GRE: 47, UDP: 17}[type(inside)]
        return ETHER / IP(**FOUR, proto=protocol) / inside
    protocol = {IP: 4, IPv6: 41, GRE: 47, UDP: 17}[type(inside)]
    return ETHER / IPv6(**SIX, nh=protocol) / inside


def frames() -> Iterator[tuple[bytes, Flow]]:
    """Frames of each kind of tunnel, and their inner flow."""
    for over in (4, 6):
        for version in (4, 6):
            for kind, number, vlan, inside in tunnels(version):
                ip = INNER[version]
                flow = Flow(version, 17, ip.src, ip.dst, 1111, 53, 0, vlan, TUNNELS[kind], number)
                yield bytes(outer(over, inside)), flow


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_inner_flows_of_each_kind_of_tunnel(make_probe: MakeProbe, hook: Hook) -> None:
    loose = make_probe(hook, tunnels=Tunnels.INNER)
    oracle = Oracle(inner=True)
    for frame, flow in frames():
        assert oracle.flow_of(frame) == flow
        run(loose.fd, frame)
    assert seen(loose.probe.poll()) == Counter(flow for _, flow in frames())


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_both_flows_of_a_packet(make_probe: MakeProbe, hook: Hook) -> None:
    loose = make_probe(hook, tunnels=Tunnels.BOTH)
    plain = bytes(ETHER / IP(**FOUR) / UDP_IN)
    outside = Oracle()
    expected = Counter([outside.flow_of(plain)])
    run(loose.fd, plain)
    for frame, flow in frames():
        run(loose.fd, frame)
        expected.update([flow, outside.flow_of(frame)])
    assert seen(loose.probe.poll()) == expected


def test_without_the_option_only_outer_flows(make_probe: MakeProbe) -> None:
    loose = make_probe()
    for frame, _ in frames():
        run(loose.fd, frame)
    assert seen(loose.probe.poll()) == Counter(Oracle().flow_of(frame) for frame, _ in frames())


@pytest.mark.slow
@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
def test_random_bytes_in_tunnels(make_probe: MakeProbe, hook: Hook) -> None:
    dice = random.Random(20261122)
    whole = [frame for frame, _ in frames()]
    inner = IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrDestOpt() / IPv6ExtHdrFragment(id=3, m=1)
    whole.append(bytes(outer(4, inner / UDP_IN)))
    given = [garbled_frame(dice, dice.choice(whole), 34) for _ in range(4000)]
    given = [frame for frame in given if len(frame) >= 54]
    loose = make_probe(hook, records=16384, tunnels=Tunnels.INNER)
    for frame in given:
        run(loose.fd, frame)
    assert seen(loose.probe.poll()) == without_flags(
        Counter(map(Oracle(inner=True).flow_of, given))
    )


def test_fragments_of_a_tunnel_and_in_a_tunnel(make_probe: MakeProbe) -> None:
    loose = make_probe(tunnels=Tunnels.INNER)
    oracle = Oracle(inner=True)
    first = IP(src="10.0.0.1", dst="10.0.0.2", id=5, flags="MF") / UDP_IN
    later = IP(src="10.0.0.1", dst="10.0.0.2", id=5, frag=4, proto=17) / Raw(b"y" * 30)
    cut = IP(**FOUR, id=6, flags="MF", proto=47) / GRE() / first
    rest = IP(**FOUR, id=6, frag=8, proto=47) / Raw(b"y" * 30)
    given = [bytes(ETHER / p) for p in (
        IP(**FOUR) / GRE() / first, IP(**FOUR) / GRE() / later, cut, rest,
    )]  # fmt: skip
    for frame in given:
        run(loose.fd, frame)
    found = seen(loose.probe.poll())
    assert found == Counter(map(oracle.flow_of, given))
    assert sorted(found.values()) == [1, 3]
