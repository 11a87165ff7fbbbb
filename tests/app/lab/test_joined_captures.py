"""Captures of quiet links have the same alarms if quiet windows end together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, TCP

from app.lab.frames import windows
from app.lab.frames.windows import JOINED
from app.lab.imported import record
from app.lab.policy_runner import CaptureResult, PolicyRunner
from app.lab.recorded_runner import run_recording
from app.outputs.view import is_table
from app.recording.reader import Recording
from app.recording.segment import RecordedState
from probes.monitor.policy import Policy
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS, pcap

TEXTS = (
    "flood: rate(syn_packets) > 3 * baseline(60s, 20/s) hold 2s cooldown 3s -> half_open",
    "slow: recent_ports on flags=S > 12 hold 5s -> dns",
    "steady: min(rate(packets), 3s) > 10/s until packets < 5 -> half_open",
)
LOW = "pings: icmp_packets > 1 -> dns"
DATA = bytes(ETHER / IP(src=PEER, dst=HOST) / TCP(dport=443, flags="A"))
PING = bytes(ETHER / IP(src=PEER, dst=HOST) / ICMP())


def _syn(port: int) -> bytes:
    return bytes(ETHER / IP(src=PEER, dst=HOST) / TCP(dport=port, flags="S"))


def _frames() -> Iterator[tuple[float, bytes]]:
    """Ten minutes: few frames, a flood of 5 s, a scan of a port every 2 s, and two pings."""
    yield from ((0.7 * n, DATA) for n in range(800))
    yield from ((100.3 + n / 100, _syn(80)) for n in range(500))
    yield from ((200.3 + 2 * n, _syn(1000 + n)) for n in range(30))
    yield from ((400.1 + n / 10, PING) for n in range(2))
    yield from ((600.5 + n / 2, _syn(443)) for n in range(3))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are joined after half a minute, for a shorter test."""
    monkeypatch.setattr(windows, "_JOINED_AFTER_NS", 30 * 10**9)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("quiet") / "quiet.pcap"
    frames = sorted(_frames(), key=lambda each: each[0])
    path.write_bytes(pcap(*((START_NS + round(at * 1e9), data) for at, data in frames)))
    return str(path)


def _told(result: CaptureResult) -> list[tuple[str, float, str, str]]:
    return [
        (each.transition.policy, each.seconds, each.transition.after.label, each.transition.cause)
        for each in result.told
    ]


@pytest.mark.slow
def test_quiet_windows_end_together_and_alarms_are_the_same(capture: str, tmp_path: Path) -> None:
    policies = [Policy.parse_short(text) for text in TEXTS]
    with PolicyRunner(policies) as single, PolicyRunner(policies, joins=True) as joining:
        expected = _told(single.run_file(capture))
        found = record([capture], joining, str(tmp_path))
    assert {policy for policy, *_ in expected} == {"flood", "slow", "steady"}
    assert _told(found) == expected
    # A recording has no ports of several windows.
    of_recording = [each for each in expected if each[0] != "slow"]
    assert _told(run_recording(str(tmp_path), policies)) == of_recording
    with Recording(str(tmp_path)) as recording:
        items = [each for each in recording.items() if not isinstance(each, RecordedState)]
        windows = [each for each in items if is_table(each, "flow", "")]
    ends = [round((each.start_utc_ns - START_NS) / 1e9) for each in windows]
    lengths = [round(each.seconds) for each in windows]
    assert all(
        end + length == after for (end, after), length in zip(pairwise(ends), lengths, strict=False)
    )
    assert lengths[:30] == [1] * 30
    assert max(lengths) == JOINED
    assert len(lengths) < 150
    assert sum(int(each.rows["packets"].sum()) for each in windows) == found.frames == 1335
    assert all(lengths[at] == 1 for at, end in enumerate(ends) if 100 <= end < 106)


@pytest.mark.slow
def test_a_policy_with_a_low_limit_sees_each_window(capture: str, tmp_path: Path) -> None:
    low = [Policy.parse_short(LOW)]
    with PolicyRunner(low, joins=True) as runner:
        assert [each[:3] for each in _told(runner.run_file(capture))] == [
            ("pings", 401, "active"), ("pings", 402, "armed"),
        ]  # fmt: skip
    with PolicyRunner([], joins=True) as runner:
        record([capture], runner, str(tmp_path))
    result = run_recording(str(tmp_path), low)
    assert result.told == ()
    assert "so low a limit needs the capture itself" in result.notes[0]
