"""Fragments in their datagram's flow."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet, Raw

from bpf.attach.attachment import Hook
from bpf.syscall import map_lookup, map_update
from bpf.syscall import prog_test_run as run
from probes.flow.filter import FlowFilter
from tests.probes.conftest import LooseProbe, MakeProbe
from tests.probes.flow.test_parser import ETHER

FOUR = {"src": "192.0.2.1", "dst": "198.51.100.7"}
SIX = {"src": "2001:db8::1", "dst": "2001:db8:7::99"}
DATA = Raw(b"x" * 40)


def four(payload: Packet, *, frag: int = 0, number: int = 7, more: bool = True) -> Packet:
    return IP(**FOUR, id=number, frag=frag, flags="MF" if more else 0, proto=17) / payload


def six(payload: Packet, *, frag: int = 0, number: int = 7, more: bool = True) -> Packet:
    header = IPv6ExtHdrFragment(id=number, offset=frag, m=more, nh=17)
    return IPv6(**SIX) / header / payload


MAKE: dict[int, Callable[..., Packet]] = {4: four, 6: six}


def counted(loose: LooseProbe, *frames: Packet) -> dict[tuple[int, int], int]:
    """Packets by source and destination port."""
    for frame in frames:
        run(loose.fd, bytes(ETHER / frame))
    rows = loose.probe.poll().rows
    return {(int(r["source_port"]), int(r["destination_port"])): int(r["packets"]) for r in rows}


@pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
@pytest.mark.parametrize("version", [4, 6])
def test_later_fragments_have_the_ports_of_the_first(
    make_probe: MakeProbe, version: int, hook: Hook
) -> None:
    make = MAKE[version]
    loose = make_probe(hook)
    udp = UDP(sport=1000, dport=53)
    first, later, last = make(udp / DATA), make(DATA, frag=6), make(DATA, frag=12, more=False)
    assert counted(loose, first, later, last) == {(1000, 53): 3}
    # Both halves and every generation share the ports; another datagram's are unknown.
    assert counted(loose, later, make(DATA, frag=6, number=8)) == {(1000, 53): 1, (0, 0): 1}
    loose.probe.reconfigure(FlowFilter.parse("proto:udp"))
    assert counted(loose, last) == {(1000, 53): 1}


def test_a_fragment_before_the_first_has_no_ports(make_probe: MakeProbe) -> None:
    later = four(DATA, frag=6)
    first = four(UDP(sport=1000, dport=53) / DATA)
    assert counted(make_probe(), later, first, later) == {(0, 0): 1, (1000, 53): 2}


def test_whole_packets_are_no_datagrams_of_fragments(make_probe: MakeProbe) -> None:
    """RFC 6864: whole packets may all have the same identification."""
    whole = four(UDP(sport=9, dport=9), more=False)
    atomic = six(UDP(sport=9, dport=9), more=False)
    loose = make_probe()
    assert counted(loose, whole, four(DATA, frag=6)) == {(9, 9): 1, (0, 0): 1}
    assert counted(loose, atomic, six(DATA, frag=6)) == {(9, 9): 1, (0, 0): 1}


def test_fragments_of_a_ping_and_of_two_vlans(make_probe: MakeProbe) -> None:
    loose = make_probe()
    ping = IP(**FOUR, id=3, flags="MF") / ICMP(type=8, id=77) / DATA
    rest = IP(**FOUR, id=3, frag=6, proto=1) / DATA
    assert counted(loose, ping, rest) == {(77, 8 << 8): 2}
    other = four(UDP(sport=1000, dport=53), number=3)
    assert counted(loose, Dot1Q(vlan=5) / other, four(DATA, frag=6, number=3)) == {
        (1000, 53): 1, (0, 0): 1,
    }  # fmt: skip


def test_the_protocol_of_later_fragments_is_that_behind_the_first_ones_options(
    make_probe: MakeProbe,
) -> None:
    loose = make_probe()
    options = IPv6(**SIX) / IPv6ExtHdrFragment(id=9, m=1) / IPv6ExtHdrDestOpt() / UDP(sport=5)
    later = IPv6(**SIX) / IPv6ExtHdrFragment(id=9, offset=6, nh=60) / DATA
    for frame in (options, later):
        run(loose.fd, bytes(ETHER / frame))
    (row,) = loose.probe.poll().rows
    assert (row["protocol"], row["source_port"], row["packets"]) == (17, 5, 2)


def test_an_identification_may_be_used_again_after_half_a_minute(make_probe: MakeProbe) -> None:
    loose = make_probe()
    assert counted(loose, four(UDP(sport=1000, dport=53))) == {(1000, 53): 1}
    datagrams = loose.probe._datagrams_fd
    key = IPv4Address(FOUR["src"]).packed.ljust(16, b"\0")
    key += IPv4Address(FOUR["dst"]).packed.ljust(16, b"\0") + struct.pack(">HHBBH", 7, 0, 17, 4, 0)
    transport, seen_ns = struct.unpack("QQ", map_lookup(datagrams, key, 16) or b"")
    map_update(datagrams, key, struct.pack("QQ", transport, seen_ns - 31 * 10**9))
    assert counted(loose, four(DATA, frag=6)) == {(0, 0): 1}
