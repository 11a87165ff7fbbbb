"""Networks that translate addresses or drop invalid packets: homes, offices, clouds, containers."""

from __future__ import annotations

import pytest

from tests.topologies.application import KINDS
from tests.topologies.network import Topology
from tests.topologies.scenes import Change, Scene, play

FORWARDED = {4: "10.94.4.2", 6: "fd94:0:0:4::2"}
"""Addresses of r5, which forwards their packets to the server."""
GUARDED = pytest.mark.xfail(strict=True, reason="every probe is invalid for connection tracking")


def carrier(network: Topology) -> None:
    """A translation at home, and one at the provider."""
    network.translate("r2")
    network.translate("r4")


def firewall(network: Topology) -> None:
    """Only connections that start behind r3 pass it."""
    network.rules(
        "r3",
        "filter forward 0",
        "ct state invalid counter drop",
        "ct state established,related accept",
        'iifname "left" ct state new accept',
        policy="drop",
    )


def forward(network: Topology) -> None:
    """Packets to r5 go to the server."""
    network.rules(
        "r5",
        "nat prerouting -100",
        f"ip daddr {FORWARDED[4]} dnat ip to {network.servers[4]}",
        f"ip6 daddr {FORWARDED[6]} dnat ip6 to {network.servers[6]}",
    )


CHANGES: dict[str, Change] = {
    "masquerade": lambda network: network.translate("r2"),
    "carrier": carrier,
    "firewall": firewall,
    "forward": forward,
}


@pytest.fixture(scope="module", params=CHANGES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder, change = tmp_path_factory.mktemp("trace"), CHANGES[request.param]
    if change is not forward:
        return play(folder, change)
    # r5 answers with the address that is traced: it is no hop, but the destination.
    to = tuple(FORWARDED.values())
    return play(folder, change, to=to, hops=lambda network: network.responders()[:-1])


@pytest.mark.xfail(reason="every probe is invalid for connection tracking, except for `forward`")
@pytest.mark.parametrize("kind", KINDS)
def test_every_hop_is_seen(scene: Scene, kind: str) -> None:
    assert scene.wrong_hops([kind]) == {}


def test_times_are_the_built_ones(scene: Scene) -> None:
    assert scene.wrong_times() == {}


@GUARDED
def test_nothing_is_lost(scene: Scene) -> None:
    assert scene.trace.lost() == {}


def test_nothing_is_reported(scene: Scene) -> None:
    assert scene.trace.events == []


def test_the_application_is_undisturbed(scene: Scene) -> None:
    assert scene.report.harm() == {}
