"""Stored programs: the results of compiles, by a digest of source, flags and kind of program.

There are two folders: the programs that come with probedeck (`BUNDLED`, made by
probes/control/prebuilt.py), and the programs that this host has compiled (`own_folder`). A file is
the checksum of its content in hexadecimal digits, a line feed, and the content: a JSON object that
zlib has compressed.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import mmap
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from bpf.abi import MapInfoStruct, MapType, ProgType
from bpf.compiler.instructions import place_constants, relocate
from bpf.errors import KernelError
from bpf.syscall import (
    MapSpec,
    VerifierError,
    btf_data,
    btf_load,
    map_create,
    prog_load,
    read_info,
)

FORMAT = 1
"""Incremented if entries of older versions cannot be read, or if compiles change."""
BUNDLED = Path(__file__).parent.parent / "prebuilt"
"""Programs that come with probedeck."""
_MOST = 512
"""Programs that this host keeps; the oldest go first, some at a time. One has some 10 KB."""
_COMPILER = ("/usr/lib*/libbcc.so.0", "/usr/lib/*/libbcc.so.0", "/usr/include/linux/bpf.h")
"""Files that change with the compiler and its headers."""
_OF_MAPS = (MapType.ARRAY_OF_MAPS, MapType.HASH_OF_MAPS)
_INNER = re.compile(r'\bBPF_(?:ARRAY|HASH)_OF_MAPS\(\s*(\w+)\s*,[^;"]*"(\w+)"')
_SPEC = ("name", "type", "key_size", "value_size", "max_entries", "flags")


class DamagedError(KernelError):
    """A stored program is not what was stored."""


@functools.cache
def compiler_id() -> str:
    """Return an id of this host's compiler, which changes with its packages; empty without one."""
    found = sorted(path for pattern in _COMPILER for path in glob.glob(pattern))
    states = [(path, os.stat(path)) for path in found]
    known = [(path, state.st_size, state.st_mtime_ns) for path, state in states]
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16] if len(known) > 1 else ""


def kernel_id() -> str:
    """Return the build of this kernel."""
    system = os.uname()
    return f"{system.release} {system.version} {system.machine}"


def key_of(request: Mapping[str, Any]) -> str:
    """Return the name of a compile's result: a digest of source, flags, and kind of program."""
    parts = [FORMAT, *(request[each] for each in ("source", "cflags", "type", "attach_type"))]
    return hashlib.sha256(json.dumps([*parts, request["function"]]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """The result of a compile, from which the same programs and maps are made again."""

    reply: dict[str, Any]
    """The reply of the compile helper."""
    said: str
    """The output of the compiler."""
    types: list[list[int]]
    """Numbers of the types of key and value in the BTF, of each map."""
    inner: dict[str, str]
    """The inner map of each map of maps, by name."""
    btf: str
    """The source's BTF in hexadecimal digits; empty without BTF."""
    compiler: str
    """The id of the compiler that made it; empty if any will do."""
    kernel: str
    """The kernel that has verified it."""

    @classmethod
    def of(cls, source: str, reply: dict[str, Any], fds: Sequence[int], said: str) -> Self | None:
        """Return what is stored of a compile's result; None for a result that is not kept.

        The caller keeps the descriptors.
        """
        maps, programs = reply["maps"], reply["programs"]
        loaded = sum(program["loaded"] for program in programs)
        refused = any(p["log"] for p in programs) or not all(p["instructions"] for p in programs)
        if reply["error"] or refused or len(fds) < reply["fds"]:
            return None
        inner = dict(_INNER.findall(source))
        if any(each["type"] in _OF_MAPS and each["name"] not in inner for each in maps):
            return None
        types = []
        for fd in fds[loaded : loaded + len(maps)]:
            info = MapInfoStruct()
            read_info(fd, info)
            types.append([info.btf_key_type_id, info.btf_value_type_id])
        btf = btf_data(fds[-1]).hex() if len(fds) > loaded + len(maps) else ""
        # Equal results are equal bytes: the helper's descriptors depend on its open files.
        numbers = {each["bytecode_fd"]: at for at, each in enumerate(maps, 1)}
        maps = [{**each, "bytecode_fd": numbers[each["bytecode_fd"]]} for each in maps]
        programs = [
            {**each, "instructions": relocate(bytes.fromhex(each["instructions"]), numbers).hex()}
            for each in programs
        ]
        reply = {**reply, "maps": maps, "programs": programs}
        return cls(reply, said, types, inner, btf, compiler_id(), kernel_id())

    def memory(self, cost: Callable[[int, int, int, int], int]) -> int:
        """Return the sum of `cost`, a function of type, sizes and entries, of the maps."""
        return sum(cost(*(each[part] for part in _SPEC[1:5])) for each in self.reply["maps"])

    def load(
        self, prog_type: ProgType, attach_type: int, constants: Mapping[int, int]
    ) -> list[int]:
        """Make the maps, and load BTF and programs; return their descriptors as the helper does.

        If the verifier refuses a program, its log is in the reply. Programs that this kernel has
        verified before, or that come with probedeck, are not loaded: the reply has a function that
        does it. Raises OSError.
        """
        is_known = self.kernel in ("", kernel_id())
        programs: list[int] = []
        others: list[int] = []
        try:
            btf_fd = btf_load(bytes.fromhex(self.btf)) if self.btf else 0
            if btf_fd:
                others.append(btf_fd)
            maps: dict[str, int] = {}
            pairs = zip(self.reply["maps"], self.types, strict=True)
            # Inner maps come first.
            for each, ids in sorted(pairs, key=lambda pair: pair[0]["type"] in _OF_MAPS):
                inner = maps.get(self.inner.get(each["name"], ""), 0)
                maps[each["name"]] = _made(each, inner, btf_fd, (ids[0], ids[1]))
                others.append(maps[each["name"]])
            ordered = [maps[each["name"]] for each in self.reply["maps"]]
            numbers = [each["bytecode_fd"] for each in self.reply["maps"]]
            places = dict(zip(numbers, ordered, strict=True))
            for program in self.reply["programs"]:
                if not program["loaded"]:
                    continue
                code = relocate(bytes.fromhex(program["instructions"]), places)
                load = partial(
                    prog_load, place_constants(code, constants), prog_type, program["name"],
                    license_name=program["license"], attach_type=attach_type,
                )  # fmt: skip
                if is_known:
                    program |= {"loaded": False, "load": load}
                    continue
                try:
                    programs.append(load())
                except VerifierError as error:
                    program |= {"loaded": False, "log": error.log}
            self.reply["fds"] = len(programs) + len(maps) + (1 if btf_fd else 0)
        except BaseException:
            for fd in programs + others:
                os.close(fd)
            raise
        return [*programs, *ordered, *others[: 1 if btf_fd else 0]]


def _made(declared: Mapping[str, Any], inner: int, btf_fd: int, types: tuple[int, int]) -> int:
    spec = MapSpec(*(declared[part] for part in _SPEC))
    if spec.type == MapType.RINGBUF:
        # In pages: the compiling machine may have had smaller ones.
        return map_create(replace(spec, max_entries=max(spec.max_entries, mmap.PAGESIZE)))
    return map_create(spec, inner_map_fd=inner, btf_fd=btf_fd, types=types)


class Store:
    """A folder of stored programs."""

    def __init__(self, folder: Path, *, own: bool) -> None:
        """The host's `own` folder is made when it is needed, and only root and this user may write
        it: others' files are ignored."""
        self._folder = folder
        self._own = own

    def find(self, key: str) -> dict[str, Any] | None:
        """Return what was stored, or None. Raises DamagedError."""
        try:
            fd = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(fd, "rb") as file:
            if self._own and not (_is_trusted(fd) and _is_trusted(self._folder)):
                return None
            digest, _, content = file.read().partition(b"\n")
        if hashlib.sha256(key.encode() + content).hexdigest().encode() != digest:
            raise DamagedError(f"the stored program {self._folder / key} is damaged")
        found: dict[str, Any] = json.loads(zlib.decompress(content))
        return found

    def keep(self, key: str, stored: Mapping[str, Any]) -> None:
        """Store a result, such as the fields of a StoredProgram. A full or read-only disk stores
        none."""
        if not self._own:
            # For any host: whatever compiler and kernel it has.
            stored = {**stored, "compiler": "", "kernel": ""}
        # An edit waits for the host's own.
        content = zlib.compress(json.dumps(stored).encode(), 1 if self._own else 9)
        digest = hashlib.sha256(key.encode() + content).hexdigest()
        temporary = self._folder / f".{key}.{os.getpid()}"
        with suppress(OSError):
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if self._own and not _is_trusted(self._folder):
                return
            temporary.write_bytes(digest.encode() + b"\n" + content)
            temporary.replace(self._folder / key)
            if self._own:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        if len(os.listdir(self._folder)) > _MOST + _MOST // 8:
            files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            for path in files[:-_MOST]:
                path.unlink()


def stored_in(
    stores: Sequence[Store], key: str, compiler: str, warn: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield the results in stores that serve a host whose compiler has the id `compiler`.

    Raises DamagedError without a compiler; with one, `warn` gets a sentence instead.
    """
    for store in stores:
        try:
            found = store.find(key)
        except DamagedError as error:
            if not compiler:
                raise
            warn(f"{error.message}: it is compiled anew")
            continue
        # A new compiler makes other programs. Without any, an older one's serve.
        if found and found["compiler"] in ("", compiler or found["compiler"]):
            yield found


def _is_trusted(file: int | Path) -> bool:
    """Whether only root and this user may write a file or a folder."""
    state = os.stat(file)
    foreign = state.st_uid not in (0, os.geteuid())
    return not (foreign or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def own_folder() -> Path:
    """Return the folder of the programs that this host has compiled."""
    given = os.environ.get("CACHE_DIRECTORY", "")  # of systemd
    if not given and os.geteuid():
        given = os.environ.get("XDG_CACHE_HOME", "") or os.path.expanduser("~/.cache")
        return Path(given, "probedeck", "programs")
    return Path(given or "/var/cache/probedeck", "programs")
