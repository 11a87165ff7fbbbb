"""The filter: one language, and the same answer in the kernel as on rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from bpf.errors import UsageError
from bpf.syscall import prog_test_run as run
from probes.flow import FlowFilter
from probes.flow.filter import KEY_SIZE, Match
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
    if "!" not in text:
        matches = FlowFilter.parse(text).matches()
        assert [row.tobytes() for row in all_rows if selected(matches, row)] == [
            row.tobytes() for row in shown
        ]
    filtered = snapshot.losses.get(LossReason.FILTERED)
    assert (filtered.packets if filtered else 0) == len(FRAMES) - packets
    assert snapshot.lost.packets == 0


def selected(matches: Sequence[Match], row: np.void) -> bool:
    """Whether match+action tables that have `matches` would select the flow of a row."""
    key = int.from_bytes(row.tobytes()[:38].ljust(KEY_SIZE, b"\0"), "big")
    return any(
        key & int.from_bytes(match.mask, "big") == int.from_bytes(match.value, "big")
        for match in matches
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!tcp", "'!tcp' can't select packets"),
        ("tcp dir:in", "'dir:in' can't select packets"),
        (" ".join(["port:" + ",".join(map(str, range(200)))] * 2), "more than 4096 matches"),
    ],
)
def test_not_every_filter_can_select(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FlowFilter.parse(text).matches()


def test_direction_is_of_rows_only(make_probe: MakeProbe) -> None:
    loose = make_probe()
    run(loose.fd, FRAMES[0])
    rows = loose.probe.poll().rows
    assert np.array_equal(FlowFilter.parse("dir:in").mask(rows), [True])
    assert np.array_equal(FlowFilter.parse("dir:out").mask(rows), [False])
    with pytest.raises(UsageError, match=r"dir:in.*can't choose what is captured"):
        FlowFilter.parse("dir:in").to_c()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prto:tcp", "did you mean proto:"),
        ("port:http", "'http' is not a port"),
        ("port:70000", "'70000' is not a port"),
        ("port:", "'' is not a port"),
        ("net:10.0.0.0/33", "not an address or prefix"),
        ("proto:tpc", "no protocol 'tpc'"),
        ("proto:300", "not a protocol number"),
        ("ip:5", "neither 4 nor 6"),
        ("dir:up", "neither in nor out"),
        ("what", "not understood"),
        ("tcp; drop", "not understood"),
        ('net:"', "not an address"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FlowFilter.parse(text)
