"""The example's policies over made captures: each attack alone and beside ten times as many
packets, and loads that resemble attacks. Frames run through the kernel's programs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BytesIO
from ipaddress import IPv4Address
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from app.lab.capture import CaptureFile
from app.lab.policy_runner import CaptureResult, PolicyRunner, Told
from probes.monitor.policy import load
from tests.support.made.attacks import ATTACKS, Attack
from tests.support.made.loads import LOADS, office
from tests.support.made.traffic import Random, Rows, later, mixed, pcap

EXAMPLES = Path(__file__).parents[3] / "examples"
ALL = load(EXAMPLES / "policies.toml")
ONE_BY_ONE = sorted((EXAMPLES / "policies").glob("*.toml"))
TRIGGERED = [policy for policy in ALL.policy if policy.mode == "triggered"]
MOST_FRAMES = 30_000
RATIO = 10
"""Packets of other traffic for each packet of an attack."""


def generator(name: str) -> Random:
    return np.random.default_rng(zlib.crc32(name.encode()))


def slowest() -> list[Attack]:
    """One attack of each policy: the one with the fewest packets."""
    chosen: dict[str, tuple[int, Attack]] = {}
    for attack in ATTACKS:
        size = len(attack.make(1.0, generator(attack.id)))
        chosen[attack.policy] = min(
            chosen.get(attack.policy, (size, attack)), (size, attack), key=itemgetter(0)
        )
    return [attack for _, attack in chosen.values()]


@pytest.fixture(scope="module")
def runner() -> Iterator[PolicyRunner]:
    with PolicyRunner(ALL.policy) as runner:
        yield runner


def run(runner: PolicyRunner, rows: Rows) -> CaptureResult:
    return runner.run(CaptureFile(BytesIO(pcap(rows)), "made"))


def fired(result: CaptureResult) -> dict[str, Told]:
    """The first alarm of each policy."""
    return {
        told.transition.policy: told for told in reversed(result.told) if told.transition.begins
    }


def named(told: Told, attack: Attack) -> bool:
    """Whether the finding has the culprit and the victim first."""
    assert told.finding
    for address, side in (
        (attack.source, told.finding.sources),
        (attack.destination, told.finding.destinations),
    ):
        if address and side.top[0].name != str(IPv4Address(address)):
            return False
    return True


def test_each_kind_has_a_file_of_its_own() -> None:
    assert [path.stem for path in ONE_BY_ONE] == sorted(policy.name for policy in TRIGGERED)
    alone = [policy for path in ONE_BY_ONE for policy in load(path).policy]
    assert alone == sorted(TRIGGERED, key=lambda policy: policy.name)
    assert {attack.policy for attack in ATTACKS} == {policy.name for policy in TRIGGERED}


@pytest.mark.parametrize("load", LOADS)
def test_ordinary_loads_wake_none(runner: PolicyRunner, load: str) -> None:
    rows = LOADS[load](3.0, generator(load))
    assert not fired(run(runner, rows[:MOST_FRAMES]))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_an_attack_wakes_its_policy_and_no_other(runner: PolicyRunner, attack: Attack) -> None:
    rows = attack.make(2.0, generator(attack.id))[:MOST_FRAMES]
    told = fired(run(runner, rows))
    assert told.keys() == {attack.policy}
    assert told[attack.policy].seconds <= 3
    assert named(told[attack.policy], attack)


@pytest.mark.parametrize("attack", slowest(), ids=lambda attack: attack.id)
def test_other_traffic_does_not_hide_an_attack(runner: PolicyRunner, attack: Attack) -> None:
    """Ten times as many packets, and the attack begins within a window."""
    random = generator(attack.id)
    rows = attack.make(1.7, random)
    beside = office(2.2, random, RATIO * len(rows) / 1.7)
    told = fired(run(runner, mixed(beside, later(rows, 0.3))))
    assert told.keys() == {attack.policy}
    assert named(told[attack.policy], attack)


def test_the_first_window_of_a_runner_has_all_metrics() -> None:
    """A capture may be over within a window."""
    attack = next(attack for attack in ATTACKS if attack.policy == "worm")
    rows = attack.make(0.9, generator(attack.id))
    with PolicyRunner(load(EXAMPLES / "policies" / "worm.toml").policy) as runner:
        assert fired(run(runner, rows)).keys() == {"worm"}
