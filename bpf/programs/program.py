"""Loaded programs: clones of a compiled source, on own or shared maps."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from bpf.abi import AttachType
from bpf.compiler import Compiled, CompiledMap
from bpf.compiler.quota import map_bytes
from bpf.cpus import possible_cpus
from bpf.errors import KernelError
from bpf.maps.memory import map_memory
from bpf.programs.verdict import chain_program, passing_program
from bpf.syscall import MapSpec, ProgInfo, map_create, prog_info, prog_load

_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1


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
        try:
            for map_name, declared in compiled.maps.items():
                if map_name in self._shared:
                    continue
                if map_name in self._borrowed:
                    self._own[map_name] = os.dup(own[map_name])
                else:
                    self._own[map_name] = create_like(declared, entries=entries.get(map_name))
            places = {m.bytecode_fd: self.map_fd(n) for n, m in compiled.maps.items()}
            code = relocate(program.instructions, places)
            if next_fd is not None:
                code = chain_program(code, program.type, next_fd)
            elif passes:
                code = passing_program(code, program.type)
            self.fd = prog_load(
                code,
                program.type,
                name,
                license_name=program.license,
                attach_type=attach_type or program.attach_type or 0,
                attach_btf_id=attach_btf_id,
            )
        except BaseException:
            self._close_maps()
            raise

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


def create_like(declared: CompiledMap, flags: int = 0, entries: int | None = None) -> int:
    """Create a map as a source declares it, with more flags or another number of entries.

    Raises KernelError if the kernel refuses.
    """
    spec = replace(sized(declared.spec, entries), flags=declared.spec.flags | flags)
    return make_map(spec, like=declared.fd, btf_fd=declared.btf_fd)


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


def relocate(instructions: bytes, places: Mapping[int, int]) -> bytes:
    """Return `instructions` with every map reference `old` replaced by `places[old]`.

    A map reference is an ld_imm64 with source register 1 (BPF_PSEUDO_MAP_FD). Its second half is no
    instruction, but has the operation code 0.
    """
    code = bytearray(instructions)
    for at in range(0, len(code), 8):
        if code[at] == _LD_IMM64 and code[at + 1] >> 4 == _PSEUDO_MAP_FD:
            (old,) = struct.unpack_from("<i", code, at + 4)
            struct.pack_into("<i", code, at + 4, places[old])
    return bytes(code)
