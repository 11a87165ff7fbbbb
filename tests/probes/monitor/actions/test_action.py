"""The text of an action: its meaning, the way back, and every mistake with its place."""

from __future__ import annotations

import pytest

from bpf.errors import UsageError
from probes.monitor.actions.action import ActionKind, PacketAction
from probes.monitor.policy import Policy


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("drop", PacketAction(ActionKind.DROP)),
        ("limit 1000pps", PacketAction(ActionKind.LIMIT, rate=1000)),
        ("limit 1.5kpps out", PacketAction(ActionKind.LIMIT, rate=1500, outgoing=True)),
        ("limit 2M/s for 90s", PacketAction(ActionKind.LIMIT, rate=2e6, seconds=90)),
        ("mirror eth1.5", PacketAction(ActionKind.MIRROR, interface="eth1.5")),
        ("drop culprit for 10m", PacketAction(ActionKind.DROP, culprit=True, seconds=600)),
        ("dry drop for 1d share 5%", PacketAction(ActionKind.DROP, dry=True, seconds=86400,
                                                  share=0.05)),
    ],
)  # fmt: skip
def test_an_action_stands_among_the_applications(text: str, action: PacketAction) -> None:
    short = f"a: flows > 5 -> dns, {text} on udp dport:53 or tcp"
    policy = Policy.parse_short(short)
    assert policy.action == action
    assert policy.run == ("dns", text)
    assert policy.to_short() == short
    assert Policy.parse(policy.dump(), "test") == policy


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("drop", "an action needs its packets (column 17)"),
        ("drop on", "'drop on' after '->' is not understood (column 17)"),
        ("limit on udp", "a rate, such as 1000pps is missing"),
        ("limit 0pps on udp", "'0pps' is zero (column 23)"),
        ("limit 5apples on udp", "'5apples' is not a rate, such as 1000pps"),
        ("mirror on udp", "the interface that gets the copies is missing"),
        ("mirror ../../etc on udp", "'../../etc' is no name of an interface"),
        ("dry on udp", "drop, limit or mirror is missing"),
        ("dry dns on udp", "'dns' is no action (column 21)"),
        ("drop for 2d on udp", "'2d' is longer than a day (column 26)"),
        ("drop share 101% on udp", "'101%' is more than all traffic"),
        ("drop share 5% for 5s on udp", "'for' does not belong to an action (column 31)"),
        ("drop, limit 5pps on udp", "run[1]: a policy has one action (column 23)"),
        ("drop out culprit on udp", "'culprit' does not belong to an action (column 26)"),
        ("drop on process:nginx", "an action takes no owners (column 25)"),
    ],
)
def test_a_mistake_has_its_place(then: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Policy.parse_short(f"a: flows > 5 -> {then}")
    assert said in str(caught.value)


def test_an_action_on_the_culprit_needs_a_condition_and_no_filter() -> None:
    short = "a: flows > 5 -> limit 1000pps culprit"
    policy = Policy.parse_short(short)
    assert (policy.select, policy.to_short()) == ((), short)
    with pytest.raises(UsageError, match="a culprit needs a condition"):
        Policy.parse_short("a: always -> drop culprit on udp")


def test_applications_may_begin_like_actions() -> None:
    assert Policy.parse_short("a: flows > 5 -> dropper, dry_run").action is None
