"""Verdicts in a chain: pass verdicts lead to the next probe, all others are final.

A probe's source just returns its verdict. When a probe is loaded its bytecode is patched: a
prologue saves the context, and each exit jumps to an epilogue that tail-calls the next probe if
the verdict is a pass. So any program can be in a chain, whatever its style.
"""

from __future__ import annotations

import struct

from bpf.abi import ProgType
from bpf.errors import UsageError

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


def _end(prog_type: ProgType, next_fd: int) -> bytes:
    """`if (r0 passes) tail_call(context, next, 0), r0 = pass; return r0`.

    Events pass whatever r0 is.
    """
    call = [(0x79, 0xA1, _CONTEXT_AT, 0), *tail_call_stub(next_fd, VERDICT_PASS[prog_type])]
    if prog_type not in PACKET_TYPES:
        return pack(call)
    *others, last = _PASSING[prog_type]
    to_call = [(0x16, 0x00, len(others) - n, verdict) for n, verdict in enumerate(others)]
    to_exit = (0x56, 0x00, len(call) - 1, last)  # if w0 != last goto exit
    return pack([*to_call, to_exit, *call])
