"""Compile helpers for tests that are not about compiling: the same is compiled only once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bpf.abi import AttachType, ProgType
from bpf.compiler import Compiled, Compiler
from bpf.compiler.client import MAP_LIMIT

_MOST = 64
"""Sources that are kept; their maps are memory of the kernel."""
_SECRET, _DRAWN = "-DHASH_", "flow."
"""The flow probe draws new factors for each compile; here the first ones stay."""

_KEPT: set[int] = set()
"""Descriptors of the kept objects."""

Key = tuple[
    str, ProgType, AttachType | None, str, tuple[tuple[str, str], ...], tuple[str, ...], str
]


class Thrifty:
    """A compile helper that compiles each source once; the caller closes its own descriptors."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.map_limit = MAP_LIMIT
        self._kept: dict[Key, Compiled] = {}

    def compile(
        self,
        source: str,
        prog_type: ProgType,
        *,
        attach_type: AttachType | None = None,
        name: str = "probe.c",
        headers: Mapping[str, str] | None = None,
        cflags: Sequence[str] = (),
        function: str = "",
        map_limit: int = 0,
    ) -> Compiled:
        secret = _SECRET if name.startswith(_DRAWN) else ()
        flags = tuple(flag for flag in cflags if not flag.startswith(secret))
        key = (
            source,
            prog_type,
            attach_type,
            name,
            tuple((headers or {}).items()),
            flags,
            function,
        )
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = self._compiler.compile(
                source, prog_type, attach_type=attach_type, name=name, headers=headers,
                cflags=cflags, function=function, map_limit=map_limit,
            )  # fmt: skip
            _KEPT.update(_fds(kept))
        self._kept[key] = kept
        while len(self._kept) > _MOST:
            self._forget(next(iter(self._kept)))
        btf = os.dup(kept.btf_fd) if kept.btf_fd else 0
        return replace(
            kept,
            programs={
                n: replace(p, fd=p.fd if p.fd < 0 else os.dup(p.fd))
                for n, p in kept.programs.items()
            },
            maps={n: replace(m, fd=os.dup(m.fd), btf_fd=btf) for n, m in kept.maps.items()},
            btf_fd=btf,
        )

    def close(self) -> None:
        for key in tuple(self._kept):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        forgotten = self._kept.pop(key)
        _KEPT.difference_update(_fds(forgotten))
        forgotten.close()


class Shared:
    """The compile helper of all tests, for a controller: it would start and end its own."""

    def __init__(self, compiler: Compiler) -> None:
        self.compile = compiler.compile
        self.map_limit = MAP_LIMIT

    def close(self) -> None:
        pass


def kept_fds() -> frozenset[int]:
    """Descriptors of this process that are kept for another compile: no test has left them."""
    return frozenset(_KEPT)


def _fds(compiled: Compiled) -> set[int]:
    fds = {p.fd for p in compiled.programs.values()} | {m.fd for m in compiled.maps.values()}
    return fds - {-1} | ({compiled.btf_fd} if compiled.btf_fd else set())
