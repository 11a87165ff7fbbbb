"""Where a path ends: behind a translation that only UDP passes, and routers that answer little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.lab.plan import SERVER
from tests.topologies.application import Application
from tests.topologies.catalogue import LAYOUTS, Layout
from tests.topologies.network import PLAIN, Topology
from tests.topologies.scenes import Scene, play
from tests.topologies.tracing import Tracing, wait


def waiting(seconds: float) -> Callable[[Topology, Application, Tracing], None]:
    return lambda network, app, trace: wait(seconds)


@pytest.mark.parametrize("name", ["masquerade", "firewall"])
def test_datagrams_alone_show_every_hop_behind_a_translation(tmp_path: Path, name: str) -> None:
    """The finder tells how far whole datagrams may go; the application gets none of them."""
    scene = play(tmp_path, LAYOUTS[name], waiting(6), kinds=("udp",))
    assert scene.wrong_hops(["udp"]) == {}
    assert scene.trace.lost() == {}
    assert scene.trace.events == []
    assert scene.report.harm() == {}


def swallow(network: Topology) -> None:
    """r2 lets no report of a router behind it pass."""
    network.rules("r2", "filter forward 0", "icmp type time-exceeded drop",
                  "icmpv6 type time-exceeded drop")  # fmt: skip


def test_a_firewall_that_hides_all_routers_behind_it_is_reported(tmp_path: Path) -> None:
    scene = play(tmp_path, Layout(swallow), waiting(9))
    note = "NAT or firewall behind hop 2: packets pass, probes do not"
    server = PLAIN.addresses(SERVER)
    assert sorted(scene.trace.events) == [f"{to}: {note}" for to in (server.ipv4, server.ipv6)]
    assert scene.trace.lost() == {}
    assert scene.report.harm() == {}


@pytest.fixture(scope="module", params=["silent", "limited"])
def last(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The last router never answers, or ten times a second."""
    name = (f"r{PLAIN.routers}",)
    quiet = request.param == "silent"
    plan = replace(PLAIN, silent=name if quiet else (), limited=() if quiet else name)
    return play(tmp_path_factory.mktemp("trace"), Layout(plan=plan), waiting(7))


def test_a_last_router_that_answers_little_is_no_event(last: Scene) -> None:
    assert last.trace.events == []
    assert last.phantoms() == set()
    assert last.report.harm() == {}
