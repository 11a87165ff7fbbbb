"""A small eBPF assembler with labels, and the type information that a callback must carry."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from enum import IntEnum

from bpf.abi import SLEEPABLE, ProgType
from bpf.syscall import btf_load, prog_load

INSTRUCTION = 8
"""Bytes of an instruction slot."""

_SIZE_CODE = {8: 0x18, 4: 0x00, 2: 0x08, 1: 0x10}
_PSEUDO_MAP_FD = 1
_PSEUDO_FUNC = 4


Register = IntEnum("Register", "R0 R1 R2 R3 R4 R5 R6 R7 R8 R9 FP", start=0)
"""R0 result, R1-R5 arguments, R6-R9 kept across calls, FP the top of the stack."""


class HelperFunction(IntEnum):
    """The part of enum bpf_func_id that probedeck's programs call."""

    MAP_LOOKUP_ELEM = 1
    MAP_DELETE_ELEM = 3
    KTIME_GET_NS = 5
    MAP_POP_ELEM = 88
    JIFFIES64 = 118
    RINGBUF_OUTPUT = 130
    RINGBUF_RESERVE = 131
    RINGBUF_SUBMIT = 132
    RINGBUF_DISCARD = 133
    KTIME_GET_COARSE_NS = 160
    FOR_EACH_MAP_ELEM = 164
    TIMER_INIT = 169
    TIMER_SET_CALLBACK = 170
    TIMER_START = 171
    LOOP = 181
    MAP_LOOKUP_PERCPU_ELEM = 195


class Assembler:
    """Appends instructions; `assemble()` resolves the labels and returns the bytes."""

    def __init__(self) -> None:
        self._code = bytearray()
        self._labels: dict[str, int] = {}
        self._references: list[tuple[int, str, str]] = []
        """Place and format of each distance to a label, and the label."""

    def label(self, name: str) -> None:
        """Name the place of the next instruction."""
        self._labels[name] = len(self._code) // INSTRUCTION

    def position(self, name: str) -> int:
        """Instruction offset of a label."""
        return self._labels[name]

    def move(self, to: Register, value: Register | int) -> None:
        """`to = value`; a number is a signed 32-bit one."""
        if isinstance(value, Register):
            self._emit(0xBF, to, value)
        else:
            self._emit(0xB7, to, imm=value)

    def add(self, to: Register, number: int) -> None:
        """`to += number`."""
        self._emit(0x07, to, imm=number)

    def unite(self, to: Register, source: Register) -> None:
        """`to |= source`."""
        self._emit(0x4F, to, source)

    def shift(self, to: Register, bits: int) -> None:
        """`to <<= bits`, or `to >>= -bits` (zeros come in) if `bits` is negative."""
        self._emit(0x67 if bits > 0 else 0x77, to, imm=abs(bits))

    def load(self, to: Register, base: Register, offset: int, size: int = 8) -> None:
        """`to = *(base + offset)`, of `size` bytes (1, 2, 4 or 8)."""
        self._emit(0x61 | _SIZE_CODE[size], to, base, offset)

    def store(self, base: Register, offset: int, value: Register | int, size: int = 8) -> None:
        """`*(base + offset) = value`, of `size` bytes (1, 2, 4 or 8)."""
        if isinstance(value, Register):
            self._emit(0x63 | _SIZE_CODE[size], base, value, offset)
        else:
            self._emit(0x62 | _SIZE_CODE[size], base, 0, offset, value)

    def exchange(self, base: Register, offset: int, register: Register) -> None:
        """Swap eight bytes at `base + offset` with a register, atomically (kernel 5.12)."""
        self._emit(0xDB, base, register, offset, 0xE1)

    def copy(self, to: Register, to_offset: int, source: Register, size: int) -> None:
        """Copy `size` bytes from `source` to `to + to_offset`; R1 is spent."""
        for offset, width in _pieces(size):
            self.load(Register.R1, source, offset, width)
            self.store(to, to_offset + offset, Register.R1, width)

    def clear(self, base: Register, size: int) -> None:
        """Write `size` zero bytes at `base`."""
        for offset, width in _pieces(size):
            self.store(base, offset, 0, width)

    def load_map(self, to: Register, fd: int) -> None:
        """`to` = the map behind a file descriptor."""
        self._emit(0x18, to, _PSEUDO_MAP_FD, imm=fd)
        self._emit(0)

    def load_function(self, to: Register, label: str) -> None:
        """`to` = the function that starts at a label."""
        self._references.append((len(self._code) + 4, "<i", label))
        self._emit(0x18, to, _PSEUDO_FUNC)
        self._emit(0)

    def call(self, helper: HelperFunction) -> None:
        """R0 = helper(R1 ... R5)."""
        self._emit(0x85, imm=helper)

    def jump_if_zero(self, register: Register, label: str) -> None:
        """Go to a label further on if `register` is 0."""
        self._references.append((len(self._code) + 2, "<h", label))
        self._emit(0x15, register)

    def jump_if_not_zero(self, register: Register, label: str) -> None:
        """Go to a label further on if `register` is not 0."""
        self._references.append((len(self._code) + 2, "<h", label))
        self._emit(0x55, register)

    def jump_if_above(self, register: Register, other: Register, label: str) -> None:
        """Go to a label further on if `register` > `other`, unsigned."""
        self._references.append((len(self._code) + 2, "<h", label))
        self._emit(0x2D, register, other)

    def exit(self, result: int | None = None) -> None:
        """Return R0, or `result` if it is given."""
        if result is not None:
            self.move(Register.R0, result)
        self._emit(0x95)

    def assemble(self) -> bytes:
        """The program, as PROG_LOAD takes it."""
        code = bytearray(self._code)
        for place, layout, label in self._references:
            distance = self._labels[label] - place // INSTRUCTION - 1
            struct.pack_into(layout, code, place, distance)
        return bytes(code)

    def _emit(
        self, opcode: int, to: int = 0, source: int = 0, offset: int = 0, imm: int = 0
    ) -> None:
        self._code += struct.pack("<BBhi", opcode, to | source << 4, offset, imm)


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, width) of the widest loads and stores that cover `size` bytes."""
    offset = 0
    for width in (8, 4, 2, 1):
        while size - offset >= width:
            yield offset, width
            offset += width


MAIN_TYPE = 3
"""BTF type id of a program's entry, `int main(void)`, in `callback_btf()`."""
CALLBACK_TYPE = 4
"""BTF type id of a program's callback in `callback_btf()`."""


@functools.cache
def callback_btf() -> int:
    """File descriptor of the BTF for a program with one callback; loaded once, kept open."""
    strings = b"\0int\0main\0callback\0"
    types = b"".join(
        (
            struct.pack("<4I", strings.index(b"int"), 1 << 24, 4, 1 << 24 | 32),
            struct.pack("<3I", 0, 13 << 24, 1),
            struct.pack("<3I", strings.index(b"main"), 12 << 24 | 1, 2),
            struct.pack("<3I", strings.index(b"callback"), 12 << 24, 2),
        )
    )
    return load_types(types, strings)


def load_types(types: bytes, strings: bytes) -> int:
    """Load BTF, given its two sections; returns its descriptor."""
    header = struct.pack("<HBB5I", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return btf_load(header + types + strings)


def load_with_callback(code: Assembler, callback: str, name: str) -> int:
    """Load a program of type SYSCALL whose callback begins at a label; returns its descriptor."""
    return prog_load(
        code.assemble(),
        ProgType.SYSCALL,
        name,
        flags=SLEEPABLE,
        btf_fd=callback_btf(),
        functions=[(0, MAIN_TYPE), (code.position(callback), CALLBACK_TYPE)],
    )
