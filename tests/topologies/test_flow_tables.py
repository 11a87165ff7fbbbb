"""A router that forwards known flows by an nf_tables flow table, past its forward chain.

Under another kernel: `KERNEL_TESTS=tests/topologies/test_flow_tables.py .ci/kernels 6.1`.
"""

from __future__ import annotations

import json

import pytest

from app.lab.plan import LabPlan
from tests.topologies.application import Application
from tests.topologies.catalogue import Layout
from tests.topologies.network import Topology
from tests.topologies.scenes import Scene, play
from tests.topologies.tracing import Tracing, wait

KINDS = ("udp", "tcp")
_RULES = """
table inet fast {
  flowtable known { hook ingress priority 0; devices = { left, right }; }
  counter slow { }
  chain pass {
    type filter hook forward priority 0; policy accept;
    counter name slow
    ct state invalid drop
    meta l4proto { tcp, udp } flow add @known
  }
}
"""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, int]:
    """A trace by a router with a flow table, and the packets that its forward chain saw."""
    counted = 0

    def count(network: Topology, app: Application, trace: Tracing) -> None:
        nonlocal counted
        wait(5)
        found = json.loads(network.run("r2", "nft -j list counter inet fast slow"))
        (counter,) = (each["counter"] for each in found["nftables"] if "counter" in each)
        counted = counter["packets"]

    layout = Layout(
        lambda network: network.run("r2", "nft -f -", stdin=_RULES), LabPlan(4, bottleneck_bits=0)
    )
    folder = tmp_path_factory.mktemp("trace")
    return play(folder, layout, count, kinds=KINDS, rate=50), counted


def test_every_hop_is_seen(fast: tuple[Scene, int]) -> None:
    scene, slow = fast
    assert scene.wrong_hops(KINDS) == {}
    assert scene.trace.lost() == {}
    packets = scene.report.sent["udp4"] + scene.report.sent["udp6"]
    assert slow < packets / 2


def test_the_application_is_undisturbed(fast: tuple[Scene, int]) -> None:
    assert fast[0].report.harm() == {}
