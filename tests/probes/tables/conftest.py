"""Tables of a test; their maps close at its end."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.compiler import Compiler
from tests.probes.tables.sources import Sources


@pytest.fixture
def sources(compiler: Compiler) -> Any:
    made = Sources(compiler)
    yield made
    made.close()
