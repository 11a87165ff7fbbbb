"""The result of a compile: programs and maps, made of the helper's reply."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from bpf.abi import AttachType, ProgType
from bpf.compiler.diagnostics import (
    CompileError,
    Diagnostic,
    end_of_log,
    parse_clang,
    parse_map,
    parse_verifier,
)
from bpf.compiler.instructions import place_constants
from bpf.compiler.maps import CompiledMap, MapReader, no_inserts
from bpf.compiler.source import context_mismatch, place_of
from bpf.errors import MORE_FILES, KernelError

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
class Compiled:
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

    def close(self) -> None:
        programs = [p.fd for p in self.programs.values() if p.fd >= 0]
        close_all(programs + [m.fd for m in self.maps.values()])
        if self.btf_fd:
            os.close(self.btf_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
