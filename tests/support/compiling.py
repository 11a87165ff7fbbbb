"""Compilers for tests: all processes of a run share a folder of compiled sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import bpf.compiler
from bpf.compiler.client import MAP_LIMIT, Compiler
from bpf.compiler.store import Store
from bpf.objects.client import ObjectCompiler

COMPILED = "COMPILED_BY_TESTS"
"""Variable that names the folder of compiled sources."""
OLD = "COMPILED_FOR_OLD_KERNELS"
"""Variable that has sources compiled for Linux 5.10, which `.ci/kernels` boots."""


def share() -> None:
    """Make this process compile by `SharedCompiler`, before other modules import the compiler."""
    bpf.compiler.Compiler = SharedCompiler  # type: ignore[misc, assignment]


class SharedCompiler(Compiler):
    """A compiler that shares a folder with other processes."""

    def __init__(self, *, cpu_limit: float = 0.0, stores: Sequence[Store] | None = None) -> None:
        # As programs of a wheel: the emulated kernel of .ci/run then verifies each one time less.
        shared = Store(Path(os.environ[COMPILED]), own=False)
        macros = {"HAS_COARSE_CLOCK": 1, "HAS_ATOMICS": 0} if os.environ.get(OLD) else None
        stores = [shared] if stores is None else stores
        super().__init__(cpu_limit=cpu_limit, stores=stores, macros=macros)


class Shared:
    """The compiler of all tests, for a controller: it would start and end its own."""

    def __init__(self, compiler: Compiler) -> None:
        self.compile, self.map_limit = compiler.compile, MAP_LIMIT
        self._compiler = compiler

    @property
    def objects(self) -> ObjectCompiler:
        return self._compiler.objects

    def close(self) -> None:
        pass
