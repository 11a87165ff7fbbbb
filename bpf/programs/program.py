"""Loaded programs: clones of a compiled source, on own or shared maps, in a chain.

In a chain pass verdicts lead to the next probe, all others are final. A probe's source just returns
its verdict. When a probe is loaded its bytecode is patched: a prologue saves the context, and each
exit jumps to an epilogue that tail-calls the next probe if the verdict is a pass. So any program
can be in a chain, whatever its style. A program with functions is not patched: a short one
before it calls it and has the epilogue. So its tail calls return there, too.

The kernel runs an iterator for each of its objects, and returns its records. Kernel 5.8 has them,
with BTF (Documentation/bpf/bpf_iterators.rst).
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from bpf.abi import AttachType, ProgType
from bpf.compiler import Compiled, CompiledMap, CompiledProgram
from bpf.compiler.instructions import relocate
from bpf.compiler.quota import map_bytes
from bpf.errors import Closing, KernelError, UsageError
from bpf.kernel_types import kernel_types
from bpf.links import iterator_open, link_create
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory
from bpf.syscall import (
    MapSpec,
    ProgInfo,
    map_create,
    map_update,
    opened,
    prog_array_set,
    prog_info,
    prog_load,
)

VERDICT_PASS = {
    ProgType.XDP: 2,
    ProgType.SCHED_CLS: -1,
    ProgType.RAW_TRACEPOINT: 0,
    ProgType.CGROUP_SOCK: 1,
    ProgType.CGROUP_SOCK_ADDR: 1,
    ProgType.SOCK_OPS: 1,
}
"""XDP_PASS; TC_ACT_UNSPEC: other programs of the hook decide; 1 of a cgroup: allowed."""
_PASSING = {ProgType.XDP: (2,), ProgType.SCHED_CLS: (-1, 0, 3)}
"""XDP_PASS; TC_ACT_UNSPEC, TC_ACT_OK and TC_ACT_PIPE. Programs of other types observe: each of
their verdicts passes."""
PACKET_TYPES = frozenset(_PASSING)
_CONTEXT_AT = -512
"""Stack offset of the saved context: the last eight bytes, which few programs reach. If a program
overwrites them, the verifier sees it and refuses the program."""
_TAIL_CALL = 12
_EXIT = 0x95
_MAX_JUMP = 32767

Instruction = tuple[int, int, int, int]
"""Operation code, registers (source << 4 | destination), offset, number."""


def tail_call_stub(array_fd: int, verdict: int) -> list[Instruction]:
    """`tail_call(R1, array, 0); return verdict`: the verdict is for an empty array."""
    return [
        (0x18, 0x12, 0, array_fd),  # r2 = array (ld_imm64, BPF_PSEUDO_MAP_FD)
        (0x00, 0x00, 0, 0),
        (0xB7, 0x03, 0, 0),  # r3 = 0
        (0x85, 0x00, 0, _TAIL_CALL),
        (0xB7, 0x00, 0, verdict),  # r0 = verdict
        (_EXIT, 0x00, 0, 0),
    ]


def pack(instructions: list[Instruction]) -> bytes:
    """Encode instructions as the kernel takes them."""
    return b"".join(struct.pack("<BBhi", *instruction) for instruction in instructions)


def chain_program(code: bytes, prog_type: ProgType, next_fd: int) -> bytes:
    """Patch a packet program so that passed packets go to the program in array `next_fd`.

    Raises UsageError if the program is too long for a jump to its end.
    """
    save = pack([(0x7B, 0x1A, _CONTEXT_AT, 0)])
    return save + _exits_to_end(code) + _end(prog_type, next_fd)


def passing_program(code: bytes, prog_type: ProgType) -> bytes:
    """Patch a program: it passes every packet, whatever its source returns.

    Raises UsageError if the program is too long for a jump to its end.
    """
    passes = (0xB7, 0x00, 0, VERDICT_PASS[prog_type])
    return _exits_to_end(code) + pack([passes, (_EXIT, 0x00, 0, 0)])


def _exits_to_end(code: bytes) -> bytes:
    body = bytearray(code)
    for at in range(0, len(body), 8):
        if body[at] == _EXIT:
            distance = (len(body) - at) // 8 - 1
            if distance > _MAX_JUMP:
                raise UsageError(f"a program of {len(body) // 8} instructions is too long to chain")
            body[at : at + 8] = pack([(0x05, 0x00, distance, 0)])  # goto the common end
    return bytes(body)


def _end(
    prog_type: ProgType, next_fd: int, context: Instruction = (0x79, 0xA1, _CONTEXT_AT, 0)
) -> bytes:
    """`if (r0 passes) tail_call(context, next, 0), r0 = pass; return r0`.

    `context` puts the context into r1. Events pass whatever r0 is.
    """
    call = [context, *tail_call_stub(next_fd, VERDICT_PASS[prog_type])]
    if prog_type not in PACKET_TYPES:
        return pack(call)
    *others, last = _PASSING[prog_type]
    to_call = [(0x16, 0x00, len(others) - n, verdict) for n, verdict in enumerate(others)]
    to_exit = (0x56, 0x00, len(call) - 1, last)  # if w0 != last goto exit
    return pack([*to_call, to_exit, *call])


def caller_of(prog_type: ProgType, next_fd: int) -> bytes:
    """Return a program that calls the program behind it, and passes packets on as a chain does."""
    end = _end(prog_type, next_fd, (0xBF, 0x61, 0, 0))  # r1 = r6
    call = (0x85, 0x10, 0, len(end) // 8)  # the function after the end
    return pack([(0xBF, 0x16, 0, 0), call]) + end


FUNCTION, LINE = struct.Struct("<II"), struct.Struct("<I12s")
"""Records of func_info and line_info, which begin with the number of an instruction."""


class Program:
    """A program in the kernel, with its maps.

    Loading the same compiled source again makes a clone: the same instructions on other maps, in
    a fraction of a millisecond where compiling again takes tens (S1.14, by relocation).
    """

    def __init__(
        self,
        compiled: Compiled,
        name: str,
        *,
        shared: Mapping[str, int] | None = None,
        next_fd: int | None = None,
        passes: bool = False,
        entries: Mapping[str, int] = MappingProxyType({}),
        partner: Program | None = None,
        attach_type: AttachType | None = None,
        attach_btf_id: int = 0,
    ) -> None:
        """Load function `name` on the maps in `shared`, by name, and on new maps otherwise.

        A map that is not in `shared` comes from `partner`, if `partner` has it. Either program may
        close first.

        `entries`: numbers of entries by map, if they differ from the source's.
        `next_fd`: array of the program that gets the packets which this one passes.
        `passes`: pass everything, whatever the source returns.
        `attach_type`: as for `prog_load`, in place of the one that it was compiled for;
        `attach_btf_id`: as for `prog_load`.
        Raises KernelError if a map can't be made (a map of maps must be shared), and
        VerifierError if the program does not fit the maps that it shares.
        """
        program = compiled.programs[name]
        self.declared = compiled.maps
        """Declarations of its maps; their descriptors are closed with the compiled source."""
        self._shared = dict(shared or {})
        self._own: dict[str, int] = {}
        own = {} if partner is None else partner._own
        self._borrowed = own.keys() - self._shared.keys()
        with ExitStack() as undo:
            undo.callback(self._close_maps)
            for map_name, declared in compiled.maps.items():
                if map_name in self._shared:
                    continue
                if map_name in self._borrowed:
                    self._own[map_name] = os.dup(own[map_name])
                elif declared.is_constant:
                    self._own[map_name] = os.dup(declared.fd)
                else:
                    self._own[map_name] = create_like(declared, entries=entries.get(map_name))
            places = {m.bytecode_fd: self.map_fd(n) for n, m in compiled.maps.items()}
            types = attach_type or program.attach_type or 0, attach_btf_id
            self.fd = _load(compiled, program, places, types, next_fd, passes=passes)
            undo.callback(os.close, self.fd)
            for map_name, declared in compiled.maps.items():
                for slot, function in declared.slots.items():
                    called = compiled.programs[function]
                    with opened(_load(compiled, called, places, types)) as fd:
                        prog_array_set(self.map_fd(map_name), slot, fd)
            undo.pop_all()

    def map_fd(self, name: str) -> int:
        """Return the descriptor of a map; the program keeps it open."""
        return self._shared[name] if name in self._shared else self._own[name]

    def info(self) -> ProgInfo:
        """Return identity and sizes. Chain.info has run time and count."""
        return prog_info(self.fd)

    def memory(self) -> int:
        """Return the bytes of kernel memory of the maps that were made for this program."""
        return sum(map_memory(fd) for name, fd in self._own.items() if name not in self._borrowed)

    def close(self) -> None:
        os.close(self.fd)
        self._close_maps()

    def _close_maps(self) -> None:
        for fd in self._own.values():
            os.close(fd)
        self._own.clear()


def _load(
    compiled: Compiled,
    program: CompiledProgram,
    places: Mapping[int, int],
    types: tuple[int, int],
    next_fd: int | None = None,
    *,
    passes: bool = False,
) -> int:
    """Load a program on the maps at `places`; returns its descriptor.

    `types` are its attach type and the BTF number of its target.
    """
    code = relocate(program.instructions, places)
    functions, lines = list(FUNCTION.iter_unpack(program.functions)), program.lines
    if next_fd is not None and program.has_frames:
        caller = caller_of(program.type, next_fd)
        code = caller + code
        by = len(caller) // 8
        # Each function needs an entry, and a line at its first instruction.
        functions = functions[:1] + [(at + by, type_) for at, type_ in functions]
        moved = (LINE.pack(at + by, rest) for at, rest in LINE.iter_unpack(lines))
        lines = lines[: LINE.size] + b"".join(moved)
    elif next_fd is not None:
        code = chain_program(code, program.type, next_fd)
    elif passes:
        code = passing_program(code, program.type)
    return prog_load(
        code,
        program.type,
        program.name,
        license_name=program.license,
        btf_fd=compiled.btf_fd if functions else 0,
        functions=functions,
        lines=lines,
        attach_type=types[0],
        attach_btf_id=types[1],
    )


def create_like(declared: CompiledMap, flags: int = 0, entries: int | None = None) -> int:
    """Create a map as a source declares it, with more flags or another number of entries.

    Raises KernelError if the kernel refuses.
    """
    spec = replace(sized(declared.spec, entries), flags=declared.spec.flags | flags)
    fd = make_map(spec, like=declared.fd, btf_fd=declared.btf_fd)
    if any(declared.contents):
        map_update(fd, bytes(4), declared.contents)
    return fd


def make_map(
    spec: MapSpec, *, inner_map_fd: int = 0, like: int | None = None, btf_fd: int = 0
) -> int:
    """Create a map, as `map_create` does. Raises KernelError if the kernel refuses."""
    try:
        return map_create(spec, inner_map_fd=inner_map_fd, like=like, btf_fd=btf_fd)
    except OSError as error:
        text = f"map {spec.name} cannot be made: {error.strerror}"
        if error.errno != errno.ENOMEM:
            raise KernelError(text) from None
        shape = spec.type, spec.key_size, spec.value_size, spec.max_entries
        size = f"{-(-map_bytes(*shape, possible_cpus()) >> 10)} KiB"
        hint = "choose a smaller --memory, or raise memory.max of this cgroup"
        raise KernelError(f"{text}: {size}", hint=hint) from None


def sized(spec: MapSpec, entries: int | None) -> MapSpec:
    """Return the same map with another number of entries; None keeps the declared number."""
    return spec if entries is None else replace(spec, max_entries=entries)


_READ_BYTES = 4096
"""Of one system call: the kernel visits objects until the program has written as much."""


class KernelIterator(Closing):
    """Runs a program for each object, a slice at a time. One thread at a time may use it."""

    def __init__(
        self, compiled: Compiled, function: str, objects: str, record: np.dtype[Any]
    ) -> None:
        """Load the program; `objects` is the kernel's name, such as `task_file`.

        The program writes records of one size with bpf_seq_write. Raises KernelError if the kernel
        lacks the iterator, and VerifierError.
        """
        target = f"bpf_iter_{objects}"
        number = kernel_types().function(target)
        program = Program(
            compiled, function, attach_type=AttachType.TRACE_ITER, attach_btf_id=number
        )
        with closing(program):
            try:
                self._link = link_create(program.fd, 0, AttachType.TRACE_ITER)
            except OSError as error:
                raise KernelError(f"the iterator {target}: {error.strerror}") from None
        self._record = record
        self._pass = -1
        self._rest = b""
        """The beginning of a record that the last read has cut."""
        self.passes = 0
        """Passes over all objects so far that came to their end."""

    def read(self, budget_s: float) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        """Continue the pass for some `budget_s` of CPU time, or to its end: records, shape (n,).

        The next call continues, or begins the next pass. Raises OSError.
        """
        parts = [self._rest]
        end = time.thread_time() + budget_s
        if self._pass < 0:
            self._pass = iterator_open(self._link)
        while part := os.read(self._pass, _READ_BYTES):
            parts.append(part)
            if time.thread_time() >= end:
                break
        else:
            os.close(self._pass)
            self._pass = -1
            self.passes += 1
        data = b"".join(parts)
        whole = len(data) - len(data) % self._record.itemsize
        self._rest = data[whole:]
        return np.frombuffer(data[:whole], self._record).copy()

    def close(self) -> None:
        """Unload the program."""
        if self._pass >= 0:
            os.close(self._pass)
        os.close(self._link)
