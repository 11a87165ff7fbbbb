"""Generations that are watched after a replacement, and go again by themselves."""

from __future__ import annotations

import time

import pytest

from bpf.compiler import CompileError
from bpf.errors import KernelError
from probes.snapshot import Event
from tests.probes.deck import DEAD, UDP, Deck, arriving, deck, udp
from tests.probes.program.tools import DEEP, PACKETS, metric, total
from tests.support.sight import becomes

pytestmark = pytest.mark.timing

__all__ = ["deck"]


def test_a_generation_that_stands_still_is_rolled_back_by_itself(deck: Deck) -> None:
    health = {"seconds": 0.3}
    deck.controller.add(deck.config())
    with arriving(deck):
        deck.controller.replace(deck.config(DEAD, health=health))
        assert becomes(lambda: deck.info().generation == 3)
        (said,) = deck.said("warning")
        assert said.startswith("generation 2 is rolled back: no metric moved in 0.3 s, and ")
        assert said.endswith(" packets passed")
        assert deck.info().config == deck.config()
        assert total(deck.controller.export("probe")) >= 0
        assert becomes(lambda: total(deck.controller.export("probe")) > 0)
    time.sleep(0.4)
    assert deck.info().generation == 3, "what came back is not watched"


@pytest.mark.parametrize("interval", [0, 0.05])
def test_a_generation_that_counts_is_well(deck: Deck, interval: float) -> None:
    """S1.22: also without an interval."""
    health = {"seconds": 0.3, "metrics": ["packets"]}
    deck.controller.add(deck.config())
    with arriving(deck):
        deck.controller.replace(deck.config(UDP, health=health, interval=interval))
        assert becomes(lambda: "generation 2 is well" in deck.said("info"))
    assert not deck.said("warning")
    assert deck.info().generation == 2


def test_a_metric_that_is_named_must_move(deck: Deck) -> None:
    source = UDP.replace("BPF_ARRAY(packets", "BPF_ARRAY(still, u64, 1);\nBPF_ARRAY(packets")
    health = {"seconds": 0.3, "metrics": ["packets", "ingress.still"]}
    deck.controller.add(deck.config())
    with arriving(deck):
        deck.controller.replace(
            deck.config(source, PACKETS, metric("still", init=True), health=health, interval=0.05)
        )
        assert becomes(lambda: deck.info().generation == 3)
    (said,) = deck.said("warning")
    assert "rolled back: ingress.still did not move in 0.3 s, and " in said


def test_without_packets_a_generation_is_well(deck: Deck) -> None:
    deck.controller.add(deck.config())
    deck.controller.replace(deck.config(DEAD, health={"seconds": 0.1}))
    assert becomes(lambda: "generation 2 is well" in deck.said("info"))
    assert deck.info().generation == 2


def test_what_a_kept_map_held_does_not_pass_for_counting(deck: Deck) -> None:
    deck.controller.add(deck.config(UDP, metric("packets")))
    deck.run(5, udp())
    with arriving(deck):
        dead = deck.config(DEAD, metric("packets"), health={"seconds": 0.3}, interval=0.05)
        deck.controller.replace(dead)
        assert becomes(lambda: deck.info().generation == 3)


def test_an_error_rolls_back_at_once(deck: Deck) -> None:
    deck.controller.add(deck.config())
    deck.controller.replace(deck.config(UDP, health={"seconds": 60}))
    deck.controller.publish(Event.now("error", "probe", "window 7 is not whole: oh"))
    assert becomes(lambda: deck.info().generation == 3)
    assert deck.said("warning") == ["generation 2 is rolled back: window 7 is not whole: oh"]


@pytest.mark.parametrize("change", ["replace", "roll back", "remove"])
def test_another_change_ends_the_watch(deck: Deck, change: str) -> None:
    deck.controller.add(deck.config())
    with arriving(deck):
        deck.controller.replace(deck.config(DEAD, health={"seconds": 1}))
        with pytest.raises(CompileError):
            deck.controller.replace(deck.config("int count("))
        if change == "replace":
            deck.controller.replace(deck.config(DEAD))
        elif change == "roll back":
            deck.controller.roll_back("probe")
        else:
            deck.controller.remove("probe")
        time.sleep(1.2)
    assert not deck.said("warning")
    assert not deck.said("error")
    if change != "remove":
        assert deck.info().generation == 3


def test_a_change_that_fails_does_not_end_the_watch(deck: Deck) -> None:
    """S1.6: what ran is watched on."""
    deck.controller.add(deck.config())
    with arriving(deck):
        deck.controller.replace(deck.config(DEAD, health={"seconds": 0.3}))
        with pytest.raises(KernelError):
            deck.controller.replace(deck.config(DEEP))
        assert becomes(lambda: deck.info().generation == 3)
    assert deck.said("warning")
