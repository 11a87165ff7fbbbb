"""The result of a compile, made of the helper's reply: programs, and maps with their C types."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpf.abi import AttachType, MapFlag, MapType, ProgType
from bpf.compiler.diagnostics import (
    CompileError,
    Diagnostic,
    end_of_log,
    parse_clang,
    parse_map,
    parse_verifier,
)
from bpf.compiler.instructions import place_constants
from bpf.compiler.source import code_of, context_mismatch, place_of
from bpf.errors import MORE_FILES, Closing, KernelError, UsageError
from bpf.maps.btf import Btf
from bpf.maps.layout import CType, described
from bpf.syscall import MapSpec, btf_data

_MACRO = re.compile(r"\b(BPF_[A-Z_]+)\s*\((?=([^()]*))")
_NO_BTF = " (no BTF: a float, a double or an enum of 64 bits keeps libbcc from loading it)"
_ALIAS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\w+)[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CompiledMap:
    """A map as a source declares it."""

    spec: MapSpec
    key_type: CType | None
    """C type of a key; None if the kind has no key, or if `unreadable` says why."""
    value_type: CType | None
    """C type of one value (of one CPU's, for per-CPU kinds); None as for `key_type`."""
    fd: int
    """A map of this layout, created at compile time."""
    bytecode_fd: int
    """The number that stands for this map in the programs' instructions."""
    unreadable: str = ""
    """Why its contents can't be read: a C type without a known layout. Its program runs."""
    line: int = 0
    """Of its name in the source, from 1; 0 for a map of a header or of a macro of the source."""
    histogram: bool = False
    """Declared by BPF_HISTOGRAM, which the kernel takes for an array or a hash."""
    btf_fd: int = 0
    """The source's BTF; 0 without BTF."""
    contents: bytes = b""
    """Of a section of global variables: their first values."""
    slots: Mapping[int, str] = field(default_factory=dict)
    """Of a program array: the functions that the source puts into it."""
    section: str = ""
    """Of a global variable: the map that it is a part of."""

    @property
    def is_constant(self) -> bool:
        """Whether it holds constants of the source, the same for all its programs."""
        return bool(self.contents and self.spec.flags & MapFlag.RDONLY_PROG)

    @property
    def key(self) -> np.dtype[Any] | None:
        """Layout of a key."""
        return self.key_type.dtype if self.key_type else None

    @property
    def value(self) -> np.dtype[Any] | None:
        """Layout of one value."""
        return self.value_type.dtype if self.value_type else None


@dataclass(frozen=True, slots=True)
class MapPlace:
    """How a source declares a map."""

    line: int
    """Of its name, from 1."""
    histogram: bool


def map_places(text: str) -> dict[str, MapPlace]:
    """Return the maps that `text` declares by bcc's macros; maps of other macros are missing.

    Other arguments (types, sizes) are among the keys too: look up maps that the compiler has made.
    """
    code = code_of(text)
    aliases = {match[1]: match[2] for match in _ALIAS.finditer(code)}
    found: dict[str, MapPlace] = {}
    line, counted = 1, 0
    for call in _MACRO.finditer(code):
        start, end = call.span(2)
        histogram = call[1] == "BPF_HISTOGRAM" or '"histogram' in text[start:end]
        for argument in re.finditer(r"[^,]+", call[2]):
            word = argument[0].strip()
            if word.isidentifier():
                at = start + argument.start() + argument[0].index(word)
                line, counted = line + code.count("\n", counted, at), at
                found.setdefault(aliases.get(word, word), MapPlace(line, histogram))
    return found


class MapReader:
    """Makes the CompiledMaps of one source from the compile helper's reply."""

    def __init__(self, name: str, source: str, flat: str, btf_fd: int) -> None:
        """`flat` is the source with its headers' text; `btf_fd` is 0 without BTF."""
        self._name = name
        self._source = source
        self._btf_fd = btf_fd
        self._btf: Btf | None = None
        if btf_fd:
            with contextlib.suppress(OSError, ValueError):
                self._btf = Btf(btf_data(btf_fd))
        self._places = map_places(source)
        places = map_places(flat) if "histogram" in flat.lower() else {}
        self._histograms = {n for n, place in places.items() if place.histogram}

    def read(self, declared: Mapping[str, Any], fd: int) -> CompiledMap:
        """Return the map behind the descriptor `fd`.

        Raises CompileError for a kind of map that is unknown.
        """
        name = declared["name"]
        try:
            kind = MapType(declared["type"])
        except ValueError:
            text = f"map {name} is of kind {declared['type']}, which is not known here"
            place = place_of(self._source, name)
            error = Diagnostic(self._name, *place, "error", text)
            raise CompileError(self._name, [error]) from None
        sizes = (declared[part] for part in ("key_size", "value_size", "max_entries", "flags"))
        spec = MapSpec(name, kind, *sizes)
        types: tuple[CType | None, CType | None] = (None, None)
        unreadable = ""
        try:
            types = self._types(spec, declared)
        except ValueError as error:
            unreadable = f"{error}{'' if self._btf else _NO_BTF}"
        line = self._places[name].line if name in self._places else 0
        histogram = name in self._histograms
        number = declared["bytecode_fd"]
        return CompiledMap(spec, *types, fd, number, unreadable, line, histogram, self._btf_fd)

    def _types(
        self, spec: MapSpec, declared: Mapping[str, Any]
    ) -> tuple[CType | None, CType | None]:
        """Return the types of a key and a value. Raises ValueError for one without known layout."""
        found = self._btf.map_types(spec.name) if self._btf else None
        key, value = found or (None, None)
        if spec.kind.records:
            return None, value
        return (
            self._checked("key", key, spec.key_size, declared["key"]),
            self._checked("value", value, spec.value_size, declared["value"]),
        )

    def _checked(self, what: str, type_: CType | None, size: int, descriptor: str) -> CType | None:
        """Return a type of `size` bytes. If BTF lacks it, bcc's description replaces it."""
        if not size:
            return None
        if type_ is None:
            type_ = described(descriptor)
        if type_.dtype.itemsize != size:
            raise ValueError(
                f"its {what} has {size} bytes, of which {type_.dtype.itemsize} are described"
            )
        return type_


_UNSERVED = {
    MapType.PROG_ARRAY: "stays empty, so each tail call falls through; give maps.NAME.programs",
    MapType.PERF_EVENT_ARRAY: "has no reader, so each submit fails; make it a metric: a row each",
    MapType.RINGBUF: "has no reader and fills up; make it a metric: each record is a row",
    MapType.BLOOM_FILTER: "has no reader: no kernel lists its values; keep them in a hash, too",
    MapType.DEVMAP: "stays empty, so a redirect by it fails; use bpf_redirect() and an index",
    MapType.DEVMAP_HASH: "stays empty, so a redirect by it fails; use bpf_redirect() and an index",
    MapType.CPUMAP: "stays empty, so a redirect by it fails; return VERDICT_PASS",
    MapType.XSKMAP: "stays empty, so a redirect by it fails; return VERDICT_PASS",
    MapType.ARRAY_OF_MAPS: "stays empty: nobody puts a map into it",
    MapType.HASH_OF_MAPS: "stays empty: nobody puts a map into it",
    MapType.SOCKMAP: "stays empty: nobody puts a socket into it",
    MapType.SOCKHASH: "stays empty: nobody puts a socket into it",
    MapType.CGROUP_ARRAY: "stays empty: nobody puts a cgroup into it",
    MapType.STACK_TRACE: "gets no entry: programs of packets have no stack to walk",
}
"""Consequence for each kind that needs user space, and a way out."""


def unserved_maps(
    name: str, source: str, maps: Iterable[MapSpec], served: Container[str] = ()
) -> Iterator[Diagnostic]:
    """Yield a warning for each map that user space would have to fill or read.

    `served` are the names of maps that the controller itself fills.
    """
    for spec in maps:
        if spec.type in _UNSERVED and spec.name not in served:
            text = f"{spec.name} ({spec.kind.name}) {_UNSERVED[spec.type]}"
            yield Diagnostic(name, *place_of(source, spec.name), "warning", text)


def no_inserts(name: str, source: str, maps: Iterable[MapSpec]) -> Iterator[Diagnostic]:
    """Yield a warning for bcc's increment(), which inserts into a plain hash only, in silence."""
    for spec in maps:
        if not spec.kind.increment:
            line, column = place_of(source, rf"{spec.name}\s*\.\s*(?:atomic_)?increment")
            text = f"increment() inserts nothing into a {spec.kind.name}; use lookup_or_try_init()"
            if line:
                yield Diagnostic(name, line, column, "warning", text)


_EMPTY = "clang left no instruction of it: C leaves undefined what it does; see clang's warnings"


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A function of a source, verified."""

    name: str
    type: ProgType
    fd: int
    """The program as it was loaded for verification, on the maps created at compile time; -1 for a
    tracing program."""
    instructions: bytes
    license: str
    attach_type: AttachType | None = None
    """Attach type by which it was verified; None for the types of program that have none."""
    functions: bytes = b""
    """Its functions, as struct bpf_func_info; empty if it is one, or has no types."""
    lines: bytes = b""
    """Its lines, as struct bpf_line_info."""
    has_frames: bool = False
    """Whether it may have functions: in a chain another program calls it."""
    load: Callable[[], int] | None = None
    """Loads a stored program for verification. This kernel has verified it before, so it is loaded
    only for a trial."""

    def loaded(self) -> int:
        """Return the descriptor of the program as it was loaded for verification; see `fd`.

        Raises OSError if a stored program cannot be loaded.
        """
        if self.fd < 0 and self.load:
            object.__setattr__(self, "fd", self.load())
        return self.fd


@dataclass(frozen=True, slots=True)
class Compiled(Closing):
    """The result of compiling one source. `close` closes its descriptors."""

    name: str
    programs: Mapping[str, CompiledProgram]
    functions: tuple[str, ...]
    """Every function that could be a program, requested or not."""
    maps: Mapping[str, CompiledMap]
    diagnostics: tuple[Diagnostic, ...]
    """Warnings and notes; an error would have raised CompileError."""
    seconds: float
    """Round trip of the request."""
    btf_fd: int = 0
    """Descriptor of the source's BTF; 0 if the compiler or the kernel gives none."""
    variables: Mapping[str, CompiledMap] = field(default_factory=dict)
    """Global variables, by name."""

    @property
    def readable(self) -> Mapping[str, CompiledMap]:
        """Everything that a metric can name: maps, and global variables."""
        return {**self.variables, **self.maps}

    def with_jumps(self, jumps: Mapping[str, Mapping[int, str]], where: str) -> Compiled:
        """Return the same result, with programs in slots of its program arrays, by map.

        Raises UsageError, which begins with `where`, if a program cannot be in its slot.
        """
        maps = dict(self.maps)
        for name in jumps.keys() & maps.keys():
            spec = maps[name].spec
            for slot, function in jumps[name].items():
                is_slot = spec.type is MapType.PROG_ARRAY and 0 <= slot < spec.max_entries
                if not is_slot or function not in self.programs:
                    raise UsageError(
                        f"{where}.{name}.programs.{slot}: {function} cannot be there",
                        hint=f"it takes {', '.join(self.programs)}"
                        if is_slot
                        else f"it is a {spec.kind.name} of {spec.max_entries} slots",
                    )
            maps[name] = replace(maps[name], slots=jumps[name])
        return replace(self, maps=maps)

    def close(self) -> None:
        programs = [p.fd for p in self.programs.values() if p.fd >= 0]
        close_all(programs + [m.fd for m in self.maps.values()])
        if self.btf_fd:
            os.close(self.btf_fd)


def digest(
    name: str,
    source: str,
    flat: str,
    reply: dict[str, Any],
    fds: list[int],
    said: str,
    kind: tuple[ProgType, AttachType | None],
    constants: Mapping[int, int],
    started: float,
) -> Compiled:
    """Turn a reply into Compiled; raises CompileError, and KernelError for missing descriptors.

    `constants` has the number of each marker in the instructions.
    """
    prog_type, attach_type = kind
    unverified = prog_type is ProgType.TRACING
    diagnostics = parse_clang(said)
    errors: list[Diagnostic] = []
    if reply["error"] and not any(d.severity == "error" for d in diagnostics):
        words = said.strip().splitlines()
        unplaced = Diagnostic(name, 0, 0, "error", words[-1] if words else reply["error"])
        errors.append(parse_map(name, source, said) or unplaced)
    for program in reply["programs"]:
        function = program["name"]
        line, column = place_of(source, function)
        program["log"] = end_of_log(program["log"])
        if not program["instructions"]:
            # Nothing is left behind an undefined expression, and clang warns of that.
            places = [(d.line, d.column) for d in diagnostics if d.severity == "warning"]
            errors.append(Diagnostic(name, *min(places, default=(line, column)), "error", _EMPTY))
        elif why := context_mismatch(source, function, prog_type):
            if len(reply["programs"]) > 1:
                why += "; choose the program of this hook by its name: function"
            errors.append(Diagnostic(name, line, column, "error", why))
        elif not program["loaded"] and not unverified and "load" not in program:
            found = parse_verifier(function, program["log"], program["places"], name, source)
            # The function is the best place there is.
            errors.append(found if found.line else replace(found, file=name, line=line))
    if reply["error"] or errors:
        log = "\n".join(p["log"] for p in reply["programs"] if not p["loaded"])
        raise CompileError(name, (*diagnostics, *errors), log)
    if len(fds) < reply["fds"]:
        count = len(reply["programs"]) + len(reply["maps"])
        raise KernelError(
            f"{name} has {count} programs and maps, and only {len(fds)} could be opened",
            hint=MORE_FILES,
        )
    spare = iter(fds)
    programs = {
        p["name"]: CompiledProgram(
            p["name"],
            prog_type,
            next(spare) if p["loaded"] else -1,
            place_constants(bytes.fromhex(p["instructions"]), constants),
            p["license"],
            attach_type,
            load=p.get("load"),
        )
        for p in reply["programs"]
    }
    map_fds = [next(spare) for _ in reply["maps"]]
    btf_fd = next(spare, 0)
    reader = MapReader(name, source, flat, btf_fd)
    pairs = zip(reply["maps"], map_fds, strict=True)
    maps = {declared["name"]: reader.read(declared, fd) for declared, fd in pairs}
    diagnostics += tuple(no_inserts(name, source, [m.spec for m in maps.values()]))
    functions = tuple(reply["functions"])
    seconds = time.perf_counter() - started
    return Compiled(name, programs, functions, maps, diagnostics, seconds, btf_fd)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
