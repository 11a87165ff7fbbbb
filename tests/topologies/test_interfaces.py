"""The client's interface: a bridge, a MACVLAN, a TUN."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from app.lab.plan import CLIENT
from app.lab.topology import open_end
from tests.topologies.application import application
from tests.topologies.network import Topology, topology
from tests.topologies.scenes import Scene, together
from tests.topologies.tracing import tracing, wait

pytestmark = pytest.mark.slow

TUN_SECONDS = 0.001
_CARRY = (
    "import sys; from app.lab.topology import Cable, carry;"
    "carry([Cable(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))])"
)


def give_addresses(network: Topology, node: str, interface: str, number: int) -> None:
    network.run(
        node,
        f"ip link set {interface} up",
        f"ip addr add 10.94.0.{number}/24 dev {interface}",
        f"ip -6 addr add fd94::{number}/64 dev {interface} nodad",
    )
    if node == CLIENT:
        network.run(
            node,
            "ip route replace default via 10.94.0.2",
            "ip -6 route replace default via fd94::2",
        )


@contextmanager
def bridge(network: Topology) -> Iterator[tuple[str, float]]:
    network.run(
        CLIENT,
        "ip addr flush dev eth0",
        "ip link add br0 type bridge",
        "ip link set eth0 master br0",
    )
    give_addresses(network, CLIENT, "br0", 1)
    yield "br0", 0


@contextmanager
def macvlan(network: Topology) -> Iterator[tuple[str, float]]:
    network.run(
        CLIENT, "ip addr flush dev eth0", "ip link add mv0 link eth0 type macvlan mode bridge"
    )
    give_addresses(network, CLIENT, "mv0", 1)
    yield "mv0", 0


@contextmanager
def tun(network: Topology) -> Iterator[tuple[str, float]]:
    network.run(CLIENT, "ip link del eth0")
    with ExitStack() as stack:
        ends = []
        for node, name, number in ((CLIENT, "eth0", 1), ("r1", "left", 2)):
            ends.append(open_end(network.nodes[node], name))
            stack.callback(partial(os.close, ends[-1]))
            give_addresses(network, node, name, number)
        command = [sys.executable, "-I", "-c", _CARRY, *map(str, ends), str(TUN_SECONDS)]
        process = stack.enter_context(subprocess.Popen(command, pass_fds=ends))
        stack.callback(process.kill)
        yield "eth0", 2 * TUN_SECONDS * 1000


KINDS = {"bridge": bridge, "macvlan": macvlan, "tun": tun}


def look(folder: Path, kind: str) -> Scene:
    with topology() as network, KINDS[kind](network) as (interface, more):
        with (
            application(network) as app,
            tracing(network, folder, interface=interface) as trace,
        ):
            wait(3)
            report = app.finish()
        delays = [built + more for built in network.delays_ms()]
        return Scene(trace, report, network.responders(), delays)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    folder = tmp_path_factory.mktemp("trace")
    plays = (partial(look, folder / kind, kind) for kind in KINDS)
    return dict(zip(KINDS, together(*plays), strict=True))


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, scenes: dict[str, Scene]) -> Scene:
    return scenes[request.param]


def test_every_hop_is_seen_at_its_time(scene: Scene) -> None:
    assert scene.wrong_hops() == {}
    assert scene.wrong_times() == {}


def test_nothing_is_lost_or_reported(scene: Scene) -> None:
    assert scene.trace.lost() == {}
    assert scene.trace.events == []


def test_the_application_is_undisturbed(scene: Scene) -> None:
    assert scene.report.harm() == {}
