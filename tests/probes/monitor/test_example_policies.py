"""The shipped policies over made captures: attacks alone and beside ten times as many packets, and
loads that resemble attacks. Frames run through the kernel's programs.

`python -m bench.policies` has the same for attacks and loads by which no policy was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest

from app.lab.policy_runner import PolicyRunner
from probes.monitor.policy import Policy, load
from tests.support.made.attacks import ATTACKS, HOLES, LOCAL, Attack
from tests.support.made.judge import alarms, generator, named
from tests.support.made.loads import LOADS, office
from tests.support.made.traffic import later, mixed

EXAMPLES = Path(__file__).parents[3] / "examples"
ALL = load(EXAMPLES / "policies.toml")
ONE_BY_ONE = sorted((EXAMPLES / "policies").glob("*.toml"))
TRIGGERED = {policy.name: policy for policy in ALL.policy if policy.mode == "triggered"}
MANUAL = (Path(__file__).parents[3] / "docs" / "monitor.md").read_text(encoding="utf-8")
SECONDS = 2.0
MOST_FRAMES = 12_000
RATIO = 10
"""Packets of other traffic for each packet of an attack."""


def slowest() -> list[Attack]:
    """One short attack of each policy: the one with the fewest packets."""
    chosen: dict[str, tuple[int, Attack]] = {}
    for attack in ATTACKS:
        size = len(attack.rows(1.0, generator(attack.id)))
        if attack.seconds <= SECONDS:
            old = chosen.get(attack.policy, (size, attack))
            chosen[attack.policy] = min(old, (size, attack), key=itemgetter(0))
    return [attack for _, attack in chosen.values() if attack.policy not in DILUTED]


DILUTED = {"dns_tunnel", "icmp_tunnel", "slowloris", "http_flood"}
"""Policies that compare means: ten times as much of the same kind hides the attack."""


@pytest.fixture(scope="module")
def runner() -> Iterator[PolicyRunner]:
    with PolicyRunner(ALL.policy, local=[LOCAL]) as runner:
        yield runner


def test_they_leave_room_for_policies_of_the_user(runner: PolicyRunner) -> None:
    texts = [
        f"own{number}: rate(packets on dport:{number}) > 5 -> accounting on sport:{number}"
        for number in range(9000, 9003)
    ]
    for policy in map(Policy.parse_short, [*texts, "own: sources on dport:99 > 5 -> accounting"]):
        runner._monitor.set_policy(policy, ())
    for name in [f"own{number}" for number in range(9000, 9003)] + ["own"]:
        runner._monitor.remove_policy(name)


def test_each_kind_has_a_file_of_its_own() -> None:
    alone = {policy.name: policy for path in ONE_BY_ONE for policy in load(path).policy}
    assert [path.stem for path in ONE_BY_ONE] == sorted(TRIGGERED)
    assert alone == TRIGGERED
    assert {attack.policy for attack in ATTACKS} == TRIGGERED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_ordinary_loads_wake_none(runner: PolicyRunner, load: str) -> None:
    assert not alarms(runner, LOADS[load](SECONDS, generator(load)))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_an_attack_wakes_its_policy_and_no_other(runner: PolicyRunner, attack: Attack) -> None:
    most = MOST_FRAMES if attack.seconds <= SECONDS else None
    rows = attack.rows(SECONDS, generator(attack.id))[:most]
    told = alarms(runner, rows)
    assert told.keys() == {attack.policy}
    assert told[attack.policy].seconds <= max(3, attack.seconds)
    assert named(told[attack.policy], attack.culprit, attack.victim)


@pytest.mark.parametrize("attack", slowest(), ids=lambda attack: attack.id)
def test_other_traffic_does_not_hide_an_attack(runner: PolicyRunner, attack: Attack) -> None:
    """Ten times as many packets, and the attack begins within a window."""
    random = generator(attack.id)
    rows = attack.rows(1.7, random)
    beside = office(2.2, random, RATIO * len(rows) / 1.7)
    told = alarms(runner, mixed(beside, later(rows, 0.3)))
    assert told.keys() == {attack.policy}
    assert named(told[attack.policy], attack.culprit, attack.victim)


@pytest.mark.parametrize("attack", HOLES, ids=lambda attack: attack.id)
def test_a_hole_of_the_manual_is_one(runner: PolicyRunner, attack: Attack) -> None:
    most = MOST_FRAMES if attack.seconds <= SECONDS else None
    rows = attack.rows(SECONDS, generator(attack.id))[:most]
    assert not alarms(runner, rows)


def test_the_catalogue_of_the_manual_is_that_of_the_policies() -> None:
    """Each policy is in the catalogue, with the least rate of one of its comparisons. Each hole
    has a made attack."""
    section = MANUAL.partition("## The shipped policies")[2].partition("\n## ")[0]
    catalogue, _, holes = section.partition("**Holes.**")
    cataloged = set()
    for row in re.findall(r"^\|(.*)\|(.*)\|(.*)\|$", catalogue, re.MULTILINE)[2:]:
        rate = float(re.findall(r"[\d,.]+", row[2])[0].replace(",", ""))
        for name in re.findall(r"`(\w+)`", row[1]):
            cataloged.add(name)
            assert rate in rates(TRIGGERED[name].condition), row
    assert cataloged == TRIGGERED.keys()
    named_holes = re.findall(r"^\| (.*?) \|", holes, re.MULTILINE)[1:]
    assert set(named_holes) - {"---"} == {attack.hole for attack in HOLES}


def rates(condition: str) -> set[float]:
    """Numbers a second from which a condition can hold."""
    number = r"([\d.]+)(k?)(?:[A-Za-z]*/s)?"
    floors = re.findall(rf"> (?:(\d) \* baseline\(10m, )?{number}", condition)
    return {float(x) * (1000 if k else 1) * int(times or 1) for times, x, k in floors}
