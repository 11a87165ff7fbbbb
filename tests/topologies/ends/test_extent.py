"""Where a path ends: behind a translation that only UDP passes, and routers that answer little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from app.lab.plan import SERVER
from probes.path.records import DESTINATION_HOP
from tests.topologies.application import Application
from tests.topologies.catalogue import LAYOUTS, Layout
from tests.topologies.network import PLAIN, ROUTERS, VERSIONS, Topology
from tests.topologies.scenes import Scene, play, together
from tests.topologies.tracing import Tracing, wait, wait_until

pytestmark = pytest.mark.slow


def waiting(seconds: float) -> Callable[[Topology, Application, Tracing], None]:
    return lambda network, app, trace: wait(seconds)


def until_known(first: int) -> Callable[[Topology, Application, Tracing], None]:
    """Return a wait until every hop of UDP from `first` on has answered, and the server."""

    def during(network: Topology, app: Application, trace: Tracing) -> None:
        every = (*range(first, ROUTERS + 1), DESTINATION_HOP)
        hops = {(version, hop) for version in VERSIONS for hop in every}
        wait_until(lambda: hops <= {(each.version, each.hop) for each in trace.answers()})

    return during


# The first hop that answers, and packets a second.
BEHIND = {"masquerade": (1, 5), "silent first": (2, 20)}


def test_datagrams_alone_show_every_hop_behind_a_translation(tmp_path: Path) -> None:
    """The finder measures them beside the flow."""
    plays = [
        partial(play, tmp_path / name, LAYOUTS[name], until_known(first), kinds=("udp",), rate=rate)
        for name, (first, rate) in BEHIND.items()
    ]
    for scene, (first, _) in zip(together(*plays), BEHIND.values(), strict=True):
        assert scene.wrong_hops(["udp"], first) == {}
        assert scene.trace.lost() == {}
        assert scene.trace.events == []
        assert scene.report.harm() == {}
        told = {
            row.fields["measured_by"]
            for row in scene.trace.of("udp", hop=DESTINATION_HOP, outcome="answered")
        }
        assert told == {"echo beside the flow"}


def swallow(network: Topology) -> None:
    """r2 lets no report of a router behind it pass."""
    network.rules("r2", "filter forward 0", "icmp type time-exceeded drop",
                  "icmpv6 type time-exceeded drop")  # fmt: skip


def test_a_firewall_that_hides_all_routers_behind_it_is_reported(tmp_path: Path) -> None:
    note = "NAT or firewall behind hop 2: packets pass, probes do not"
    server = PLAIN.addresses(SERVER)
    texts = {f"{to}: {note}" for to in (server.ipv4, server.ipv6)}
    scene = play(
        tmp_path, Layout(swallow),
        lambda network, app, trace: wait_until(lambda: texts <= set(trace.texts())),
    )  # fmt: skip
    assert sorted(scene.trace.events) == sorted(texts)
    assert scene.trace.lost() == {}
    assert scene.report.harm() == {}


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """The last router never answers, or ten times a second."""
    folder, name = tmp_path_factory.mktemp("trace"), (f"r{PLAIN.routers}",)
    plans = {"silent": replace(PLAIN, silent=name), "limited": replace(PLAIN, limited=name)}
    plays = [
        partial(play, folder / each, Layout(plan=plan), waiting(7)) for each, plan in plans.items()
    ]
    return dict(zip(plans, together(*plays), strict=True))


@pytest.mark.parametrize("answers", ["silent", "limited"])
def test_a_last_router_that_answers_little_is_no_event(
    last: dict[str, Scene], answers: str
) -> None:
    scene = last[answers]
    assert scene.trace.events == []
    assert scene.phantoms() == set()
    assert scene.report.harm() == {}
