"""Ways there and back: longer, shorter, parallel, hidden, and changed while packets flow."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from app.lab.plan import Detour
from tests.topologies.application import Application
from tests.topologies.network import DELAYS, PLAIN, VERSIONS, Topology
from tests.topologies.scenes import Scene, play
from tests.topologies.tracing import Tracing, wait

FLOWS = 6
PARALLEL = replace(PLAIN, detour=Detour(3, 1))
"""r3 has a second way to r4, by d1, one router longer and 2 ms shorter."""
ROUND = replace(PLAIN, detour=Detour(3, 2), delays=DELAYS | {110: 0.002})
"""r3 has a second way to r4, by d1 and d2, of the same delay."""


def back_by_detour(network: Topology) -> None:
    """Packets to the client take the detour."""
    for link in range(3):
        network.run(
            "r4",
            f"ip route replace 10.94.{link}.0/24 via 10.94.112.1 src 10.94.3.2",
            f"ip -6 route replace fd94:0:0:{link}::/64 via fd94:0:0:112::1",
        )


def there_by_detour(network: Topology) -> None:
    """Packets to the server take the detour."""
    network.lab.detour(True)


def hidden(network: Topology) -> None:
    """A tunnel from r2 to r4 hides r3."""
    ends = {"r2": ("10.94.2.1", "10.94.4.1", 1), "r4": ("10.94.4.1", "10.94.2.1", 2)}
    for node, (local, remote, number) in ends.items():
        network.run(
            node,
            f"ip link add tunnel type vxlan id 5 dstport 4789 local {local} remote {remote}",
            f"ip addr add 10.99.0.{number}/24 dev tunnel",
            f"ip -6 addr add fd99::{number}/64 dev tunnel nodad",
            "ip link set tunnel up mtu 1450",
        )
    network.run(
        "r2",
        "ip route add 10.94.4.0/24 via 10.94.2.2",
        "ip route replace default via 10.99.0.2",
        "ip -6 route replace default via fd99::2",
    )


def around(network: Topology) -> list[dict[int, str]]:
    """The answering addresses of the detour's path."""
    extra = [network.plan.addresses(name) for name in ("d1", "d2")]
    plain = network.responders()
    return [*plain[:3], *({4: each.ipv4, 6: each.ipv6} for each in extra), *plain[3:]]


def without_r3(network: Topology) -> list[dict[int, str]]:
    hops = network.responders()
    return [*hops[:2], *hops[3:]]


PHANTOM = pytest.mark.xfail(strict=True, reason="the way back decides about the length")


@pytest.fixture(scope="module")
def long_way_back(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(tmp_path_factory.mktemp("trace"), back_by_detour, plan=ROUND)


@pytest.fixture(scope="module")
def short_way_back(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(tmp_path_factory.mktemp("trace"), there_by_detour, plan=ROUND, hops=around)


@pytest.fixture(scope="module")
def tunnel(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(tmp_path_factory.mktemp("trace"), hidden, hops=without_r3)


SCENES = ("long_way_back", "short_way_back", "tunnel")


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    found: Scene = request.getfixturevalue(request.param)
    return found


def test_every_hop_is_seen(scene: Scene) -> None:
    assert scene.wrong_hops() == {}


def test_nothing_is_reported(scene: Scene) -> None:
    assert scene.trace.events == []


def test_a_shorter_way_back_loses_nothing(short_way_back: Scene) -> None:
    assert short_way_back.trace.lost() == {}


@PHANTOM
@pytest.mark.parametrize("name", ["long_way_back", "tunnel"])
def test_a_longer_way_back_makes_no_hop(request: pytest.FixtureRequest, name: str) -> None:
    # The tunnel hides a router on the way there only.
    assert request.getfixturevalue(name).trace.lost() == {}


def test_the_application_is_undisturbed(scene: Scene) -> None:
    assert scene.report.harm() == {}


def test_times_include_a_longer_way_back(long_way_back: Scene) -> None:
    assert long_way_back.wrong_times() == {}


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, set[int]]:
    """Flows by two branches of unequal length, and the source ports that d1 counted."""
    counted: set[int] = set()

    def share(network: Topology) -> None:
        network.run(
            "r3",
            "ip route replace default nexthop via 10.94.3.2 nexthop via 10.94.110.2",
            "ip -6 route replace default nexthop via fd94:0:0:3::2 nexthop via fd94:0:0:110::2",
        )
        rule = 'iifname "left" add @ports { udp sport }'
        network.rules("d1", "filter forward 0", rule, ports=True)

    def count(network: Topology, app: Application, _: Tracing) -> None:
        wait(2.5)
        app.finish()
        counted.update(network.counted_ports("d1", "filter forward"))

    folder = tmp_path_factory.mktemp("trace")
    scene = play(folder, share, count, plan=PARALLEL, kinds=("udp",), flows=FLOWS, rate=50)
    return scene, counted


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
            assert len(seen[port, hop]) == 1
            assert seen[port, hop] < addresses, (port, hop)
        assert (port, len(way) + 1) not in seen


@pytest.mark.xfail(strict=True, reason="the path has one length for all flows")
def test_branches_of_unequal_length_lose_nothing(branches: tuple[Scene, set[int]]) -> None:
    assert branches[0].trace.lost() == {}


def test_branches_are_no_change_of_the_path(branches: tuple[Scene, set[int]]) -> None:
    texts = " ".join(branches[0].trace.events)
    assert not re.search("longer|shorter|changed|answers no more", texts), texts


def test_branches_leave_the_application_alone(branches: tuple[Scene, set[int]]) -> None:
    assert branches[0].report.harm() == {}


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """r3 sends packets to r4 by both ways at random."""

    def scatter(network: Topology) -> None:
        rule = 'iifname "left" meta mark set numgen random mod 2'
        network.rules("r3", "filter prerouting -150", rule)
        for family, gateway in (("-4", "10.94.110.2"), ("-6", "fd94:0:0:110::2")):
            network.run(
                "r3",
                f"ip {family} route add default via {gateway} table 100",
                f"ip {family} rule add fwmark 1 lookup 100",
            )

    folder = tmp_path_factory.mktemp("trace")
    return play(folder, scatter, plan=PARALLEL, kinds=("udp",))


@pytest.mark.xfail(reason="balanced packets seem to change the path")
def test_packets_in_turn_are_told(scattered: Scene) -> None:
    texts = " ".join(scattered.trace.events)
    assert "in turn" in texts
    assert not re.search("longer|shorter|answers no more", texts), texts


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
