"""A policy that is refused, or begins too late, leaves no monitor and no applications."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from app.lab.netns import inside
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.errors import UsageError
from probes.hooks import Hooks
from probes.monitor.control.service import MonitorService
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.state import PROBE, TRIGGERS_TABLE
from probes.path.options import PathOptions
from tests.probes.deck import Deck, deck, published

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


def test_a_monitor_that_ends_leaves_the_place_of_a_later_one(compiler: Compiler) -> None:
    hooks, interface = Hooks(lambda point: None), Interface("test", 0, True)
    options = MonitorOptions(bits=8, ingress=Hook.XDP)
    first = MonitorProbe(compiler, interface, hooks, options)
    with closing(MonitorProbe(compiler, interface, hooks, options)):
        later = hooks.monitored(interface)
        first.close()
        assert hooks.monitored(interface) is later


def test_a_policy_that_begins_in_the_last_window_loads_nothing(
    deck: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its application stayed, and the monitor was `not removed: it has applications`."""
    deck.controller.watch_metrics("right", MonitorOptions(bits=8, interval=300))
    deck.controller.set_policy(Policy.parse_short("counted: packets on udp >= 3 -> accounting"))
    loaded: list[str] = []
    monkeypatch.setattr(MonitorService, "_load", lambda self, name: loaded.append(name))
    deck.receive(5)
    deck.controller.remove(PROBE)
    assert published(deck, PROBE, TRIGGERS_TABLE)["policy"].tolist() == [b"counted"]
    for thread in threading.enumerate():
        if thread.name == "applications":
            thread.join()
    assert loaded == []
