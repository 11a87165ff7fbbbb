"""Policies over captures: real programs, windows in the capture's time, and nothing attached."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP

from app.lab.frames import CapturedFrame, FrameBatch
from app.lab.policy_runner import CaptureResult, PolicyRunner
from app.outputs.view import is_table
from bpf.errors import UsageError
from bpf.syscall import FrameRunner
from probes.monitor.condition import Condition
from probes.monitor.policy import Policy
from probes.monitor.probe import MonitorProbe
from probes.snapshot import Item
from tests.app.lab.captures import ETHER, HOST, PEER, START_NS, frames_of, pcap

POLICIES = (
    "flood: rate(tcp_packets) > 100 hold 2s cooldown 3s -> half_open",
    "steady: min(packets, 3s) > 10 until packets < 5 -> half_open, trace:2 on proto:tcp",
    "large: bytes > 6000 -> dns",
    "always: always -> accounting",
)
SYN = bytes(ETHER / IP(src=PEER, dst=HOST) / TCP(flags="S"))


@pytest.fixture(scope="module")
def runner() -> Iterator[PolicyRunner]:
    with PolicyRunner([Policy.parse_short(text) for text in POLICIES]) as made:
        yield made


def frames(rate: int, seconds: float, start: float = 0.0) -> list[CapturedFrame]:
    """SYNs, evenly over a time."""
    times = (START_NS + round((start + n / rate) * 1e9) for n in range(round(rate * seconds)))
    return [CapturedFrame(time_ns, SYN, len(SYN)) for time_ns in times]


def run(runner: PolicyRunner, capture: Sequence[CapturedFrame]) -> CaptureResult:
    return runner.run([FrameBatch.of(capture)])


def told(result: CaptureResult, policy: str) -> list[tuple[float, str]]:
    return [
        (each.seconds, each.transition.after.label)
        for each in result.told
        if each.transition.policy == policy
    ]


def test_transitions_come_at_the_ends_of_windows_and_each_capture_begins_anew(
    runner: PolicyRunner,
) -> None:
    capture = [*frames(20, 1), *frames(200, 2, start=1), *frames(1, 8, start=3)]
    for _ in range(2):
        result = run(runner, capture)
        assert (result.frames, result.seconds, result.notes) == (428, 10.0, ())
        assert told(result, "flood") == [
            (2, "active"), (4, "cool-down"), (7, "armed")
        ]  # fmt: skip
        # The first two windows could be the end of a longer time.
        assert told(result, "steady") == [(3, "active"), (4, "armed")]
        assert told(result, "always") == []
        assert result.busiest["large"] == "bytes 10800 > 6000"
        assert "always" not in result.busiest
    (first,) = (each for each in result.told if each.finding and each.transition.policy == "flood")
    assert first.transition.cause == "rate(tcp_packets) 200 > 100"


def test_windows_and_flows_have_the_times_of_the_capture(runner: PolicyRunner) -> None:
    items: list[Item] = []
    capture = [*frames(100, 1), *frames(50, 0.5, start=3600.25)]
    runner.run([FrameBatch.of(capture)], items.append)
    windows = [each for each in items if is_table(each, "flow", "") and len(each.rows)]
    assert [(each.start_utc_ns - START_NS) / 1e9 for each in windows] == [0, 3600]
    (first,), (second,) = (each.rows for each in windows)
    assert (int(first["packets"]), int(second["packets"])) == (100, 25)
    for row, begin, end in ((first, 0, 0.99), (second, 3600.25, 3600.73)):
        for name, seconds in (("first_ns", begin), ("last_ns", end)):
            assert abs(int(row[name]) - START_NS - seconds * 1e9) < 300_000


def test_a_long_gap_is_stepped_over_until_no_policy_remembers(runner: PolicyRunner) -> None:
    years = 6 * 365 * 86400
    capture = [*frames(200, 1), *frames(200, 1, start=years + 0.25)]
    result = run(runner, capture)
    assert told(result, "flood") == [
        (1, "active"), (2, "hold"), (3, "cool-down"), (6, "armed"),
        (years + 1, "active"), (years + 2, "hold"),
    ]  # fmt: skip
    (note,) = result.notes
    assert note == "2189d23h without frames left out"


def test_windows_without_frames_cost_no_look_at_the_kernel(
    runner: PolicyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: a capture takes time by its frames; each finding is of its own window."""
    looks = []
    export = MonitorProbe.export

    def counted(probe: MonitorProbe) -> Sequence[Item]:
        looks.append(probe)
        return export(probe)

    monkeypatch.setattr(MonitorProbe, "export", counted)
    gaps = [*frames(1, 1), *frames(1, 1, start=4.5), *frames(200, 1, start=9)]
    result = run(runner, gaps)
    assert len(looks) == 3
    assert told(result, "flood") == [(10, "active")]
    (begun,) = (each for each in result.told if each.transition.policy == "flood")
    assert begun.finding
    assert "in 1.0 s" in begun.finding.text


def test_a_clock_that_goes_back_goes_on_from_there(runner: PolicyRunner) -> None:
    """Frames of several seconds do not add up in one window."""
    result = run(runner, [*frames(50, 1, start=3600), *frames(90, 20), *frames(90, 2)])
    assert told(result, "flood") == []
    assert (round(result.seconds), result.notes) == (23, ("the capture's clock goes back 2 times",))
    late = run(runner, [*frames(90, 1), *frames(90, 1, start=0.1)])
    assert (told(late, "flood"), late.notes) == ([(1, "active"), (2, "hold")], ())


def test_frames_are_filled_up_and_cut_as_the_kernel_takes_them(runner: PolicyRunner) -> None:
    longest = FrameRunner.longest
    sizes: Iterable[tuple[int, int]] = ((60, 1000), (9000, 9014), (13, 13), (64, 70_000))
    capture = [CapturedFrame(START_NS, SYN.ljust(k, b"\0")[:k], length) for k, length in sizes]
    result = run(runner, capture)
    (large,) = (each for each in result.told if each.transition.policy == "large")
    assert large.transition.cause == f"bytes {1000 + 2 * longest} > 6000"
    assert result.frames == 3
    assert result.notes == (
        "1 frames too short for Ethernet",
        f"2 frames longer than {longest} bytes; {79014 - 2 * longest} bytes are not counted",
        "3 frames cut when they were captured and filled up with zeros",
    )


@pytest.mark.slow
def test_a_window_of_more_flows_than_the_tables_take_is_found_in_full(
    runner: PolicyRunner,
) -> None:
    """The flow tables are read early, as the poller of a run reads them."""
    before, after = SYN[:26], SYN[30:]
    capture = [
        CapturedFrame(START_NS + n, before + (n + (10 << 24)).to_bytes(4, "big") + after, len(SYN))
        for n in range(200_000)
    ]
    found, *_ = (each.finding for each in run(runner, capture).told if each.finding)
    assert (found.packets, found.flows, found.lost) == (200_000, 200_000, 0)
    assert found.sources.count == 200_000
    assert found.destinations.chief == HOST


def test_a_condition_that_fails_is_told(
    runner: PolicyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("boom")

    monkeypatch.setattr(Condition, "evaluate", fail)
    notes = run(runner, frames(10, 2)).notes
    assert notes[0] == ("policy flood has a failing condition: rate(tcp_packets) > 100: boom")
    assert len(notes) == 3


def test_an_empty_capture_has_no_window(runner: PolicyRunner) -> None:
    assert runner.run(()) == CaptureResult((), 0, 0.0, {}, ())


def test_files_may_be_compressed_and_may_break_off(runner: PolicyRunner, tmp_path: Path) -> None:
    text = pcap(*((each.time_ns, each.data) for each in frames(200, 2)))
    path = tmp_path / "x.pcap.gz"
    path.write_bytes(gzip.compress(text))
    whole = runner.run_file(str(path))
    assert (told(whole, "flood"), whole.notes) == ([(1, "active")], ())
    path.write_bytes(gzip.compress(text)[:-50])
    assert runner.run_file(str(path)).notes == ("the file is not whole: it breaks off",)
    path.write_bytes(gzip.compress(text)[:-8] + bytes(8))
    broken = runner.run_file(str(path))
    assert broken.frames == 400
    (note,) = broken.notes
    assert note.startswith("the file is not whole: its compression is broken: CRC check failed")
    path.write_bytes(gzip.compress(struct.pack("I", 7)))
    with pytest.raises(UsageError, match="neither a pcap nor a pcapng file"):
        runner.run_file(str(path))
    with pytest.raises(UsageError, match="has no frame: it breaks off"):
        frames_of(gzip.compress(text)[:10])
