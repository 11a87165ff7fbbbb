"""Networks that translate addresses or drop invalid packets: homes, offices, clouds, containers."""

from __future__ import annotations

from functools import partial

import pytest

from tests.topologies.application import KINDS
from tests.topologies.catalogue import LAYOUTS
from tests.topologies.scenes import Scene, observe, play, together

pytestmark = pytest.mark.slow

PAIRS = {"masquerade": "carrier", "firewall": "forward"}


@pytest.fixture(scope="module", params=PAIRS.items(), ids="-".join)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Scene]:
    folder = tmp_path_factory.mktemp("trace")
    # Behind a translation, echo requests find the hops that UDP may probe: up to 3 s.
    plays = [
        partial(play, folder / name, LAYOUTS[name], observe(LAYOUTS[name], 5))
        for name in request.param
    ]
    return dict(zip(request.param, together(*plays), strict=True))


@pytest.fixture(params=(0, 1), ids=("first", "second"))
def scene(request: pytest.FixtureRequest, pair: dict[str, Scene]) -> Scene:
    number: int = request.param
    return list(pair.values())[number]


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
