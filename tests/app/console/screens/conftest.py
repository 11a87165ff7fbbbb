"""A fleet of three hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from tests.app.api.fake import FakePlane
from tests.app.fleet.fake_hub import NAMES, FakeHub


@pytest.fixture
def planes(tmp_path: Path) -> Iterator[dict[str, FakePlane]]:
    """Three controllers. Each has its own API on a Unix socket."""
    planes = {name: FakePlane() for name in NAMES}
    served = [
        ApiListener(plane, Api(version="1.2.3", socket=str(tmp_path / name)))
        for name, plane in planes.items()
    ]
    yield planes
    for plane, each in zip(planes.values(), served, strict=True):
        plane.gate.set()
        each.close()


@pytest.fixture
def hub(tmp_path: Path, planes: dict[str, FakePlane]) -> FakeHub:
    return FakeHub({name: Remote(f"unix:{tmp_path / name}") for name in planes})
