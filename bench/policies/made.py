"""Scores of the policies over the made attacks and loads of tests/support/made.

Some are those by which the policies were chosen. The others are held out. Each runs
alone, and beside an office's ordinary traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.lab.frames.windows import Told
from app.lab.policy_runner import PolicyRunner
from bench.policies import others
from tests.support.made.attacks import ATTACKS, HOLES, Attack
from tests.support.made.attacks_held_out import HELD_OUT as OTHER_ATTACKS
from tests.support.made.judge import alarms, generator, named
from tests.support.made.loads import LOADS, office
from tests.support.made.loads_held_out import HELD_OUT as OTHER_LOADS
from tests.support.made.traffic import Make, Rows, mixed

BESIDE = 500
"""Packets a second of ordinary traffic."""
PARTS: Mapping[str, tuple[tuple[Attack, ...], Mapping[str, Make]]] = {
    "known": (ATTACKS + HOLES, LOADS),
    "held out": (OTHER_ATTACKS, OTHER_LOADS),
    "others, held out": (others.ATTACKS, others.LOADS),
}


@dataclass(slots=True)
class MadeScore:
    """Counts of a part, in one of the two ways."""

    attacks: int = 0
    told: int = 0
    named: int = 0
    misnamed: int = 0
    """Attacks that woke another policy, too."""
    holes: int = 0
    """Attacks that docs/monitor.md says are not told."""
    loads: int = 0
    false: int = 0


def scores(runner: PolicyRunner, seconds: float) -> Iterable[tuple[str, MadeScore]]:
    """Yield the scores of each part, after lines about each wrong answer."""
    for part, (attacks, loads) in PARTS.items():
        for beside in (0, BESIDE):
            score, way = MadeScore(), f"{part}, beside {beside}/s" if beside else f"{part}, alone"
            for attack in attacks:
                random = generator(attack.id)
                length = max(seconds, attack.seconds)
                rows = attack.rows(seconds, random)
                told = alarms(runner, _with_office(rows, length, beside, attack.id))
                _judge(score, attack, told, way)
            for name, make in loads.items():
                length = max(12.0, seconds) if "burst" in name else seconds
                rows = _with_office(make(length, generator(name)), length, beside, name)
                score.loads += 1
                if wrong := alarms(runner, rows):
                    score.false += 1
                    _print(wrong, f"FALSE  {way}: {name}")
            yield way, score


def _with_office(rows: Rows, seconds: float, rate: int, name: str) -> Rows:
    return mixed(rows, office(seconds, generator(f"beside {name}"), rate)) if rate else rows


def _judge(score: MadeScore, attack: Attack, told: Mapping[str, Told], way: str) -> None:
    mine = told.get(attack.policy)
    right = mine is not None and named(mine, attack.culprit, attack.victim)
    others = {name: each for name, each in told.items() if name != attack.policy}
    score.attacks += 1
    score.holes += bool(attack.hole)
    score.told += mine is not None
    score.named += right
    score.misnamed += bool(others)
    if not right:
        which = "told, but not whom" if mine else "a known hole" if attack.hole else "MISSED"
        print(f"{which}  {way}: {attack.id}", flush=True)
        if mine and mine.finding:
            print(f"    {mine.finding.text}")
    _print(others, f"ALSO   {way}: {attack.id}")


def _print(wrong: Mapping[str, Told], what: str) -> None:
    for name, told in wrong.items():
        print(f"{what}: {name} at {told.seconds:.1f} s: {told.transition.cause}", flush=True)
