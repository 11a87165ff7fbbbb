"""Loose hooks for user probes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpf.compiler import Compiler
from tests.probes.program.tools import Loose


@pytest.fixture
def loose(compiler: Compiler) -> Iterator[Loose]:
    with Loose(compiler) as hooks:
        yield hooks
