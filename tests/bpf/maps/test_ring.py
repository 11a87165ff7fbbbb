"""The ring buffer's reader, fed by programs in the kernel."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from bpf import syscall
from bpf.abi import SLEEPABLE, MapFlag, MapType, ProgType
from bpf.assembler import (
    CALLBACK_TYPE,
    MAIN_TYPE,
    Assembler,
    HelperFunction,
    Register,
    callback_btf,
)
from bpf.errors import UsageError
from bpf.maps.ring import RingReader
from bpf.syscall import MapSpec, map_create, prog_load

R0, R1, R2, R3, R4, FP = (
    Register.R0, Register.R1, Register.R2, Register.R3, Register.R4, Register.FP,
)  # fmt: skip
RECORD = np.dtype([("number", "u8"), ("tail", "u1")])
"""9 bytes: the kernel rounds a record up to 8."""
STRIDE = 24
SIZE = 2 * mmap.PAGESIZE
NO_WAKEUP = 1
LOOPS = 1 << 23
"""Most rounds of a bpf_loop."""
WAITS = 500
"""Loops that wait for the gate: some seconds in all, should the test fail to open it."""


class Ring:
    """A ring buffer and programs that write into it; they count their records in a map."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.fd = self._own(map_create(MapSpec("ring", MapType.RINGBUF, 0, 0, SIZE)))
        spec = MapSpec("counter", MapType.ARRAY, 4, 8, 1, MapFlag.MMAPABLE)
        self._counter = self._own(map_create(spec))

    def gate(self) -> tuple[int, np.ndarray]:
        """Returns an array for `dawdler`, and its two numbers (2,) u64."""
        fd = self._own(map_create(MapSpec("gate", MapType.ARRAY, 4, 16, 1, MapFlag.MMAPABLE)))
        return fd, np.frombuffer(mmap.mmap(fd, mmap.PAGESIZE), np.uint64, 2)

    def _own(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def reader(self, record: np.dtype[np.void] = RECORD) -> RingReader:
        return self._stack.enter_context(RingReader(self.fd, SIZE, record))

    def writer(self, *, flags: int = 0, size: int = RECORD.itemsize) -> Callable[[], int]:
        """Writes {the next number, 0xAA}; returns 0, or an error as the kernel gives it."""
        code = Assembler()
        self._number(code)
        code.store(FP, -24, Register.R7)
        code.store(FP, -16, 0xAA)
        code.load_map(R1, self.fd)
        code.move(R2, FP)
        code.add(R2, -24)
        code.move(R3, size)
        code.move(R4, flags)
        code.call(HelperFunction.RINGBUF_OUTPUT)
        code.label("out")
        code.exit()
        return self._load(code)

    def discarder(self) -> Callable[[], int]:
        """Takes room for a record, and gives it up."""
        code = Assembler()
        self._reserve(code)
        code.move(R1, R0)
        code.move(R2, 0)
        code.call(HelperFunction.RINGBUF_DISCARD)
        code.label("out")
        code.exit(0)
        return self._load(code)

    def dawdler(self, gate: int) -> Callable[[], int]:
        """Takes room for a record, waits until the gate is open, then submits {0xFF, 0}.

        `gate` is the descriptor of an array with one value, two u64: the program sets the first
        when it has the room, and the test sets the second to open the gate.
        """
        code = Assembler()
        self._entry(code, gate)
        code.move(Register.R7, R0)
        self._reserve(code)
        code.move(Register.R6, R0)
        code.store(Register.R7, 0, 1)
        for _ in range(WAITS):
            code.move(R1, LOOPS)
            code.load_function(R2, "each")
            code.move(R3, 0)
            code.move(R4, 0)
            code.call(HelperFunction.LOOP)
        code.store(Register.R6, 0, 0xFF)
        code.store(Register.R6, 8, 0, 1)
        code.move(R1, Register.R6)
        code.move(R2, 0)
        code.call(HelperFunction.RINGBUF_SUBMIT)
        code.label("out")
        code.exit(0)
        code.label("each")
        self._entry(code, gate, "closed")
        code.load(R0, R0, 8)
        code.jump_if_zero(R0, "closed")
        code.exit(1)
        code.label("closed")
        code.exit(0)
        return self._load(code, "each")

    def _entry(self, code: Assembler, array: int, otherwise: str = "out") -> None:
        """R0 = the address of the array's first value."""
        code.store(FP, -4, 0, 4)
        code.load_map(R1, array)
        code.move(R2, FP)
        code.add(R2, -4)
        code.call(HelperFunction.MAP_LOOKUP_ELEM)
        code.jump_if_zero(R0, otherwise)

    def _number(self, code: Assembler) -> None:
        """R7 = the next number."""
        self._entry(code, self._counter)
        code.load(Register.R7, R0, 0)
        code.add(Register.R7, 1)
        code.store(R0, 0, Register.R7)

    def _reserve(self, code: Assembler) -> None:
        code.load_map(R1, self.fd)
        code.move(R2, RECORD.itemsize)
        code.move(R3, 0)
        code.call(HelperFunction.RINGBUF_RESERVE)
        code.jump_if_zero(R0, "out")

    def _load(self, code: Assembler, callback: str = "") -> Callable[[], int]:
        functions = [(0, MAIN_TYPE)]
        if callback:
            functions.append((code.position(callback), CALLBACK_TYPE))
        fd = prog_load(
            code.assemble(),
            ProgType.SYSCALL,
            "ring_test",
            flags=SLEEPABLE,
            btf_fd=callback_btf(),
            functions=functions,
        )
        return syscall.TestRunner(self._own(fd))


@pytest.fixture
def ring() -> Iterator[Ring]:
    with ExitStack() as stack:
        yield Ring(stack)


def test_records_come_once_and_in_order(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer()
    assert reader.read().tolist() == []
    assert reader.read().dtype == RECORD
    for _ in range(3):
        assert write() == 0
    assert reader.read().tolist() == [(1, 0xAA), (2, 0xAA), (3, 0xAA)]
    assert len(reader.read()) == 0
    write()
    assert reader.read().tolist() == [(4, 0xAA)]


def test_records_are_copies(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer()
    write()
    first = reader.read()
    for _ in range(2 * SIZE // STRIDE):
        write()
        reader.read()
    assert first.tolist() == [(1, 0xAA)]


def test_the_ring_wraps_without_a_seam(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer()
    seen: list[int] = []
    for step in range(1, 60):
        for _ in range(step):
            assert write() == 0
        seen += reader.read()["number"].tolist()
    assert len(seen) * STRIDE > 5 * SIZE
    assert seen == list(range(1, len(seen) + 1))


def test_a_full_ring_is_emptied_and_takes_records_again(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer()
    written = 0
    while write() == 0:
        written += 1
    assert written == SIZE // STRIDE - (SIZE % STRIDE == 0)
    assert reader.read()["number"].tolist() == list(range(1, written + 1))
    assert write() == 0
    assert reader.read()["number"].tolist() == [written + 2]


def test_discarded_records_are_skipped(ring: Ring) -> None:
    reader, write, discard = ring.reader(), ring.writer(), ring.discarder()
    for act in (discard, write, discard, discard, write, discard):
        act()
    assert reader.read()["number"].tolist() == [1, 2]
    for act in (discard, write):
        act()
    assert reader.read()["number"].tolist() == [3]
    discard()
    assert len(reader.read()) == 0
    assert reader.read()["number"].tolist() == []


def test_nothing_passes_a_record_that_is_still_being_written(ring: Ring) -> None:
    array, gate = ring.gate()
    reader, write, dawdle = ring.reader(), ring.writer(), ring.dawdler(array)
    write()
    busy = threading.Thread(target=dawdle)
    busy.start()
    while not gate[0]:
        assert busy.is_alive(), "no room for a record"
    write()
    early = reader.read()["number"].tolist()
    again = reader.read()["number"].tolist()
    still_busy = busy.is_alive()
    gate[1] = 1
    busy.join()
    assert still_busy
    assert early == [1]
    assert again == []
    assert reader.read()["number"].tolist() == [0xFF, 2]


@pytest.mark.timing
def test_waiting_ends_when_a_program_writes(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer()
    started = time.monotonic()
    assert not reader.wait(0.05)
    assert 0.04 < time.monotonic() - started < 1
    writer = threading.Timer(0.05, write)
    started = time.monotonic()
    writer.start()
    assert reader.wait(5)
    assert time.monotonic() - started < 2
    writer.join()
    assert len(reader.read()) == 1
    assert not reader.wait(0)


def test_a_quiet_producer_wakes_nobody_but_is_seen_when_asked(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer(flags=NO_WAKEUP)
    writer = threading.Timer(0.02, write)
    started = time.monotonic()
    writer.start()
    assert reader.wait(0.2)
    assert time.monotonic() - started > 0.19
    writer.join()
    assert reader.wait(0)
    assert len(reader.read()) == 1


def test_records_of_another_size_are_refused(ring: Ring) -> None:
    reader, write = ring.reader(), ring.writer(size=16)
    write()
    with pytest.raises(UsageError, match="other than 9 bytes"):
        reader.read()


def test_a_closed_reader_leaves_no_descriptor(ring: Ring) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with RingReader(ring.fd, SIZE, RECORD) as reader:
            reader.read()
    del reader
    assert len(os.listdir("/proc/self/fd")) == opened
