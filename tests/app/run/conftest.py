"""A disk that is full soon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.outputs.disks import small_disk


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "tiny", "64k") as place:
        yield place
