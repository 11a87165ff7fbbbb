"""The clock of flow records: a cell that a kernel timer writes, or jiffies; a capture's own times.

bpf/include/clock.h has the part of it that packets run.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Protocol

import numpy as np

from bpf.abi import MapFlag, MapType, ProgType
from bpf.arrays import Array
from bpf.assembler import (
    Assembler,
    HelperFunction,
    Register,
    load_types,
    load_with_callback,
)
from bpf.maps.btf import TypeKind
from bpf.syscall import MapSpec, TestRunner, map_create, opened, prog_load, prog_test_run

_MAP = MapSpec("clock", MapType.ARRAY, 4, 48, 1)
_CELL, _END, _TIMER = 0, 8, 32
"""Offsets in the map's value, `struct clock` of clock.h."""

PERIOD_NS = 1_000_000
RUN_NS = 100_000_000
"""The timer ends after this time, and begins again if packets still come fast."""
_SHIFT = 18
"""Records keep the time in units of 2^18 ns: 32 bits of them last 13 days."""
_BIN_NS = 4_000_000
"""About the length of a bin of bytes."""
_INTERVAL_NS, _CALLS = 4_000_000, 64
"""So many packets within so many nanoseconds start the timer. At fewer packets, clock calls cost
less than the timer."""

_READ_JIFFIES = bytes.fromhex("8500000076000000 9500000000000000")
"""call bpf_jiffies64; exit."""
_TICKS = 5
"""Ticks that are waited for at the start: the earliest tells when ticks are due."""
_CLOCK_MONOTONIC_COARSE = 6  # not in Python's time module


class FlowClock(Protocol):
    """Gives packets the time of their records, and turns that into CLOCK_MONOTONIC."""

    macros: Mapping[str, int]
    """Of clock.h."""
    fds: Mapping[str, int]
    """Descriptors of the maps that clock.h declares."""
    bin_shift: int
    """Bits of the coarse time (clock.h) below the number of a bin, see peaks.py."""
    bin_ns: int
    error_ns: int
    """Most that a time differs from its packet's, unless the kernel runs its timers late."""

    def close(self) -> None: ...

    def update(self) -> None:
        """Take a new reference; once a window is enough."""

    def bin_at(self, now_ns: int) -> int:
        """Return the number of the present bin; `now_ns` is the time."""

    def monotonic_ns(self, times: Array) -> Array:
        """Nanoseconds (n,) i8 of records' times (n,) u4, all of the past."""


def tick_ns() -> int:
    """Return the length of the kernel's tick."""
    # The coarse clock advances by one tick at a time: its resolution is a tick's length.
    return round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)


def flow_clock() -> FlowClock:
    """Return the best clock of this kernel: a timer's if ticks are longer, else jiffies."""
    if tick_ns() > PERIOD_NS:
        with suppress(OSError):  # Linux < 5.15
            return TimerClock()
    return TickClock()


class _Jiffies:
    """The kernel's ticks, which number the bins."""

    def __init__(self) -> None:
        self._fd = prog_load(_READ_JIFFIES, ProgType.XDP, "jiffies")
        self.tick_ns = tick_ns()
        self.bin_shift = max(0, (_BIN_NS // self.tick_ns).bit_length() - 1)
        self.bin_ns = self.tick_ns << self.bin_shift

    def close(self) -> None:
        os.close(self._fd)

    def bin_at(self, now_ns: int) -> int:
        return self._read() >> self.bin_shift

    def _read(self) -> int:
        return prog_test_run(self._fd, bytes(64)).verdict


class TickClock(_Jiffies):
    """Time to half a tick, by jiffies: 2 ms if the kernel has 250 ticks a second."""

    macros: Mapping[str, int] = MappingProxyType({})
    fds: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__()
        self.error_ns = self.tick_ns // 2
        self._jiffies, self._tick_at_ns = self._read(), time.monotonic_ns()
        for _ in range(_TICKS):
            while self._read() == self._jiffies:
                pass
            self.update()

    def update(self) -> None:
        jiffies = self._read()
        ago = (jiffies - self._jiffies) % 2**32
        # Ticks come late, never early.
        self._tick_at_ns = min(self._tick_at_ns + ago * self.tick_ns, time.monotonic_ns())
        self._jiffies = jiffies

    def monotonic_ns(self, times: Array) -> Array:
        ago = (np.uint32(self._jiffies) - times).astype("i8")
        return self._tick_at_ns + self.tick_ns // 2 - ago * self.tick_ns


class TimerClock(_Jiffies):
    """Time to 0.7 ms, by a timer that runs only while packets come fast.

    A late timer (a real-time thread keeps its CPU) is noticed after two ticks at most, and then
    packets read the kernel's clock. The timer ends with this process, even if it is killed.
    """

    error_ns = PERIOD_NS + (1 << _SHIFT) >> 1

    def __init__(self) -> None:
        """Make the timer. Raises OSError before Linux 5.15."""
        super().__init__()
        self.macros: Mapping[str, int] = {
            "CLOCK_TIMER": 1,
            "CLOCK_PERIOD_NS": PERIOD_NS,
            "CLOCK_RUN_NS": RUN_NS,
            "CLOCK_INTERVAL_NS": _INTERVAL_NS,
            "CLOCK_CALLS": _CALLS,
            "CLOCK_SHIFT": _SHIFT,
        }
        with ExitStack() as undo, opened(_load_types()) as types:
            undo.callback(super().close)
            fd = map_create(_MAP, btf_fd=types, types=(_KEY_TYPE, _VALUE_TYPE))
            undo.callback(os.close, fd)
            with opened(load_with_callback(_timer_program(fd), "tick", "flow_clock")) as program:
                if TestRunner(program)():
                    raise OSError("the kernel makes no timer")
            undo.pop_all()
        self.fds: Mapping[str, int] = {_MAP.name: fd}
        self.update()

    def close(self) -> None:
        super().close()
        for fd in self.fds.values():
            os.close(fd)

    def update(self) -> None:
        # Half a period before the timer's next run, the cell is that much ahead.
        self._units = (time.monotonic_ns() + PERIOD_NS >> _SHIFT) + 1

    def monotonic_ns(self, times: Array) -> Array:
        ago = (np.uint32(self._units & 0xFFFFFFFF) - times).astype("i8")
        return (self._units - ago << _SHIFT) + (1 << _SHIFT - 1)


_KEY_TYPE, _TIMER_TYPE, _VALUE_TYPE = 1, 2, 3


def _load_types() -> int:
    """Return a descriptor of BTF with a key, `struct bpf_timer` and `struct clock`."""
    strings = b"\0int\0bpf_timer\0clock\0timer\0"
    int_, timer, clock, member = (
        strings.index(name + b"\0") for name in (b"int", b"bpf_timer", b"clock", b"timer")
    )
    types = (
        struct.pack("<4I", int_, TypeKind.INT << 24, 4, 32)
        + struct.pack("<3I", timer, TypeKind.STRUCT << 24, _MAP.value_size - _TIMER)
        + struct.pack("<3I", clock, TypeKind.STRUCT << 24 | 1, _MAP.value_size)
        + struct.pack("<3I", member, _TIMER_TYPE, 8 * _TIMER)
    )
    return load_types(types, strings)


def _timer_program(clock: int) -> Assembler:
    """A program that sets the timer of the map `clock` up, and the timer's callback."""
    value, now = Register.R6, Register.R7
    code = Assembler()
    code.store(Register.FP, -8, 0)
    code.load_map(Register.R1, clock)
    code.move(Register.R2, Register.FP)
    code.add(Register.R2, -8)
    code.call(HelperFunction.MAP_LOOKUP_ELEM)
    code.jump_if_zero(Register.R0, "absent")
    code.move(value, Register.R0)
    code.move(Register.R1, value)
    code.add(Register.R1, _TIMER)
    code.load_map(Register.R2, clock)
    code.move(Register.R3, time.CLOCK_MONOTONIC)
    code.call(HelperFunction.TIMER_INIT)
    code.jump_if_not_zero(Register.R0, "done")
    code.move(Register.R1, value)
    code.add(Register.R1, _TIMER)
    code.load_function(Register.R2, "tick")
    code.call(HelperFunction.TIMER_SET_CALLBACK)
    code.label("done")
    code.exit()
    code.label("absent")
    code.exit(1)

    code.label("tick")
    code.move(value, Register.R3)
    code.call(HelperFunction.KTIME_GET_NS)
    code.move(now, Register.R0)
    code.load(Register.R1, value, _END)
    code.jump_if_above(now, Register.R1, "end")
    code.call(HelperFunction.JIFFIES64)
    code.add(Register.R0, 1)
    code.shift(Register.R0, 32)
    code.add(now, PERIOD_NS // 2)  # its mean until the next run
    code.shift(now, -_SHIFT)
    code.shift(now, 32)
    code.shift(now, -32)
    code.unite(now, Register.R0)
    code.store(value, _CELL, now)
    code.move(Register.R1, value)
    code.add(Register.R1, _TIMER)
    code.move(Register.R2, PERIOD_NS)
    code.move(Register.R3, 0)
    code.call(HelperFunction.TIMER_START)
    code.exit(0)
    code.label("end")
    code.store(value, _CELL, 0)
    code.exit(0)
    return code


class GivenClock:
    """Times of a capture's frames, to 0.3 ms: `give` sets the time of the next frames."""

    macros: Mapping[str, int] = MappingProxyType({"CLOCK_GIVEN": 1})
    shift = _SHIFT
    bin_shift, bin_ns = 4, 1 << _SHIFT + 4
    error_ns = 1 << _SHIFT - 1

    def __init__(self) -> None:
        fd = map_create(MapSpec("clock", MapType.ARRAY, 4, 8, 1, MapFlag.MMAPABLE))
        self.fds: Mapping[str, int] = {_MAP.name: fd}
        self._cell = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("Q")
        self._ns = 0

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)

    def give(self, ns: int) -> None:
        """Set the time, in ns since the epoch."""
        self._ns = ns
        self._cell[0] = ns >> _SHIFT

    def update(self) -> None:
        """The time that was given last is the reference."""

    def bin_at(self, now_ns: int) -> int:
        return (now_ns >> _SHIFT & 0xFFFFFFFF) >> self.bin_shift

    def monotonic_ns(self, times: Array) -> Array:
        units = self._ns >> _SHIFT
        ago = (np.uint32(units & 0xFFFFFFFF) - times).astype("i4").astype("i8")
        return (units - ago << _SHIFT) + self.error_ns
