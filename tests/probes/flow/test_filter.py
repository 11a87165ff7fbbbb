"""The filter: one language, and the same answer in the kernel as on rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from bpf.errors import UsageError
from bpf.syscall import prog_test_run as run
from probes.filter.match import KEY_SIZE, Match
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
    if not re.search("!| or |flags", text):
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
        ("tcp or udp", "'tcp or udp' can't select packets.*give one for each"),
        ("rate>1M", "'rate>1M' can't select packets"),
        ("host:/x/", "'host:/x/' can't select packets"),
    ],
)
def test_not_every_filter_can_select(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FlowFilter.parse(text).matches()


@given(st.integers(0, 65535), st.integers(0, 65535))
def test_a_range_of_ports_is_the_fewest_prefixes_that_are_it(one: int, other: int) -> None:
    low, high = sorted((one, other))
    found = FlowFilter.parse(f"dport:{low}-{high}").matches()
    ports = np.arange(65536)
    covered = np.zeros(65536, int)
    for match in found:
        mask, value = (int.from_bytes(part[34:36], "big") for part in (match.mask, match.value))
        covered += ports & mask == value
    assert np.array_equal(covered, ((ports >= low) & (ports <= high)).astype(int))
    assert len(found) <= 30


def test_direction_is_of_rows_only(make_probe: MakeProbe) -> None:
    loose = make_probe()
    run(loose.fd, FRAMES[0])
    rows = loose.probe.poll().rows
    assert np.array_equal(FlowFilter.parse("dir:in").mask(rows), [True])
    assert np.array_equal(FlowFilter.parse("dir:out").mask(rows), [False])
    with pytest.raises(UsageError, match=r"dir:in.*can't choose what is captured"):
        FlowFilter.parse("dir:in").to_c()
