"""A client of a server that a test has by TCP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.app.api.conftest import Site


@pytest.fixture
def http(tcp: Site) -> Iterator[httpx.Client]:
    with tcp.http() as client:
        yield client
