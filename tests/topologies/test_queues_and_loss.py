"""Queues on the last link and on the way back, and loss that starts and ends."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from probes.path.records import DESTINATION_HOP
from tests.topologies.application import Application
from tests.topologies.bulk import bulk
from tests.topologies.catalogue import Layout
from tests.topologies.network import VERSIONS, Topology
from tests.topologies.scenes import TOLERANCE_MS, Scene, play, together
from tests.topologies.tracing import Tracing, wait

pytestmark = pytest.mark.slow

QUEUE_MS = 100
LOSS_PERCENT = 10
_LINE = "tbf rate 8mbit burst 4kb latency 200ms"


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, int]:
    """A queue at the last link, and the time in ns when it had filled."""
    filled = 0

    def fill(network: Topology, app: Application, trace: Tracing) -> None:
        nonlocal filled
        wait(2)
        network.run("r5", f"tc qdisc add dev right root {_LINE}")
        with bulk(network, network.servers[4]):
            wait(1)
            filled = time.time_ns()
            wait(2.5)

    return play(tmp_path_factory.mktemp("trace"), Layout(), fill), filled


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """`lossy` and `queued_back`."""
    folder = tmp_path_factory.mktemp("trace")
    return together(partial(lose, folder / "lossy"), partial(queue_back, folder / "queued"))


def lose(folder: Path) -> Scene:
    def during(network: Topology, app: Application, trace: Tracing) -> None:
        wait(1.5)
        rule = f'iifname "left" numgen random mod 100 < {LOSS_PERCENT} drop'
        network.rules("r4", "filter prerouting 0", rule)
        wait(4)
        network.run("r4", "nft flush ruleset")
        wait(3)

    return play(folder, Layout(), during)


def queue_back(folder: Path) -> Scene:
    def during(network: Topology, app: Application, trace: Tracing) -> None:
        wait(2)
        network.run("r4", f"tc qdisc add dev left root {_LINE}")
        with bulk(network, network.servers[4], download=True):
            wait(3.5)

    return play(folder, Layout(), during)


@pytest.fixture
def lossy(scenes: list[Scene]) -> Scene:
    """Loss between r3 and r4 for some seconds."""
    return scenes[0]


@pytest.fixture
def queued_back(scenes: list[Scene]) -> Scene:
    """A queue from r4 to r3."""
    return scenes[1]


@pytest.mark.parametrize("kind", ["tcp", "echo"])
def test_the_queue_on_the_last_link_is_in_the_destinations_row(
    queued: tuple[Scene, int], kind: str
) -> None:
    scene, filled = queued
    for version in VERSIONS:
        assert len(scene.trace.times(kind, version, DESTINATION_HOP)) > 20
        times = scene.trace.times(kind, version, DESTINATION_HOP, since=filled)
        assert times
        assert median(times) > scene.delays[-1] + QUEUE_MS


def test_the_queue_on_the_last_link_is_told(queued: tuple[Scene, int]) -> None:
    texts = queued[0].trace.events
    assert any("queue" in text and "10.94.5.2" in text for text in texts), texts


def test_a_queue_behind_the_routers_is_not_at_them(queued: tuple[Scene, int]) -> None:
    scene, filled = queued
    assert scene.wrong_times(since=filled) == {}


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["tcp", "echo"])
def test_the_destinations_time_is_the_built_one(lossy: Scene, kind: str) -> None:
    for version in VERSIONS:
        assert len(lossy.trace.of(kind, version, DESTINATION_HOP, "answered")) > 20
        took = lossy.trace.median_ms(kind, version, DESTINATION_HOP)
        assert abs(took - lossy.delays[-1]) < TOLERANCE_MS


@pytest.mark.timing
def test_times_of_routers_are_the_built_ones(lossy: Scene) -> None:
    assert lossy.wrong_times(median) == {}


@pytest.mark.timing
def test_loss_that_starts_and_ends_is_told(lossy: Scene) -> None:
    texts = lossy.trace.events
    assert any("loss" in text and "hop 4" in text for text in texts), texts
    assert len(texts) <= 4, texts


@pytest.mark.timing
def test_loss_is_measured(lossy: Scene) -> None:
    for hop in (1, 2, 3):
        assert lossy.trace.lost()[hop] == 0
    for hop in (4, 5):
        # 10 % of the probes in 4 s of 8.5 s, from there on
        share = lossy.trace.lost()[hop] / len(lossy.trace.of(hop=hop))
        assert 0.02 < share < 0.08


@pytest.mark.timing
def test_a_queue_on_the_way_back_is_between_two_hops(queued_back: Scene) -> None:
    texts = [text for text in queued_back.trace.events if "queue" in text]
    assert texts
    for text in texts:
        assert "(hop 3)" in text
        # TCP timestamps may tell the direction; other flows do not.
        assert "(hop 4), either way" in text or "(hop 4), on the way back" in text
