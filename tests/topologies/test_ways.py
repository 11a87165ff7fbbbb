"""Ways there and back: longer, shorter, parallel, hidden, and changed while packets flow."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tests.topologies.application import Application
from tests.topologies.catalogue import LAYOUTS, LONG, PARALLEL, Layout, loop
from tests.topologies.network import ROUTERS, VERSIONS, Topology
from tests.topologies.scenes import Scene, play, together
from tests.topologies.tracing import Tracing, wait, wait_until

pytestmark = pytest.mark.slow

UDP = 17
FLOWS = 8
"""With fewer, the kernel too often puts all of them on one branch."""


NAMES = ("long way back", "short way back", "tunnel")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    folder = tmp_path_factory.mktemp("trace")
    plays = (partial(play, folder / name, LAYOUTS[name]) for name in NAMES)
    return dict(zip(NAMES, together(*plays), strict=True))


@pytest.fixture(params=NAMES)
def scene(request: pytest.FixtureRequest, scenes: dict[str, Scene]) -> Scene:
    return scenes[request.param]


def test_every_hop_is_seen(scene: Scene) -> None:
    assert scene.wrong_hops() == {}


def test_nothing_is_reported(scene: Scene) -> None:
    assert scene.trace.events == []


def test_a_way_back_of_another_length_loses_nothing_and_makes_no_hop(scene: Scene) -> None:
    assert scene.trace.lost() == {}


def test_the_application_is_undisturbed(scene: Scene) -> None:
    assert scene.report.harm() == {}


def test_times_include_a_longer_way_back(scenes: dict[str, Scene]) -> None:
    assert scenes["long way back"].wrong_times() == {}


def branch(folder: Path, counted: set[int]) -> Scene:
    """Flows by two branches of unequal length; `counted` gets the source ports that d1 counted."""

    def count(network: Topology, app: Application, trace: Tracing) -> None:
        def is_complete() -> bool:
            """Whether every router of each flow's way has answered."""
            counted.update(network.counted_ports("d1", "filter forward"))
            seen = {(answer.source_port, answer.hop) for answer in trace.answers()}
            return all(
                (port, hop) in seen
                for port in app.ports
                for hop in range(1, ROUTERS + 1 + (port in counted))
            )

        wait_until(is_complete)
        app.finish()

    flows = {"udp": FLOWS, "tcp": 1, "echo": 1}
    return play(folder, LAYOUTS["branches"], count, flows=flows, rate=50)


def shorten(folder: Path) -> Scene:
    """The path becomes ten routers shorter; later a loop goes on for a second, and heals."""

    def change(network: Topology, app: Application, trace: Tracing) -> None:
        def is_probed(hop: int) -> bool:
            return hop in {each.hop for each in trace.answers() if each.protocol == UDP}

        wait_until(lambda: is_probed(ROUTERS + 10))
        network.lab.detour(False)
        wait(1)
        loop(network)
        wait_until(lambda: is_probed(2 * ROUTERS + 10))
        loop(network, healed=True)
        wait(1.5)

    layout = Layout(lambda network: network.lab.detour(True), LONG[10])
    return play(folder, layout, change, rate=200)


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Scene], set[int]]:
    """Flows by branches, packets by branches in turn, a path that became shorter and a loop that
    healed; and the ports that d1 counted of flows."""
    folder, counted = tmp_path_factory.mktemp("trace"), set[int]()
    scenes = together(
        partial(branch, folder / "flows", counted),
        partial(play, folder / "packets", LAYOUTS["scattered"], kinds=("udp", "echo")),
        partial(shorten, folder / "shorter"),
    )
    return scenes, counted


@pytest.fixture
def branches(divided: tuple[list[Scene], set[int]]) -> tuple[Scene, set[int]]:
    return divided[0][0], divided[1]


def test_flows_are_traced_along_their_branches(branches: tuple[Scene, set[int]]) -> None:
    scene, counted = branches
    seen = dict[tuple[int, int], set[str]]()
    for row in scene.trace.of("udp", outcome="answered"):
        seen.setdefault((row.source_port, row.hop), set()).add(row.responder)
    extra = PARALLEL.addresses("d1")
    ports = {port for port, _ in seen}
    assert len(ports) == FLOWS * len(VERSIONS)
    assert 0 < len(counted & ports) < len(ports)
    plain = [set(addresses.values()) for addresses in scene.hops]
    long = [*plain[:3], {extra.ipv4, extra.ipv6}, *plain[3:]]
    for port in ports:
        way = long if port in counted else plain
        for hop, addresses in enumerate(way, 1):
            found = seen.get((port, hop), set())
            assert len(found) == 1, (port, hop)
            assert found < addresses, (port, hop)
        assert (port, len(way) + 1) not in seen


def test_branches_of_unequal_length_lose_nothing(branches: tuple[Scene, set[int]]) -> None:
    assert branches[0].trace.lost() == {}


def test_branches_are_no_change_of_the_path(branches: tuple[Scene, set[int]]) -> None:
    texts = " ".join(branches[0].trace.events)
    assert not re.search("longer|shorter|changed|answers no more", texts), texts


def test_branches_leave_the_application_alone(branches: tuple[Scene, set[int]]) -> None:
    assert branches[0].report.harm() == {}


def test_a_shorter_path_and_a_healed_loop_bring_no_probe_to_the_application(
    divided: tuple[list[Scene], set[int]],
) -> None:
    scene = divided[0][2]
    assert {"foreign", "duplicates"}.isdisjoint(scene.report.harm())
    assert {row.hop for row in scene.trace.of("udp", outcome="answered")} > {15, 20}
    assert all(count > 0 for count in scene.report.received.values())


@pytest.fixture
def scattered(divided: tuple[list[Scene], set[int]]) -> Scene:
    return divided[0][1]


def test_packets_in_turn_are_told(scattered: Scene) -> None:
    texts = " ".join(scattered.trace.events)
    assert "in turn" in texts
    # Before that is known, the server may seem to be another router, with its own way back.
    wrong = "(?<!by a way back that is one hop )(longer|shorter)|answers no more"
    assert not re.search(wrong, texts), texts


def test_packets_in_turn_lose_nothing(scattered: Scene) -> None:
    # A probe to hop 6 may reach the server.
    assert set(scattered.trace.lost()) <= {6}
    assert scattered.report.harm() == {}
    extra, plain = PARALLEL.addresses("d1"), scattered.hops
    for hop, other in ((4, (extra.ipv4, extra.ipv6)), (5, plain[3].values())):
        for version in VERSIONS:
            found = scattered.trace.responders("udp", version, hop)
            assert found <= {*plain[hop - 1].values(), *other}
            assert len(found) == 2
