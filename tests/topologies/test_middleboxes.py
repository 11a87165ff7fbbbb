"""Routers that change packets, answer seldom or never, and add labels to their answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from probes.path.records import DESTINATION_HOP
from tests.topologies.application import KINDS, Application
from tests.topologies.catalogue import LAYOUTS, Layout
from tests.topologies.labels import TEXT, labelling
from tests.topologies.network import PLAIN, VERSIONS, Topology
from tests.topologies.scenes import Scene, play, together
from tests.topologies.tracing import Tracing, wait

pytestmark = pytest.mark.slow

EXPEDITED = 184
"""The TOS of class EF (RFC 3246)."""
SMALL_MTU = 1300


def rewrite(network: Topology) -> None:
    """r2 clears the class of packets, r4 changes their identification, r3-r4 takes less bytes."""
    network.rules("r2", "filter forward 0", "ip dscp set 0", "ip6 dscp set 0")
    network.rules("r4", "filter forward 0", "ip id set 4711")
    for node, interface in (("r3", "right"), ("r4", "left")):
        network.run(node, f"ip link set {interface} mtu {SMALL_MTU}")


def label(network: Topology, app: Application, trace: Tracing) -> None:
    with labelling(network, "r3"):
        # A change becomes an event after two periods of 5 s.
        wait(11)
        # The last answers.
        app.finish()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Scene]:
    """`rewritten` and `limited`."""
    folder = tmp_path_factory.mktemp("trace")
    layout = Layout(rewrite, replace(PLAIN, silent=("r3",)))
    return together(
        partial(play, folder / "rewritten", layout, label, tos=EXPEDITED),
        partial(play, folder / "limited", LAYOUTS["limited"], lambda *_: wait(4)),
    )


@pytest.fixture
def rewritten(scenes: list[Scene]) -> Scene:
    return scenes[0]


@pytest.fixture
def limited(scenes: list[Scene]) -> Scene:
    return scenes[1]


def test_every_hop_is_seen(rewritten: Scene) -> None:
    assert rewritten.wrong_hops(last=4) == {}


def test_the_hop_behind_a_changed_identification_is_seen(rewritten: Scene) -> None:
    assert rewritten.wrong_hops(first=5) == {}
    told = {row.fields["altered"] for row in rewritten.trace.of("", 4, 5, "answered")}
    assert told == {"identification"}


def test_labels_are_read(rewritten: Scene) -> None:
    for kind in KINDS:
        for version in VERSIONS:
            found = rewritten.trace.of(kind, version, 3, "answered")
            assert found
            assert {row.fields["labels"] for row in found} == {TEXT}


def test_a_cleared_class_is_seen(rewritten: Scene) -> None:
    for hop, quoted in ((1, EXPEDITED), (2, EXPEDITED), (3, 0), (4, 0)):
        found = rewritten.trace.of(hop=hop, outcome="answered")
        assert {int(row.fields["quoted_tos"]) for row in found} == {quoted}


def test_the_sent_class_is_told(rewritten: Scene) -> None:
    assert {int(row.fields["tos"]) for row in rewritten.trace.rows} == {EXPEDITED}


def test_a_cleared_class_is_told(rewritten: Scene) -> None:
    texts = rewritten.trace.events
    assert any("DSCP" in text and "hop 3" in text for text in texts), texts


def test_the_application_is_undisturbed(rewritten: Scene) -> None:
    harm = rewritten.report.harm()
    # TCP learns of the smaller MTU by a lost segment.
    harm.pop("retransmits", None)
    assert harm == {}


def test_seldom_answers_are_no_event(limited: Scene) -> None:
    assert limited.trace.events == []
    assert limited.report.harm() == {}


def test_the_flow_itself_clears_a_last_router_that_answers_seldom(limited: Scene) -> None:
    steady = [row for row in limited.trace.summaries(5)[-12:] if int(row["lost"])]
    # A UDP flow in one direction has no round trips.
    told = {row["cleared"] for row in steady if row["protocol"] != "17"}
    assert told == {"true"}


def test_the_destination_has_no_loss(limited: Scene) -> None:
    for kind in ("tcp", "echo"):
        for version in VERSIONS:
            rows = limited.trace.of(kind, version, DESTINATION_HOP)
            assert rows
            assert {row.outcome for row in rows} <= {"answered", "in flight"}
