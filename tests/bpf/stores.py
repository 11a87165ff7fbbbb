"""Compilers that share a store of programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpf.compiler.client import Compiler
from bpf.compiler.store import Store

Make = Callable[..., Compiler]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "programs"


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    """Make compilers that share a folder, and have no helper yet."""
    with ExitStack() as stack:

        def made(*, warn: Callable[[str], None] = pytest.fail, idle: float = 60) -> Compiler:
            stores = [Store(folder, own=True)]
            compiler = stack.enter_context(Compiler(stores=stores, idle=idle))
            compiler.warn = warn
            return compiler

        yield made
