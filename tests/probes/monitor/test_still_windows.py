"""Shortcuts of quiet windows: the rows and transitions are those of a whole evaluation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from probes.monitor.condition import Condition, ConditionOutcome
from probes.monitor.condition.series import WindowSeries
from probes.monitor.condition.terms import Over
from probes.monitor.engine import Engine
from probes.monitor.policy import Policy
from probes.monitor.selected import NOTHING, Estimate, SelectedMetric
from tests.probes.monitor.test_engine import SECOND
from tests.probes.monitor.windows import row

NTP, PORTS = SelectedMetric("packets", "udp sport:123"), SelectedMetric("ports", "tcp")
PACKETS, SOURCES = f"packets on {NTP.selection}", "sources on tcp"
TEXTS = (
    f"a: rate({PACKETS}) > 3 * baseline(20s, 2/s) and {PACKETS} > 5 hold 2s -> dns",
    "b: rate(packets) > 2 * baseline(30s, 4/s) -> dns",
    f"c: ports on tcp > 3 * baseline(20s, 2) or {PACKETS} / packets > 80% cooldown 3s -> dns",
    f"d: not ({PACKETS} < 9) and avg(rate(packets), 9s) > 3/s -> dns",
    f"e: {PACKETS} < 1 and packets > 7 -> dns",
    "f: rate(ports on tcp) > baseline(20s, 1/s) until packets < 3 hold 1s -> dns",
    "g: flows > 2 * baseline(20s, 3) and packets / flows < 2 -> dns",
    f"h: packets - {PACKETS} > 3 * baseline(20s) -> dns",
)


def _windows(
    count: int,
) -> Iterator[tuple[Mapping[str, float], float, Mapping[SelectedMetric, Estimate]]]:
    """Long quiet times, traffic of several rates, and bursts."""
    rng, rate = random.Random(5), 0
    for number in range(count):
        if number % 15 == 0:
            rate = rng.choice((0, 0, 2, 6, 40))
        packets = rng.randint(0, rate)
        ntp, ports = rng.randint(0, packets), rng.randint(0, packets // 3)
        flows = {"flows": ports, "flows_low": ports, "flows_high": ports + ports // 2}
        known = {NTP: Estimate(ntp, ntp, ntp)} if number > 4 else {}
        known[PORTS] = Estimate(ports, ports - ports // 9, ports + 1) if ports else NOTHING
        seconds = rng.choice((1.0, 1.0, 1.0, 0.5, 3.0, 15.0))
        yield {"packets": packets, **flows}, seconds, known


def _rows(engines: list[Engine], windows: int) -> list[tuple[bytes, str]]:
    found, now_ns = [], 0
    for metrics, seconds, known in _windows(windows):
        now_ns += round(seconds * SECOND)
        moved = [engine.window(row(**metrics), now_ns, seconds, known) for engine in engines]
        rows = b"".join(engine.rows().tobytes() for engine in engines)
        found.append((rows, str([each for of in moved for each in of])))
    return found


def _engine(*texts: str) -> Engine:
    engine = Engine()
    for text in texts:
        engine.set(Policy.parse_short(text), 0)
    return engine


def test_a_shortcut_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = _rows([_engine(*TEXTS)], 200)
    evaluate = Condition.evaluate
    monkeypatch.setattr(Over, "has_floor", False)
    monkeypatch.setattr(Condition, "inputs", None)
    monkeypatch.setattr(Condition, "evaluate", lambda *args, whole=True: evaluate(*args))
    # Each with windows for baselines of its own.
    assert _rows([_engine(text) for text in TEXTS], 200) == shared
    assert sum("PolicyTransition" in moved for _, moved in shared) > 20


def test_still_windows_are_not_evaluated() -> None:
    engine, now_ns = _engine(TEXTS[0], TEXTS[5]), 0
    known = {NTP: NOTHING, PORTS: NOTHING}
    outcomes: list[ConditionOutcome | None] = []
    for _ in range(60):
        now_ns += SECOND
        engine.window(row(packets=1), now_ns, 1.0, known)
        outcomes.append(engine.policies()[0].outcome)
    # Evaluated again only where enough windows came to count those of the baseline anew.
    assert len({id(each) for each in outcomes}) < 10
    engine.window(row(packets=1), now_ns + SECOND, 1.0, {**known, NTP: Estimate(1, 1, 1)})
    last = engine.policies()[0].outcome
    assert last
    assert (last.deciding.value, last.deciding.threshold) == (1, 6)


def test_policies_share_their_quiet_windows_until_one_is_active() -> None:
    engine = _engine("a: packets > 5 -> dns", "b: packets > 9 -> dns")
    machines = [*engine._machines.values()]
    for number, packets in enumerate((1, 2, 7, 1), 1):
        assert (machines[0].quiet is machines[1].quiet) == (number < 4)
        engine.window(row(packets=packets), number * SECOND, 1.0, {})
    kept: list[WindowSeries] = [machine.quiet for machine in machines]
    assert [[*each.column("packets")] for each in kept] == [[1, 2], [1, 2, 7, 1]]
