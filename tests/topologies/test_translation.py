"""Networks that translate addresses or drop invalid packets: homes, offices, clouds, containers."""

from __future__ import annotations

import pytest

from tests.topologies.application import KINDS
from tests.topologies.catalogue import LAYOUTS
from tests.topologies.scenes import Scene, observe, play


@pytest.fixture(scope="module", params=["masquerade", "carrier", "firewall", "forward"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    # Behind a translation, echo requests find the hops that UDP may probe: up to 3 s.
    layout = LAYOUTS[request.param]
    return play(tmp_path_factory.mktemp("trace"), layout, observe(layout, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_every_hop_is_seen(scene: Scene, kind: str) -> None:
    assert scene.wrong_hops([kind]) == {}


def test_times_are_the_built_ones(scene: Scene) -> None:
    assert scene.wrong_times() == {}


def test_nothing_is_lost(scene: Scene) -> None:
    assert scene.trace.lost() == {}


def test_nothing_is_reported(scene: Scene) -> None:
    assert scene.trace.events == []


def test_the_application_is_undisturbed(scene: Scene) -> None:
    assert scene.report.harm() == {}
