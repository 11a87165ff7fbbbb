"""Two tracers, many flows, and one rate for all hops."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from app.lab.plan import CLIENT
from tests.support.runs import deck_ends
from tests.topologies.application import application
from tests.topologies.catalogue import Layout
from tests.topologies.network import DELAYS, PLAIN, topology
from tests.topologies.scenes import Scene, play, together
from tests.topologies.tracing import tracing, wait

pytestmark = pytest.mark.slow

MANY = 500
BALANCED = 37


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, Scene]:
    """Two tracers that start before the application does."""
    folder = tmp_path_factory.mktemp("trace")
    with topology() as network:
        with tracing(network, folder / "a") as one, tracing(network, folder / "b") as other:
            with application(network) as app:
                wait(2.5)
            report = app.report
        hops, delays = network.responders(), network.delays_ms()
    return Scene(one, report, hops, delays), Scene(other, report, hops, delays)


def test_two_tracers_both_see_every_hop(twins: tuple[Scene, Scene]) -> None:
    for scene in twins:
        assert scene.wrong_hops() == {}
        assert scene.wrong_times() == {}


def test_two_tracers_lose_nothing(twins: tuple[Scene, Scene]) -> None:
    for scene in twins:
        assert scene.trace.lost() == {}


def test_two_tracers_hear_of_each_other(twins: tuple[Scene, Scene]) -> None:
    for scene in twins:
        texts = scene.trace.events
        # Once for each destination.
        assert len(texts) == 2, texts
        assert all("another tracer" in text for text in texts), texts


def test_two_tracers_leave_the_application_alone(twins: tuple[Scene, Scene]) -> None:
    assert twins[0].report.harm() == {}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """`many` and `shared_rate`."""
    folder = tmp_path_factory.mktemp("trace")
    twin = {100: DELAYS[2], 101: DELAYS[3]}
    plan = replace(PLAIN, twin=3, delays=DELAYS | twin)
    return together(
        partial(
            play, folder / "many", Layout(to=(PLAIN.addresses("server").ipv4,)),
            lambda *_: wait(8), kinds=("udp",), flows=MANY, rate=2,
        ),
        partial(
            play, folder / "shared", Layout(plan=plan, to=(plan.addresses("server").ipv4,)),
            lambda *_: wait(8), "--per", "global", "--rate", "200", kinds=("udp",),
            flows=BALANCED, rate=20,
        ),
    )  # fmt: skip


@pytest.fixture
def many(scenes: list[Scene]) -> Scene:
    return scenes[0]


def test_many_flows_change_nothing(many: Scene) -> None:
    assert many.trace.events == []
    assert many.trace.lost() == {}
    assert many.report.harm() == {}


@pytest.fixture
def shared_rate(scenes: list[Scene]) -> Scene:
    """Flows over two branches of equal length, and one rate for all hops."""
    return scenes[1]


def test_one_rate_for_all_hops_changes_nothing(shared_rate: Scene) -> None:
    texts = [text for text in shared_rate.trace.events if "hop 3" not in text]
    assert texts == []


def test_one_rate_for_all_hops_loses_nothing(shared_rate: Scene) -> None:
    assert shared_rate.trace.lost() == {}
    assert shared_rate.report.harm() == {}


def test_answers_to_probes_are_not_traffic(tmp_path: Path) -> None:
    # Acknowledgements are traffic.
    with topology() as network, application(network, kinds=("udp", "tcp")):
        code, _, _ = deck_ends(
            "run", "-i", network.interface, "--headless", "--monitor",
            "--trace", network.servers[4], "--trace", network.servers[6],
            "-o", str(tmp_path), "--duration", "3", ns=network.nodes[CLIENT],
        )  # fmt: skip
        assert code == 0

    def rows(table: str) -> list[dict[str, str]]:
        with (tmp_path / f"{table}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    assert len(rows("hops")) > 300
    assert sum(int(row["packets"]) for row in rows("metrics")) > 300
    assert sum(int(row["icmp_packets"]) for row in rows("metrics")) < 10
    routers = {address for hop in network.responders() for address in hop.values()}
    answers = [row for row in rows("flows") if row["source"] in routers]
    # Answers on the way when the run ends have no probe any more.
    assert sum(int(row["packets"]) for row in answers if row["protocol"] in ("1", "58")) < 10
