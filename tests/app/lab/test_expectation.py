"""Expectations of policies over captures, and their outcomes as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from app import junit
from app.lab.expectation import Expectation, Outcome, suite
from app.lab.frames.windows import Told
from app.lab.policy_runner import CaptureResult
from bpf.errors import UsageError
from probes.monitor.engine import PolicyTransition
from probes.monitor.finding import Distinct, Finding, TopShare
from probes.monitor.state import PolicyState

NAMES = ("flood", "scan")


def transition(
    seconds: float,
    name: str,
    after: PolicyState = PolicyState.ACTIVE,
    finding: Finding | None = None,
) -> Told:
    before = PolicyState.ARMED if after is PolicyState.ACTIVE else PolicyState.ACTIVE
    return Told(seconds, PolicyTransition(name, before, after, 0, "packets 2 > 1"), finding)


def ends(*sources: tuple[str, float], network: str = "") -> Finding:
    top = tuple(TopShare(name, share) for name, share in sources)
    victim = Distinct(1, (TopShare("2001:db8::1", 1.0),), "2001:db8::1")
    return Finding("who", packets=9, sources=Distinct(700, top, network), destinations=victim)


RESULT = CaptureResult(
    (
        transition(1, "flood"),
        transition(2, "flood", PolicyState.COOLDOWN),
        transition(4, "scan", finding=ends(("192.0.2.7", 0.4), ("192.0.2.8", 0.09))),
        transition(6, "flood", finding=ends(network="10.0.0.0/9")),
    ),
    7, 6.5, {}, ("a note",),
)  # fmt: skip
SCAN = "told after 4.0 s, from 700 sources to 2001:db8::1"
QUIET = CaptureResult(
    (transition(2, "flood", PolicyState.COOLDOWN),), 7, 6.5, {"scan": "flows 2 <= 9"}, ()
)


@pytest.mark.parametrize(
    ("text", "met", "reason"),
    [
        ("flood", True, "told after 1.0 s"),
        ("flood by 1s", True, "told after 1.0 s"),
        (" scan  by 3.5 s", False, SCAN),
        ("scan by 1m", True, SCAN),
        ("scan from 192.0.2.7 to 2001:db8::1", True, SCAN),
        ("scan by 4s from 192.0.2.0/29", True, SCAN),
        ("scan from 192.0.2.8", False, SCAN),
        ("scan to 2001:db8::2", False, SCAN),
        ("scan by 3s from 192.0.2.7", False, SCAN),
        ("flood by 9s from 10.0.0.0/8", True, "told after 6.0 s, from 10.0.0.0/9 to 2001:db8::1"),
        ("flood by 9s from 10.0.0.0/10", False, "told after 1.0 s"),
        ("flood by 500ms", False, "told after 1.0 s"),
        ("only flood by 3s", False, f"told after 1.0 s; scan {SCAN}"),
        ("only scan", False, f"{SCAN}; flood told after 1.0 s"),
        ("none", False, f"flood told after 1.0 s; scan {SCAN}"),
    ],
)
def test_expectations_are_judged_by_what_fired(text: str, met: bool, reason: str) -> None:
    words = " ".join(text.split())
    assert Expectation.parse(text, NAMES).judge(RESULT) == Outcome(words, met, reason)


def test_a_policy_that_only_ends_does_not_fire() -> None:
    assert Expectation.parse("none", NAMES).judge(QUIET).met
    outcome = Expectation.parse("only flood by 3s", NAMES).judge(QUIET)
    assert outcome == Outcome("only flood by 3s", False, "not told")
    reason = "not told; in the window with most packets flows 2 <= 9"
    assert Expectation.parse("scan", NAMES).judge(QUIET).reason == reason


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not understood"),
        ("flood by", "is not understood"),
        ("flood by 3", "a unit is missing"),
        ("flood to 10.0.0.1 from 10.0.0.2", "is not understood"),
        ("flood from 10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("none by 3s", "no policy 'none'"),
        ("flod by 3s", "no policy 'flod'; did you mean flood?"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        Expectation.parse(text, NAMES)
    assert "--expect" in str(refused.value)


def test_junit_has_a_case_for_each_expectation_and_capture(tmp_path: Path) -> None:
    outcomes = [Expectation.parse(text, NAMES).judge(RESULT) for text in ("flood", "none")]
    suites = suite('a<"\x01.pcap', RESULT, outcomes), suite("b.pcap", QUIET, [])
    junit.write(str(tmp_path / "x.xml"), suites)
    first, second = ET.parse(tmp_path / "x.xml").getroot()
    assert first.attrib == {
        "name": 'a<"?.pcap', "tests": "2", "failures": "1", "errors": "0", "skipped": "0",
        "time": "6.500",
    }  # fmt: skip
    met, unmet = first.findall("testcase")
    assert (met.attrib, list(met)) == ({"classname": 'a<"?.pcap', "name": "flood"}, [])
    (failure,) = unmet
    assert failure.attrib == {"message": f"flood told after 1.0 s; scan {SCAN}"}
    log = first.findtext("system-out") or ""
    assert "4.000 s  scan is active: packets 2 > 1\n              who\n" in log
    assert log.endswith("note: a note")
    assert second.attrib["tests"] == "0"
