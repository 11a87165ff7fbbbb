"""A policy that is refused leaves the controller as it was: no monitor, no applications."""

from __future__ import annotations

import pytest

from app.lab.netns import inside
from bpf.errors import UsageError
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.state import PROBE
from probes.path.options import PathOptions
from tests.probes.deck import Deck, deck

__all__ = ["deck"]
MANY = " or ".join(f"src:10.0.0.{n} dport:{n}" for n in range(1, 80))
"""More selections than the monitor has."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("burst: flows > 5 -> hea", "there is no application 'hea'"),
        (f"burst: flows > 5 -> accounting on {MANY}", "selections"),
    ],
)
@pytest.mark.parametrize("runs", [False, True])
def test_a_refused_policy_starts_nothing(deck: Deck, text: str, why: str, runs: bool) -> None:
    controller = deck.controller
    with inside(deck.right.ns):
        controller.paths.configure("right", PathOptions())
        if runs:
            controller.watch_metrics("right", MonitorOptions(bits=10))
        before = [info.name for info in controller.probes()]
        with pytest.raises(UsageError, match=why):
            controller.set_policy(Policy.parse_short(text))
        assert [info.name for info in controller.probes()] == before == [PROBE] * runs
        assert (controller.monitor() is not None) is runs
        info = controller.set_policy(Policy.parse_short("good: flows > 5 -> accounting"))
        assert info.policy.name == "good"
        assert [info.name for info in controller.probes()] == [PROBE, "accounting"]
