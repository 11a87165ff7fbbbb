"""Frames that go to the kernel in runs count as frames that go one by one."""

from __future__ import annotations

import random

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q

from app.lab import policy_runner
from app.lab.frames import BatchesAhead, CapturedFrame, FrameBatch
from app.lab.policy_runner import CaptureResult, PolicyRunner
from app.outputs.view import is_table
from probes.monitor.policy import Policy
from probes.snapshot import Item
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS

_POLICIES = (
    "many: packets > 40 -> dns",
    "large: bytes > 60000 -> dns",
    "syn: syn_packets > 9 -> dns",
)
_SECOND = 1_000_000_000


def _capture() -> list[CapturedFrame]:
    """Frames of all kinds: some cut, too long or too short, with steps of the clock."""
    choose = random.Random(1)
    heads = [
        ETHER / IP(src=PEER, dst=HOST) / TCP(flags="S"),
        ETHER / Dot1Q(vlan=7) / IP(src=PEER, dst=HOST) / UDP(sport=9, dport=10),
        ETHER / IPv6(src="2001:db8::1", dst="2001:db8::2") / UDP(sport=53, dport=4000),
        ETHER / IP(src=PEER, dst=HOST, flags="MF", id=5) / UDP(sport=1, dport=2),
        ETHER / IP(src=PEER, dst=HOST, frag=9, id=5) / bytes(8),
    ]
    # The flow probe remembers ports of datagrams for the next capture, too.
    made = [CapturedFrame(START_NS, bytes(heads[3]), len(heads[3]))]
    time_ns = START_NS
    for _ in range(400):
        data = bytes(choose.choice(heads)) + bytes(choose.choice((0, 6, 1400, 3470, 8000)))
        length = choose.choice((len(data),) * 9 + (len(data) + 500, 13, 64, 70_000))
        data = data[: choose.choice((len(data),) * 9 + (0, 13, 20, 60))]
        steps = (choose.randrange(_SECOND // 50),) * 40 + (-_SECOND // 3, 3 * _SECOND, -4 * _SECOND)
        time_ns += choose.choice(steps)
        made.append(CapturedFrame(time_ns, data, length))
    return made


def _seen(
    runner: PolicyRunner, capture: list[CapturedFrame]
) -> tuple[CaptureResult, list[list[str]]]:
    items: list[Item] = []
    batches = [FrameBatch.of(capture[at : at + 200]) for at in range(0, len(capture), 200)]
    result = runner.run(batches, items.append)
    flows = [sorted(map(str, each.rows.tolist())) for each in items if is_table(each, "flow", "")]
    return result, flows


def test_runs_of_frames_count_as_single_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_runner, "_LOOK_FRAMES", 64)
    capture = _capture()
    with PolicyRunner([Policy.parse_short(text) for text in _POLICIES]) as runner:
        in_runs = _seen(runner, capture)
        monkeypatch.setattr(runner._feed, "load", lambda batch: False)
        assert _seen(runner, capture) == in_runs
    result, flows = in_runs
    assert result.told
    assert len(result.notes) == 4
    assert sum(len(each) for each in flows) > 20


def test_the_next_frames_may_be_of_other_batches() -> None:
    batches = [FrameBatch.of([CapturedFrame(n, b"", n)] * n) for n in (3, 1, 2, 5)]
    ahead = BatchesAhead(batches)
    batch = next(ahead)
    assert ahead.next(batch, 1, 5) == [(3, 3), (3, 3), (1, 1), (2, 2), (2, 2)]
    assert [len(each.starts) for each in ahead] == [1, 2, 5]
    assert ahead.next(batch, 2, 5) == [(3, 3)]
