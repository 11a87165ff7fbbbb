"""Short flows, answers, outgoing packets and shares, from the slots of a selection."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.monitor import selected_counters
from probes.monitor.counting.estimates import largest_share, sampled
from probes.monitor.options import MonitorOptions
from probes.monitor.selected import Estimate
from tests.probes.monitor.bed import Bed
from tests.probes.monitor.test_counters import ICMP, TCP, UDP, Sent, count, window


@pytest.fixture
def bed(compiler: Compiler) -> Iterator[Bed]:
    with Bed(compiler, MonitorOptions(bits=10, seed="0")) as made:
        yield made


def test_short_flows_and_answers_are_counted_by_a_sample(bed: Bed) -> None:
    """D1, D2: a scan has no answers, and a flood hardly more than one packet a flow."""
    names = "single_flows", "short_flows", "answered_flows", "unanswered_flows"
    count(bed, p=", ".join(f"{name} on proto:udp" for name in names))

    def send(flows: int) -> dict[str, Estimate]:
        for n in range(flows):
            there = Sent(4 + 2 * (n & 1), 1, 2, UDP, 1000 + n, 53, 0, 80)
            back = there._replace(source=2, destination=1, sport=53, dport=1000 + n)
            answers = [back, back] if n % 4 == 3 else []
            other = Sent(4, 3, 4, ICMP, 0, 0, 0, 80)
            for packet in (*[there] * (1 + n % 4), other, *answers):
                bed.run(packet.frame())
        return {name.split()[0]: value for name, value in window(bed).items()}

    few = send(8)
    assert {name: value.value for name, value in few.items()} == {
        "single_flows": 2, "short_flows": 6, "answered_flows": 2, "unanswered_flows": 6,
    }  # fmt: skip
    many = send(1200)
    truth = {"single_flows": 300, "short_flows": 900, "answered_flows": 300,
             "unanswered_flows": 900}  # fmt: skip
    for name, value in many.items():
        assert value.low <= truth[name] <= value.high, name
        assert value.value == pytest.approx(truth[name], rel=0.2), name
    assert set(window(bed).values()) == {(0, 0, 0)}


@pytest.mark.slow
def test_outgoing_packets_are_counted_while_a_policy_needs_them(bed: Bed) -> None:
    """D1: a client's queries leave, so the answers that come are no scan."""
    policy = ("{}: out_bytes on proto:udp > 1T or out_ports on proto:udp > 1T"
              " or unanswered_flows on proto:udp > 1T or out_packets > 1T -> dns")  # fmt: skip
    bed.set("a: packets > 1T or sources on proto:udp > 1T -> dns")
    (ingress,) = bed.hooks.in_use()
    bed.set(policy.format("b"))
    bed.window()
    (egress,) = (point for point in bed.hooks.in_use() if point is not ingress)
    assert egress.hook is Hook.TC_EGRESS

    def values() -> dict[str, float]:
        for n in range(20):
            query = Sent(4, 1, 2, UDP, 40000 + n, 5335, 0, 80)
            answer = query._replace(source=2, destination=1, sport=5335, dport=40000 + n, size=120)
            if n < 15:
                prog_test_run(egress.chain.fd, query.frame())
            bed.run(answer.frame())
        prog_test_run(egress.chain.fd, query._replace(protocol=TCP).frame())
        return {name: round(value.value) for name, value in window(bed).items()}

    expected = {
        "out_bytes on proto:udp": 15 * 80, "out_ports on proto:udp": 1, "out_packets": 16,
        "unanswered_flows on proto:udp": 5, "sources on proto:udp": 1,
    }  # fmt: skip
    assert [values(), values()] == [expected, expected], "in both halves"
    with bed.monitor.compile(bed.monitor.config) as compiled:
        bed.monitor.replace(compiled)
    assert values() == expected, "and in those of another generation"
    bed.set(policy.format("c"))
    bed.monitor.remove_policy("b")
    assert len(egress.chain) == 1
    bed.monitor.remove_policy("c")
    assert bed.hooks.in_use() == (ingress,)


def test_recent_values_are_those_of_the_last_windows_together(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow scan has one port in a window, and dozens in a minute."""
    monkeypatch.setattr(selected_counters, "RECENT_WINDOWS", 3)
    count(bed, p="recent_ports on proto:udp")
    found = []
    for port in (1, 2, 2, 3, 0, 0, 0):
        if port:
            bed.run(Sent(4, 1, 2, UDP, 1000, port, 0, 80).frame())
        found.append(round(window(bed)["recent_ports on proto:udp"].value))
    assert found == [1, 2, 2, 2, 2, 1, 0]
    bed.run(Sent(4, 1, 2, UDP, 1000, 9, 0, 80).frame())
    assert window(bed)["recent_ports on proto:udp"].value == pytest.approx(1, rel=0.1)
    bed.monitor.counters.recent.clear()
    assert window(bed)["recent_ports on proto:udp"].value == 0


def test_a_sample_over_cpus() -> None:
    """The packets of a flow, and its two directions, may come to any CPU."""
    registers = np.zeros((3, 1024), [("value", "u4"), ("seen", "u4")])
    registers["value"][:, :3] = [[9, 0, 5], [9, 0, 7], [3, 0, 7]]
    registers["seen"][:, :3] = [[4 + 1, 0, 8 + 1], [4 + 2, 0, 4 + 1], [8 + 2, 0, 0]]
    found: list[int] = []

    def counts(seen: Array) -> Array:
        found.extend(seen.tolist())
        return seen > 0

    sampled(registers, counts)
    assert found == [8 + 3, 4 + 1]


def test_the_largest_share_over_cpus() -> None:
    """The kernel's buckets in Python: packets of eight CPUs, any mix of values."""
    dice = random.Random(1)
    for heavy in (0.0, 0.1, 0.5, 0.9):
        buckets = np.zeros((8, 16), [("packets", "u8"), ("candidate", "u4"), ("votes", "u4")])
        values = [1 if dice.random() < heavy else dice.randrange(2, 60) for _ in range(3000)]
        for value in values:
            bucket = buckets[dice.randrange(8)][value % 16 : value % 16 + 1]
            bucket["packets"] += 1
            if bucket["candidate"] == value:
                bucket["votes"] += 1
            elif bucket["votes"]:
                bucket["votes"] -= 1
            else:
                bucket["candidate"], bucket["votes"] = value, 1
        share = max(Counter(values).values()) / len(values)
        found = largest_share(buckets, len(values))
        assert found.low <= share <= found.high
        if heavy > 0.4:
            assert found.value == pytest.approx(share, abs=0.02)
