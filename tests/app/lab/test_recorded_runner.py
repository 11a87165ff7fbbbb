"""Policies over a recording: the alarms are those of the packets, or the policy is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cli.main import cli
from app.lab.policy_runner import CaptureResult
from app.lab.recorded_runner import run_recording
from bpf.errors import UsageError
from probes.flow.records import FLOW
from probes.monitor.policy import Policy
from probes.monitor.records import METRIC
from probes.snapshot import Loss, LossReason, Snapshot
from tests.app.recording.made import BEGIN_NS, recorder
from tests.support.console.feed import window

SCANNER, HOST = "203.0.113.9", "192.0.2.9"


def _flows(number: int, scanned: int, start: int = 0) -> Snapshot:
    """A window of a DNS client and of a scan of so many ports, from `start` seconds on."""
    rows = np.zeros(1 + scanned, FLOW)
    rows["source"][:, :4], rows["destination"][:, :4] = (203, 0, 113, 9), (192, 0, 2, 9)
    rows["source"][0, :4] = 198, 51, 100, 7
    rows["version"], rows["protocol"], rows["packets"], rows["bytes"] = 4, 6, 2, 120
    rows["destination_port"] = np.arange(1, 2 + scanned)
    rows["protocol"][0], rows["destination_port"][0] = 17, 53
    end_ns = (start + number) * 10**9
    rows["first_ns"] = rows["last_ns"] = end_ns - 1
    item = window(rows, number, end_ns=end_ns)
    return replace(item, start_ns=end_ns - 10**9, end_utc_ns=BEGIN_NS + end_ns)


def _metrics(number: int, syns: int) -> Snapshot:
    """The metrics of a window that ends half a second before that of the flows."""
    row = np.zeros(1, METRIC)
    row["packets"], row["syn_packets"] = 10, syns
    end_ns = number * 10**9 - 10**9 // 2
    item = _flows(number, 0)
    return replace(
        item, probe="monitor", metric="metrics", rows=row, start_ns=end_ns - 10**9, end_ns=end_ns,
        end_utc_ns=BEGIN_NS + end_ns, schema=None,
    )  # fmt: skip


def _run(tmp_path: Path, items: list[Snapshot], *texts: str) -> CaptureResult:
    made = recorder(tmp_path)
    for item in items:
        made.deliver(item, 0)
    made.close()
    return run_recording(str(tmp_path), [Policy.parse_short(text) for text in texts])


SCAN = "scan: ports on tcp > 10 and rate(packets on dst:192.0.2.9 tcp) > 20/s hold 2s -> dns"


def test_alarms_have_their_time_and_their_culprit(tmp_path: Path) -> None:
    items = [_flows(number, 40 if number == 4 else 3) for number in range(1, 9)]
    result = _run(tmp_path, items, SCAN, "two: sources on !port:7 > 1 -> dns")
    scan = [each for each in result.told if each.transition.policy == "scan"]
    assert [(each.seconds, each.transition.after.label) for each in scan] == [
        (4.0, "active"), (5.0, "hold"), (6.0, "armed"),
    ]  # fmt: skip
    assert scan[0].transition.cause.startswith("ports on tcp 40 > 10, ")
    assert scan[0].finding
    assert SCANNER in scan[0].finding.text
    assert [each.seconds for each in result.told if each.transition.policy == "two"] == [1.0]
    assert (result.frames, result.seconds, result.begin_ns) == (8, 8.0, BEGIN_NS)


def test_a_gap_of_a_capture_has_empty_windows(tmp_path: Path) -> None:
    items = [_flows(1, 40), replace(_flows(2, 1, start=9), start_ns=10 * 10**9)]
    told = _run(tmp_path, items, SCAN, "few: udp_packets < 1 -> dns").told
    assert [(each.transition.policy, each.seconds) for each in told] == [
        ("scan", 1.0), ("scan", 2.0), ("few", 2.0), ("scan", 3.0), ("few", 11.0),
    ]  # fmt: skip


def test_the_monitor_s_own_windows_serve_its_metrics(tmp_path: Path) -> None:
    items = []
    for number in range(1, 5):
        items += [_metrics(number, 90 * (number == 3)), _flows(number, 30)]
    (begun, _) = _run(tmp_path, items, "syn: syn_packets > 50 -> dns").told
    assert begun.seconds == 3.0
    assert begun.finding
    assert SCANNER in begun.finding.text


def test_a_run_of_the_same_time_is_another_one(tmp_path: Path) -> None:
    items = [each for number in range(1, 5) for each in (_metrics(number, 0), _flows(number, 300))]
    assert not _run(tmp_path, items, "syn: syn_packets > 50 -> dns").told
    # The clock was set back before the second run.
    items = []
    for number in range(1, 5):
        flows = _flows(number, 30)
        rows = flows.rows.copy()
        rows["source"][1:, 3] = 77
        items += [_metrics(number, 90 * (number == 3)), replace(flows, rows=rows)]
    (begun, _) = _run(tmp_path, items, "syn: syn_packets > 50 -> dns").told
    assert begun.finding
    assert "203.0.113.77" in begun.finding.text
    assert SCANNER not in begun.finding.text


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("x: packets on flags=S > 5 -> dns", "recorded flows have no flags of single packets, for"),
        ("x: answered_flows on udp > 5 -> dns", "recorded flows have no answered_flows on udp"),
        ("x: owned > 5% -> dns", "recorded flows have no owned"),
        (
            "x: packets on udp / packets > 5% -> dns",
            "recorded flows have no frames without IP, for packets",
        ),
        ("x: packets > 5 -> dns", "recorded flows have no frames without IP, for packets"),
        ("x: syn_packets > 5 -> dns", "recorded flows have no syn_packets"),
    ],
)
def test_terms_that_a_recording_lacks_are_refused(tmp_path: Path, policy: str, why: str) -> None:
    result = _run(tmp_path, [_flows(1, 3)], policy)
    assert result.untested["x"].startswith(why)
    assert not result.told


def test_lost_packets_widen_the_limits(tmp_path: Path) -> None:
    item = replace(_flows(1, 3), losses={LossReason.FILTERED: Loss(50, 5000)})
    result = _run(tmp_path, [item], "x: packets on tcp > 20 -> dns")
    assert result.busiest["x"] == "packets on tcp 6 (6 to 56) <= 20"
    assert result.notes == ("flows of 1 window lack packets: limits are wider",)


def test_expectations_of_untested_policies_are_not_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recorder(tmp_path / "kept")
    for number in range(1, 9):
        made.deliver(_flows(number, 40 if number == 4 else 3), 0)
    made.close()

    def run(*expected: str, policies: Sequence[str] = (SCAN,)) -> int:
        more = [part for each in expected for part in ("--expect", each)]
        more += [part for each in policies for part in ("--policy", each)]
        arguments = ["policy", "test", str(tmp_path / "kept"), *more]
        with cli.make_context("probedeck", arguments) as context:
            code: int = cli.invoke(context)
            return code

    assert run(f"only scan by 00:00:04 from {SCANNER}", "scan by 2026-01-01T00:00:05") == 0
    assert run("scan by 00:00:03") == 3
    assert run("only scan", policies=[SCAN, "x: packets on flags=S > 5 -> dns"]) == 3
    found = capsys.readouterr().out
    assert "8 windows in 8.0 s" in found
    assert "not tested: x: recorded flows have no flags of single packets" in found
    assert "NOT MET: only scan: told after 4.0 s" in found
    with pytest.raises(UsageError, match="has no recording"):
        run_recording(str(tmp_path), ())
