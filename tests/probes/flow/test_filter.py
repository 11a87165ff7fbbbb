"""The filter: one language, and the same answer in the kernel as on rows."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6EchoRequest, ICMPv6TimeExceeded, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from bpf.errors import TextError, UsageError
from bpf.syscall import prog_test_run as run
from probes.filter.conjunction import Conjunction
from probes.flow.filter import FlowFilter
from probes.snapshot import LossReason
from tests.probes.conftest import MakeProbe

FRAMES = [
    bytes(Ether(dst="02:00:00:00:00:02") / network / transport)
    for network in (
        IP(src="192.0.2.1", dst="198.51.100.7"),
        IP(src="10.1.2.3", dst="10.200.0.1"),
        IPv6(src="2001:db8::1", dst="2001:db8:7::99"),
        IPv6(src="fd00::1", dst="2001:db9::"),
    )
    for transport in (
        TCP(sport=1234, dport=443),
        TCP(sport=443, dport=50000),
        UDP(sport=53, dport=5353),
        ICMP(),
    )
]

FILTERS = [
    ("", 16),
    ("tcp", 8),
    ("proto:tcp,udp", 12),
    ("proto:1", 2),
    ("port:443", 8),
    ("443", 8),
    ("sport:443", 4),
    ("dport:443,5353", 8),
    ("ip:6", 8),
    ("net:10.0.0.0/8", 4),
    ("src:192.0.2.1", 4),
    ("dst:192.0.2.1", 0),
    ("net:2001:db8::/32", 4),
    ("2001:db8::1", 4),
    ("net:2001:db8:7::/48,10.200.0.0/16", 8),
    ("net:0.0.0.0/0", 8),
    ("net:::/0", 8),
    ("!tcp", 8),
    ("!net:10.0.0.0/8 udp", 3),
    ("tcp port:443 ip:4 !src:10.1.2.3", 2),
    ("tcp,udp port:400-5352", 8),
    ("dport:1-443,5000-5353", 8),
    ("port>5352", 8),
    ("sport<=53 dport!=0", 4),
    ("ip:4 sport<54 or ip:6 dport:443", 4),
    ("flags:S", 8),
    ("flags=S sport:443", 4),
    ("flags=SA", 0),
    ("flags=0", 8),
    ("vlan:0", 16),
    ("vlan:1-4095", 0),
    ("!(udp or dport=443) (ip:4 or src:fd00::1)", 6),
]


@pytest.mark.parametrize(("text", "packets"), FILTERS)
def test_kernel_and_rows_agree(make_probe: MakeProbe, text: str, packets: int) -> None:
    everything = make_probe()
    captured = make_probe(capture=text)
    for frame in FRAMES:
        run(everything.fd, frame)
        run(captured.fd, frame)
    all_rows = everything.probe.poll().rows
    shown = all_rows[FlowFilter.parse(text).mask(all_rows)]
    snapshot = captured.probe.poll()
    assert int(shown["packets"].sum()) == int(snapshot.rows["packets"].sum()) == packets
    assert sorted(row.tobytes()[:40] for row in shown) == sorted(
        row.tobytes()[:40] for row in snapshot.rows
    )
    filtered = snapshot.losses.get(LossReason.FILTERED)
    assert (filtered.packets if filtered else 0) == len(FRAMES) - packets
    assert snapshot.lost.packets == 0


MESSAGES = [
    bytes(Ether(dst="02:00:00:00:00:02") / message / Raw(bytes(size)))
    for size, message in enumerate(
        (
            IP() / ICMP(type=8, id=77),
            IP() / ICMP(type=0, id=78),
            IP() / ICMP(type=3, code=3),
            IP() / UDP(sport=77, dport=8 << 8),
            IPv6() / ICMPv6EchoRequest(id=77),
            IPv6() / ICMPv6DestUnreach(code=3),
            IPv6() / ICMPv6TimeExceeded(),
        ),
        start=8,
    )
]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("icmp:echo-request id:77 or icmp:unreachable/3", {0, 2, 4, 5}),
        ("!(icmp:3 or id:77,78)", {3, 5}),
    ],
)
def test_icmp_has_types_and_identifiers(
    make_probe: MakeProbe, text: str, messages: set[int]
) -> None:
    everything, captured = make_probe(), make_probe(capture=text)
    for frame in MESSAGES:
        run(everything.fd, frame)
        run(captured.fd, frame)
    rows = everything.probe.poll().rows
    assert len(rows) == len(MESSAGES)
    shown = rows[FlowFilter.parse(text).mask(rows)]
    sizes = {len(MESSAGES[at]) for at in messages}
    assert set(shown["bytes"].tolist()) == sizes
    assert set(captured.probe.poll().rows["bytes"].tolist()) == sizes


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("tcp dscp:ef", 5, "'dscp:ef' can't select packets"),
        ("tcp !dir:in", 6, "'dir:in' can't select packets"),
        ("rate>1M", 1, "'rate>1M' can't select packets"),
        ("udp or (tcp host:/x/)", 13, "'host:/x/' can't select packets"),
        (
            "!tcp (" + " or ".join(f"(sport:{n} dport:{n})" for n in range(65)) + ")",
            7,
            "has 65 combinations of header fields",
        ),
    ],
)
def test_not_every_filter_can_select(text: str, column: int, said: str) -> None:
    with pytest.raises(TextError, match=said) as caught:
        FlowFilter.parse(text).conjunctions()
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("text", "conjunctions"),
    [
        ("", 1),
        ("sport:53,123,1000-2000", 1),
        ("tcp or udp or !ip:6 proto:47", 2),
        ("port:53", 2),
        ("icmp:8", 1),
        ("icmp:echo-request,unreachable", 2),
        ("!icmp:8", 2),
        ("id:77", 1),
        ("!port:53", 1),
        ("tcp udp", 0),
        ("tcp or !tcp", 1),
        ("tcp or tcp dport:80", 1),
        ("net:10.0.0.0/8,192.0.2.0/24 tcp", 2),
        ("src:10.0.0.0/8 src:192.0.2.0/24", 0),
        ("dst:10.0.0.0/8 !dst:10.1.0.0/16 or dst:10.1.2.0/24", 1),
        (" ".join(f"!(sport:{n} dport:{n})" for n in range(4)), 16),
    ],
)
def test_conjunctions_that_differ_in_one_field_only_are_one(text: str, conjunctions: int) -> None:
    found = FlowFilter.parse(text).conjunctions()
    assert len(found) == conjunctions
    # A term that excludes nothing costs no look-up.
    assert (found == (Conjunction(),)) == (text in ("", "tcp or !tcp"))


def test_direction_is_of_rows_only(make_probe: MakeProbe) -> None:
    loose = make_probe()
    run(loose.fd, FRAMES[0])
    rows = loose.probe.poll().rows
    assert np.array_equal(FlowFilter.parse("dir:in").mask(rows), [True])
    assert np.array_equal(FlowFilter.parse("dir:out").mask(rows), [False])
    with pytest.raises(UsageError, match=r"dir:in.*can't choose what is captured"):
        FlowFilter.parse("dir:in").to_c()
