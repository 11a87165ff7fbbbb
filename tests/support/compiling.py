"""Compile helpers for tests that are not about compiling: the same is compiled only once.

All processes of a test run share a folder of compiled sources: `SharedCompiler` looks there for a
source that another process has compiled, makes its maps, loads its programs, and needs no helper of
its own. `Thrifty` gives all tests of one process the same maps and programs.

Some constants of a program are secrets, which probedeck draws for each compile. `draw_alike` makes
each test draw the same secrets. The probes of one test differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import bpf.compiler
from bpf.abi import AttachType, MapInfoStruct, MapType, ProgType
from bpf.cancel import Cancel
from bpf.compiler import Compiled
from bpf.compiler.client import MAP_LIMIT, Compiler
from bpf.compiler.compiled import close_all
from bpf.programs.program import relocate
from bpf.syscall import MapSpec, _read_info, btf_data, btf_load, map_create, prog_load

COMPILED = "COMPILED_BY_TESTS"
"""Variable that names the folder of compiled sources."""
PROCESS = "PROCESS_OF_TEST"
"""Variable that numbers the processes of a test, because their secrets differ."""
DRAWN_BY = ("probes.path.probe", "probes.path.programs")
"""Modules whose secrets are constants of programs."""
drawn: Counter[str] = Counter()
"""How many secrets the current test has drawn, by module."""

_MOST = 64
"""Sources that are kept; their maps are memory of the kernel."""
_SECRET, _DRAWN = "-DHASH_", "flow."
"""The flow probe draws new factors for each compile; here the first ones stay."""

_OF_MAPS = re.compile(r'BPF_(?:ARRAY|HASH)_OF_MAPS\((\w+),[^"\n]*"(\w+)"')
"""The name of a map of maps, and of its inner map."""

_KEPT: set[int] = set()
"""Descriptors of the kept objects."""

Key = tuple[str, ProgType, AttachType | None, str, tuple[object, ...], tuple[str, ...], str]


def known_flags(name: str, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of a source without its hash factors, of which no test knows."""
    secret = _SECRET if name.startswith(_DRAWN) else ()
    return tuple(flag for flag in flags if not flag.startswith(secret))


def draw_alike() -> None:
    """Make probes draw the same secrets in each test, and other ones in each process of a test."""
    draw = secrets.randbits

    def randbits(k: int) -> int:
        module = sys._getframe(1).f_globals["__name__"]
        if module not in DRAWN_BY:
            return draw(k)
        drawn[module] += 1
        seed = f"{os.environ.get(PROCESS)} {module} {drawn[module]}"
        return Random(seed).getrandbits(k)

    secrets.randbits = randbits


def share() -> None:
    """Make this process compile by `SharedCompiler`, before other modules import the compiler."""
    draw_alike()
    bpf.compiler.Compiler = SharedCompiler  # type: ignore[misc]


class SharedCompiler(Compiler):
    """A compiler that shares a folder with other processes. Its helper starts when it must."""

    _needed = False

    def _start(self) -> None:
        if self._needed:
            super()._start()
            return
        # A helper that has ended already: `_ready` starts the next one.
        nothing = SimpleNamespace(poll=lambda: 0, kill=lambda: None, wait=lambda: 0)
        self._process: Any = nothing
        self._socket, theirs = socket.socketpair()
        theirs.close()
        self._output = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._is_ready = False

    def _ready(self, cancel: Cancel) -> None:
        self._needed = True
        super()._ready(cancel)

    @property
    def pid(self) -> int:
        self.unconfined()
        return super().pid

    def _ask(self, request: bytes, name: str, source: str) -> tuple[Any, list[int], str]:
        self._check_open()
        asked = json.loads(request)
        asked["cflags"] = known_flags(name, asked["cflags"])
        del asked["cpu_limit"], asked["wall_limit"]
        key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        place = Path(os.environ[COMPILED], key)
        kind = ProgType(asked["type"]), max(asked["attach_type"], 0)
        with suppress(OSError):
            kept = pickle.loads(place.read_bytes())
            return kept["reply"], loaded(*kind, **kept), kept["said"]
        reply, fds, said = super()._ask(request, name, source)
        if kept := kept_reply(kind[0], asked["source"], reply, fds, said):
            # The variable may name a folder that is gone, or a full disk.
            with suppress(OSError):
                temporary = place.with_name(f"{key}.{os.getpid()}")
                temporary.write_bytes(pickle.dumps(kept))
                temporary.rename(place)
        return reply, fds, said


def kept_reply(
    kind: ProgType, source: str, reply: Any, fds: Sequence[int], said: str
) -> dict[str, Any]:
    """Return what makes the same programs and maps again; empty for a refused source."""
    maps, first = reply["maps"], 0
    if kind is not ProgType.TRACING:
        first = len(reply["programs"])
        if not all(program["loaded"] for program in reply["programs"]):
            return {}
    # The reply does not tell the inner map of a map of maps.
    models = dict(_OF_MAPS.findall(source))
    nested = {m["name"] for m in maps if MapType(m["type"]).name.endswith("_OF_MAPS")}
    if reply["error"] or len(fds) < reply["fds"] or not nested <= models.keys():
        return {}
    types = []
    for fd in fds[first : first + len(maps)]:
        info = MapInfoStruct()
        _read_info(fd, info)
        types.append((info.btf_key_type_id, info.btf_value_type_id))
    btf = btf_data(fds[-1]) if len(fds) > first + len(maps) else b""
    return {"reply": reply, "said": said, "types": types, "btf": btf, "models": models}


def loaded(
    kind: ProgType, attach_type: int, reply: Any, said: str, types: Any, btf: bytes,
    models: Mapping[str, str],
) -> list[int]:  # fmt: skip
    """Load a kept reply's BTF, maps and programs again. Return their descriptors; raise OSError.

    `models` names the inner map of each map of maps.
    """
    programs: list[int] = []
    maps: dict[str, int] = {}
    btf_fds = [btf_load(btf)] if btf else []
    try:
        parts = "name", "type", "key_size", "value_size", "max_entries", "flags"
        declared = zip(reply["maps"], types, strict=True)
        # A model is made before the maps of such maps.
        for each, ids in sorted(declared, key=lambda pair: pair[0]["name"] in models):
            spec = MapSpec(*(each[part] for part in parts))
            inner = maps[models[spec.name]] if spec.name in models else 0
            fd = map_create(spec, inner_map_fd=inner, btf_fd=sum(btf_fds), types=ids)
            maps[spec.name] = fd
        places = {each["bytecode_fd"]: maps[each["name"]] for each in reply["maps"]}
        for program in reply["programs"]:
            if program["loaded"]:
                code = relocate(bytes.fromhex(program["instructions"]), places)
                license_name = program["license"]
                fd = prog_load(
                    code, kind, program["name"], license_name=license_name, attach_type=attach_type
                )
                programs.append(fd)
    except BaseException:
        close_all([*programs, *maps.values(), *btf_fds])
        raise
    return [*programs, *(maps[each["name"]] for each in reply["maps"]), *btf_fds]


class Thrifty:
    """A compile helper that compiles each source once; the caller closes its own descriptors."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.objects = compiler.objects
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
        preludes: Sequence[str] = (),
        cflags: Sequence[str] = (),
        function: str = "",
        map_limit: int = 0,
    ) -> Compiled:
        key = (
            source,
            prog_type,
            attach_type,
            name,
            (*preludes, *(headers or {}).items()),
            known_flags(name, cflags),
            function,
        )
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = self._compiler.compile(
                source, prog_type, attach_type=attach_type, name=name, headers=headers,
                preludes=preludes, cflags=cflags, function=function, map_limit=map_limit,
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
        self.objects = compiler.objects
        self.map_limit = MAP_LIMIT

    def close(self) -> None:
        pass


def kept_fds() -> frozenset[int]:
    """Descriptors of this process that are kept for another compile: no test has left them."""
    return frozenset(_KEPT)


def _fds(compiled: Compiled) -> set[int]:
    fds = {p.fd for p in compiled.programs.values()} | {m.fd for m in compiled.maps.values()}
    return fds - {-1} | ({compiled.btf_fd} if compiled.btf_fd else set())
