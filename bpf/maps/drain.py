"""The in-kernel drain: one system call copies a whole map into an array that is mapped here.

A BPF_PROG_TYPE_SYSCALL program walks the map (bpf_for_each_map_elem, or bpf_loop and
bpf_map_pop_elem for a queue and a stack) and writes each entry as one record into an mmapable
ARRAY: the key, then the values of all CPUs, each part starting at a multiple of 8 bytes.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from bpf.abi import MapFlag, MapType
from bpf.arrays import Array
from bpf.assembler import Assembler, HelperFunction, Register, load_with_callback
from bpf.machine import possible_cpus
from bpf.maps.kinds import Shape
from bpf.maps.layout import EntryLayout, round_up
from bpf.maps.readers import Pop, Reader, has_lock
from bpf.syscall import MapSpec, TestRunner, map_create, opened

_R0, _R1, _R2, _R3, _R4 = Register.R0, Register.R1, Register.R2, Register.R3, Register.R4
_KEY, _VALUE, _COUNT, _RECORD = Register.R6, Register.R7, Register.R8, Register.R9
_FP = Register.FP

_LONGEST_VALUE = 512
"""Bytes of one value: the copy is unrolled, and a batch's memcpy is as fast on longer ones."""
_LONGEST_RECORD = 16 << 10
_LARGEST_OUTPUT = 256 << 20
"""Bytes that a full map may take in the output."""
_FIRST_CAPACITY = 4096
_GROWTH = 8
_MOST_LOOPS = 1 << 23
"""BPF_MAX_LOOPS of bpf_loop."""


class Drain(Reader):
    """Reads one map by running a program in the kernel; its output grows with the map."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        super().__init__(fd, spec)
        self._most = spec.max_entries
        if spec.kind.is_queue:
            self._most = min(self._most, _MOST_LOOPS)
        # An array is always full, and must be read in one run.
        first = self._most if spec.kind.shape == Shape.ARRAY else _FIRST_CAPACITY
        self._output: _Output | None = None
        self._capacity = min(first, self._most)
        self._eraser: tuple[int, TestRunner] | None = None

    @staticmethod
    def supports(fd: int, spec: MapSpec) -> bool:
        """Whether the kernel takes such programs; tried once for each kind of map."""
        if not spec.kind.drain:
            return False
        record = _record_dtype(EntryLayout.of(spec)).itemsize
        return (
            spec.value_size <= _LONGEST_VALUE
            and record <= _LONGEST_RECORD
            and record * spec.max_entries <= _LARGEST_OUTPUT
            and not has_lock(fd)  # no program may copy a lock or a timer
            and _works(spec.type, spec.key_size, spec.value_size, spec.flags)
        )

    def read(self, clear: bool) -> Iterator[tuple[Array | None, Array]]:
        """Chunks of (keys, values), opaque bytes; with `clear` a chunk has left the map.

        Raises OSError if the kernel refuses.
        """
        clear = clear or self._spec.kind.is_queue
        total = 0
        while True:
            if self._output is None:
                self._output = _Output(self._fd, self._spec, self._capacity)
            count = self._output.run(clear)
            complete = count < self._capacity or total + count >= self._spec.max_entries
            if clear or complete:
                records = self._output.records[:count]
                keys = records["key"].copy() if self._layout.key_size else None
                yield keys, records["value"].copy()
                total += count
            if complete:
                return
            if self._capacity < self._most:
                self._close_output()
                self._capacity = min(self._capacity * _GROWTH, self._most)

    def erase(self) -> None:
        """Empty the map: a walk that copies nothing."""
        if self._spec.kind.is_queue:
            Pop(self._fd, self._spec).erase()
            return
        if self._eraser is None:
            self._eraser = _load(_erasing_program(self._fd, self._spec))
        self._eraser[1]()

    def close(self) -> None:
        """Unload the programs and free the output."""
        self._close_output()
        if self._eraser is not None:
            os.close(self._eraser[0])
            self._eraser = None

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None


class _Output:
    """The mapped array of `capacity` records, and the programs that write it."""

    def __init__(self, fd: int, spec: MapSpec, capacity: int) -> None:
        self._source = fd
        self._spec = spec
        self._programs: dict[bool, tuple[int, TestRunner]] = {}
        self._capacity = capacity
        dtype = _record_dtype(EntryLayout.of(spec))
        self._fd = map_create(
            MapSpec("drain", MapType.ARRAY, 4, dtype.itemsize, capacity, MapFlag.MMAPABLE)
        )
        try:
            mapping = mmap.mmap(self._fd, round_up(dtype.itemsize * capacity, mmap.PAGESIZE))
        except OSError:
            os.close(self._fd)
            raise
        self.records = np.frombuffer(mapping, dtype, capacity)
        """Records of the last run; the next run overwrites them."""

    def run(self, clear: bool) -> int:
        """Copy the map's entries into `records`; returns their number, `capacity` at most."""
        if clear not in self._programs:
            code = _program(self._source, self._fd, self._spec, clear, self._capacity)
            self._programs[clear] = _load(code)
        return self._programs[clear][1]()

    def close(self) -> None:
        for fd, _ in self._programs.values():
            os.close(fd)
        os.close(self._fd)


def _load(code: Assembler) -> tuple[int, TestRunner]:
    """A program's descriptor, and how to run it."""
    fd = load_with_callback(code, "each", "drain")
    return fd, TestRunner(fd)


def _record_dtype(layout: EntryLayout) -> np.dtype[np.void]:
    value_at = round_up(layout.key_size, 8)
    return np.dtype(
        {
            "names": ["key", "value"],
            "formats": [np.dtype(f"V{layout.key_size}"), layout.value_dtype],
            "offsets": [0, value_at],
            "itemsize": value_at + round_up(layout.values_size, 8),
        }
    )


@functools.cache
def _works(map_type: MapType, key_size: int, value_size: int, flags: int) -> bool:
    # Some LRU maps need an entry for each CPU.
    spec = MapSpec("drain_trial", map_type, key_size, value_size, possible_cpus(), flags)
    try:
        with opened(map_create(spec)) as fd, closing(Drain(fd, spec)) as drain:
            for clear in (False, True):
                for _ in drain.read(clear):
                    pass
            drain.erase()
    except OSError:
        return False
    return True


def _program(fd: int, output: int, spec: MapSpec, clear: bool, capacity: int) -> Assembler:
    """Assemble a program that copies every entry, and returns the number of records."""
    code = _begin(fd, spec, capacity)
    if spec.kind.is_queue:
        _pop_one(code, fd, output)
    else:
        _copy_one(code, fd, output, spec, clear)
    code.load(_R1, _COUNT, 0)
    code.add(_R1, 1)
    code.store(_COUNT, 0, _R1)
    code.label("next")
    code.exit(0)
    code.label("stop")
    code.exit(1)
    return code


def _begin(fd: int, spec: MapSpec, capacity: int = 0) -> Assembler:
    """Assemble `main`, which gives `each` a counter and returns its count; `each` comes next."""
    code = Assembler()
    code.store(_FP, -8, 0)
    if spec.kind.is_queue:
        code.move(_R1, capacity)
    else:
        code.load_map(_R1, fd)
    code.load_function(_R2, "each")
    code.move(_R3, _FP)
    code.add(_R3, -8)
    code.move(_R4, 0)
    code.call(HelperFunction.LOOP if spec.kind.is_queue else HelperFunction.FOR_EACH_MAP_ELEM)
    code.load(_R0, _FP, -8)
    code.exit()
    code.label("each")
    return code


def _erasing_program(fd: int, spec: MapSpec) -> Assembler:
    """Assemble a program that empties a hash or an array."""
    code = _begin(fd, spec)
    code.move(_KEY, _R2)
    if spec.kind.shape == Shape.HASH:
        _delete_one(code, fd)
    elif not spec.percpu:
        code.clear(_R3, spec.value_size)
    for cpu in range(possible_cpus() if spec.type == MapType.PERCPU_ARRAY else 0):
        _look_up_of_cpu(code, fd, cpu)
        code.clear(_R0, spec.value_size)
    code.label("next")
    code.exit(0)
    return code


def _pop_one(code: Assembler, fd: int, output: int) -> None:
    """Callback of bpf_loop(index, count)."""
    code.move(_COUNT, _R2)
    _next_record(code, output)
    code.load_map(_R1, fd)
    code.move(_R2, _RECORD)
    code.call(HelperFunction.MAP_POP_ELEM)
    code.jump_if_not_zero(_R0, "stop")


def _copy_one(code: Assembler, fd: int, output: int, spec: MapSpec, clear: bool) -> None:
    """Callback of bpf_for_each_map_elem(map, key, value, count)."""
    layout = EntryLayout.of(spec)
    code.move(_KEY, _R2)
    code.move(_VALUE, _R3)
    code.move(_COUNT, _R4)
    _next_record(code, output)
    code.copy(_RECORD, 0, _KEY, layout.key_size)
    at = round_up(layout.key_size, 8)
    zero = clear and spec.kind.shape == Shape.ARRAY
    for cpu in range(layout.cpus):
        # Deleted meanwhile: without the record, which holds an earlier run's values.
        _look_up_of_cpu(code, fd, cpu)
        code.copy(_RECORD, at, _R0, spec.value_size)
        if zero:
            code.clear(_R0, spec.value_size)
        at += layout.value_size
    if not layout.cpus:
        code.copy(_RECORD, at, _VALUE, spec.value_size)
        if zero:
            code.clear(_VALUE, spec.value_size)
    if clear and spec.kind.shape == Shape.HASH:
        _delete_one(code, fd)


def _look_up_of_cpu(code: Assembler, fd: int, cpu: int) -> None:
    """R0 = a CPU's value under _KEY; jump to `next` if it is missing."""
    code.load_map(_R1, fd)
    code.move(_R2, _KEY)
    code.move(_R3, cpu)
    code.call(HelperFunction.MAP_LOOKUP_PERCPU_ELEM)
    code.jump_if_zero(_R0, "next")


def _delete_one(code: Assembler, fd: int) -> None:
    code.load_map(_R1, fd)
    code.move(_R2, _KEY)
    code.call(HelperFunction.MAP_DELETE_ELEM)


def _next_record(code: Assembler, output: int) -> None:
    """_RECORD = where the next record goes, or stop if the output is full."""
    code.load(_R1, _COUNT, 0)
    code.store(_FP, -4, _R1, 4)
    code.load_map(_R1, output)
    code.move(_R2, _FP)
    code.add(_R2, -4)
    code.call(HelperFunction.MAP_LOOKUP_ELEM)
    code.jump_if_zero(_R0, "stop")
    code.move(_RECORD, _R0)
