"""Bursts that come again and again (S2.23)."""

from __future__ import annotations

from probes.monitor.state import PolicyState
from tests.probes.monitor.test_engine import Run


def test_a_baseline_learns_bursts_that_come_again() -> None:
    """S2.23: an SNMP poller, 500 answers a second for three seconds of each ten."""
    run = Run("a: rate(udp_packets) > 3 * baseline(10m, 50/s) -> dns")

    def begins(*rates: int) -> int:
        moved = [each for rate in rates for each in run.window(0, udp_packets=rate)]
        return sum(each.begins for each in moved)

    quiet, burst = [10] * 7, [300, 500, 450]
    assert [begins(*burst, *quiet) for _ in range(3)] == [1, 1, 1]
    assert begins(*[*burst, *quiet] * 20) == 0, "the third one was no news"
    assert begins(*[5000] * 30, *quiet) == 1, "and an attack is"
    assert begins(*[5000] * 30, *quiet) == 1
    assert begins(*burst, *quiet) == 0
    begins(*[10] * 3601)
    assert begins(*burst, *quiet) == 1, "an hour without bursts forgets them"


def test_an_attack_does_not_become_usual_while_it_lasts() -> None:
    run = Run("a: rate(udp_packets) > 3 * baseline(10m, 50/s) -> dns")
    for pulses in ([900, 20, 900, 900, 20] * 14, [900] * 90 + [10] * 30):
        for rate in 4 * [*pulses, 10, 10]:
            moved = run.window(0, udp_packets=rate)
            assert (run.engine.policies()[0].state is PolicyState.ACTIVE) == (rate > 150), moved
