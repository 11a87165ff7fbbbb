"""Lost records of programs for libbpf: records that do not fit into a ring are counted.

The kernel counts none, and such a program does not look. So each call of a helper that writes a
record becomes a call of a function behind the program, which calls the helper and counts failures.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from bpf.abi import MapType
from bpf.compiler.compiled import Compiled, CompiledMap, CompiledProgram
from bpf.maps.layout import CType
from bpf.programs.program import FUNCTION, LINE, Instruction, make_map, pack
from bpf.syscall import MapSpec

_PERF_EVENT_OUTPUT, _RINGBUF_OUTPUT, _RINGBUF_RESERVE = 25, 130, 131
_CALLS = {
    struct.pack("<BBhi", 0x85, 0, 0, helper): helper
    for helper in (_PERF_EVENT_OUTPUT, _RINGBUF_OUTPUT, _RINGBUF_RESERVE)
}
_LOSS = CType(np.dtype([("packets", "u8"), ("bytes", "u8")]))


def count_lost_records(compiled: Compiled, name: str, reasons: int, reason: int) -> Compiled:
    """Return the same result, with a map `name` of `reasons` losses; failures count as `reason`.

    Nothing changes if the source has a map of this name. Raises KernelError.
    """
    if name in compiled.maps:
        return compiled
    spec = MapSpec(name, MapType.PERCPU_ARRAY, 4, _LOSS.dtype.itemsize, reasons)
    number = 1 + max((each.bytecode_fd for each in compiled.maps.values()), default=0)
    key = CType(np.dtype("u4"))
    losses = CompiledMap(spec, key, _LOSS, make_map(spec), number)
    programs = {each.name: _counting(each, number, reason) for each in compiled.programs.values()}
    return replace(compiled, programs=programs, maps={**compiled.maps, name: losses})


def _counting(program: CompiledProgram, losses: int, reason: int) -> CompiledProgram:
    code = bytearray(program.instructions)
    functions, lines = program.functions, program.lines
    begins: dict[int, int] = {}
    for at in range(0, len(program.instructions), 8):
        if not (helper := _CALLS.get(bytes(code[at : at + 8]))):
            continue
        if helper not in begins:
            begins[helper] = len(code) // 8
            # Each function needs an entry, and a line at its first instruction.
            if functions:
                functions += FUNCTION.pack(begins[helper], FUNCTION.unpack_from(functions)[1])
            if lines:
                lines += LINE.pack(begins[helper], LINE.unpack_from(lines)[1])
            code += pack(_wrapper(helper, losses, reason))
        code[at : at + 8] = pack([(0x85, 0x10, 0, begins[helper] - at // 8 - 1)])
    return replace(program, instructions=bytes(code), functions=functions, lines=lines)


def _wrapper(helper: int, losses: int, reason: int) -> list[Instruction]:
    failed_is_zero = helper == _RINGBUF_RESERVE
    return [
        (0x85, 0x00, 0, helper),
        (0x55 if failed_is_zero else 0x15, 0x00, 12, 0),  # if r0 (not) 0 goto exit
        (0xBF, 0x06, 0, 0),  # r6 = r0
        (0x62, 0x0A, -4, reason),  # *(u32 *)(fp - 4) = reason
        (0xBF, 0xA2, 0, 0),  # r2 = fp
        (0x07, 0x02, 0, -4),  # r2 -= 4
        (0x18, 0x11, 0, losses),  # r1 = losses
        (0x00, 0x00, 0, 0),
        (0x85, 0x00, 0, 1),  # r0 = bpf_map_lookup_elem(r1, r2)
        (0x15, 0x00, 3, 0),  # if !r0 goto the result
        (0x79, 0x01, 0, 0),  # ++*(u64 *)r0
        (0x07, 0x01, 0, 1),
        (0x7B, 0x10, 0, 0),
        (0xBF, 0x60, 0, 0),  # r0 = r6
        (0x95, 0x00, 0, 0),
    ]
