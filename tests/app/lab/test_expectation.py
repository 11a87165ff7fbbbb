"""Expectations of policies over captures, and their outcomes as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from app.lab.expectation import Expectation, Outcome, junit
from app.lab.policy_runner import CaptureResult, Told
from bpf.errors import UsageError
from probes.monitor.engine import PolicyTransition
from probes.monitor.state import PolicyState

NAMES = ("flood", "scan")


def transition(seconds: float, name: str, after: PolicyState = PolicyState.ACTIVE) -> Told:
    before = PolicyState.ARMED if after is PolicyState.ACTIVE else PolicyState.ACTIVE
    return Told(seconds, PolicyTransition(name, before, after, 0, "packets 2 > 1"))


RESULT = CaptureResult(
    (
        transition(1, "flood"),
        transition(2, "flood", PolicyState.COOLDOWN),
        transition(4, "scan"),
        transition(6, "flood"),
    ),
    7, 6.5, ("a note",),
)  # fmt: skip
QUIET = CaptureResult((transition(2, "flood", PolicyState.COOLDOWN),), 7, 6.5, ())


@pytest.mark.parametrize(
    ("text", "met", "reason"),
    [
        ("flood", True, "told after 1.0 s"),
        ("flood by 1s", True, "told after 1.0 s"),
        (" scan  by 3.5 s", False, "told after 4.0 s"),
        ("scan by 1m", True, "told after 4.0 s"),
        ("flood by 500ms", False, "told after 1.0 s"),
        ("only flood by 3s", False, "told after 1.0 s; scan told after 4.0 s"),
        ("only scan", False, "told after 4.0 s; flood told after 1.0 s"),
        ("none", False, "flood told after 1.0 s; scan told after 4.0 s"),
    ],
)
def test_expectations_are_judged_by_what_fired(text: str, met: bool, reason: str) -> None:
    words = " ".join(text.split())
    assert Expectation.parse(text, NAMES).judge(RESULT) == Outcome(words, met, reason)


def test_a_policy_that_only_ends_does_not_fire() -> None:
    assert Expectation.parse("none", NAMES).judge(QUIET).met
    outcome = Expectation.parse("only flood by 3s", NAMES).judge(QUIET)
    assert outcome == Outcome("only flood by 3s", False, "not told")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not understood"),
        ("flood by", "is not understood"),
        ("flood by 3", "is not understood"),
        ("none by 3s", "no policy 'none'"),
        ("flod by 3s", "no policy 'flod'; did you mean flood?"),
    ],
)
def test_mistakes_are_named(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        Expectation.parse(text, NAMES)
    assert "--expect" in str(refused.value)


def test_junit_has_a_case_for_each_expectation_and_capture() -> None:
    outcomes = [Expectation.parse(text, NAMES).judge(RESULT) for text in ("flood", "none")]
    root = ET.fromstring(junit([('a<"\x01.pcap', RESULT, outcomes), ("b.pcap", QUIET, [])]))
    first, second = root
    assert first.attrib == {
        "name": 'a<"?.pcap', "tests": "2", "failures": "1", "errors": "0", "time": "6.500"
    }  # fmt: skip
    met, unmet = first.findall("testcase")
    assert (met.attrib, list(met)) == ({"classname": 'a<"?.pcap', "name": "flood"}, [])
    (failure,) = unmet
    assert failure.attrib == {"message": "flood told after 1.0 s; scan told after 4.0 s"}
    log = first.findtext("system-out") or ""
    assert "1.000 s  flood is active: packets 2 > 1" in log
    assert log.endswith("note: a note")
    assert second.attrib["tests"] == "0"
