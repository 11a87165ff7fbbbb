"""Runs of frames through a chain of programs, by one system call each."""

from __future__ import annotations

import ctypes as ct
import mmap
import os
from contextlib import ExitStack, suppress

import numpy as np

from app.lab import netns
from app.lab.frames import FrameBatch
from bpf.abi import AttachType, MapFlag, MapType, ProgType
from bpf.attach.attachment import XDP_FLAGS_SKB_MODE
from bpf.links import link_create
from bpf.programs.program import VERDICT_PASS, pack, tail_call_stub
from bpf.syscall import FrameRunner, MapSpec, map_create, prog_load
from probes.flow.clock import GivenClock

_FRAMES, _BYTES = 1 << 16, 1 << 20
"""Most frames and bytes of a batch; powers of two."""
_ENTRY = np.dtype(
    [("time_ns", "i8"), ("start", "u4"), ("captured", "u4"), ("size", "u4"), ("unused", "u4")]
)
_NEXT, _SHIFT, _ENTRIES = 0, 8, 16
"""Offsets in the map's value: number of the next frame, ns to add to times, and the batch."""
_DATA = _ENTRIES + _FRAMES * _ENTRY.itemsize
_MAP = MapSpec(
    "frames", MapType.ARRAY, 4, _DATA + _BYTES + FrameRunner.longest, 1, MapFlag.MMAPABLE
)
_LOOPBACK = 1
"""Index of this interface in a namespace."""
_ADJUST_TAIL, _LENGTH_OF, _STORE_BYTES = 65, 188, 190
"""bpf_xdp_adjust_tail, bpf_xdp_get_buff_len and bpf_xdp_store_bytes."""


class FrameFeed:
    """Has a chain of XDP see the frames of batches. A program before the chain takes the next frame
    from a map, so one run of it with repetitions sees many frames."""

    def __init__(self, head_fd: int, clock: GivenClock) -> None:
        """Give the clock the time of each frame, and the frame to the program at index 0 of the
        array `head_fd`.

        Raises OSError before Linux 5.18, and without the right to make a network namespace.
        """
        with ExitStack() as undo:
            fd = map_create(_MAP)
            undo.callback(os.close, fd)
            program = prog_load(_feed(fd, head_fd, *clock.fds.values()), ProgType.XDP, "feed")
            undo.callback(os.close, program)
            ns = netns.fresh()
            undo.callback(os.close, ns)
            # Repetitions of a program that no interface has change the kernel's dispatcher of XDP,
            # twice in a call, and wait 20 ms each time until no CPU uses the old one.
            with netns.inside(ns):
                undo.callback(
                    os.close, link_create(program, _LOOPBACK, AttachType.XDP, XDP_FLAGS_SKB_MODE)
                )
            self._run = FrameRunner(program)
            self._map = mmap.mmap(fd, -(-_MAP.value_size // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._state = np.frombuffer(self._map, "i8", 2)
            self._entries = np.frombuffer(self._map, _ENTRY, _FRAMES, _ENTRIES)
            self._owned = undo.pop_all()

    def close(self) -> None:
        self._owned.close()

    def load(self, batch: FrameBatch) -> bool:
        """Take a batch in; returns False if it is too large."""
        count, size = len(batch.starts), len(batch.data)
        if count > _FRAMES or size > _BYTES:
            return False
        self._map[_DATA : _DATA + size] = batch.data
        entries = self._entries[:count]
        entries["time_ns"], entries["start"] = batch.times_ns, batch.starts
        longest = FrameRunner.longest
        entries["captured"] = np.minimum(batch.captured, longest)
        entries["size"] = np.minimum(np.maximum(batch.captured, batch.lengths), longest)
        return True

    def run(self, begin: int, end: int, shift_ns: int) -> None:
        """Run the frames of the batch from number `begin` to before `end`, with the zeros that
        captured bytes lack. Each is as long as `FrameRunner` takes. `shift_ns` is added to their
        times."""
        self._state[:] = begin, ct.c_int64(shift_ns).value
        while left := end - int(self._state[0]):
            with suppress(InterruptedError):  # by a signal, between two frames
                self._run(bytes(FrameRunner.shortest), left)


def _feed(fd: int, head_fd: int, clock_fd: int) -> bytes:
    return pack([
        (0xBF, 0x16, 0, 0),  # r6 = context
        (0x18, 0x27, 0, fd), (0, 0, 0, _NEXT),  # r7 = value of the map
        (0x79, 0x71, _NEXT, 0),  # r1 = next
        (0x57, 0x01, 0, _FRAMES - 1),  # r1 &= ..., for the verifier
        (0xBF, 0x12, 0, 0),  # r2 = r1
        (0x07, 0x02, 0, 1),  # r2 += 1
        (0x7B, 0x27, _NEXT, 0),  # next = r2
        (0x79, 0x73, _SHIFT, 0),  # r3 = shift
        (0x27, 0x01, 0, _ENTRY.itemsize),  # r1 *= ...
        (0x0F, 0x17, 0, 0),  # r7 += r1
        (0x79, 0x71, _ENTRIES, 0),  # r1 = time_ns
        (0x0F, 0x31, 0, 0),  # r1 += r3
        (0x77, 0x01, 0, GivenClock.shift),  # r1 >>= ...
        (0x18, 0x22, 0, clock_fd), (0, 0, 0, 0),  # r2 = value of the clock's map
        (0x7B, 0x12, 0, 0),  # clock = r1
        (0x61, 0x79, _ENTRIES + 16, 0),  # r9 = size
        (0x61, 0x78, _ENTRIES + 12, 0),  # r8 = captured
        (0xBF, 0x61, 0, 0), (0x85, 0, 0, _LENGTH_OF),  # r0 = length of the last frame
        (0xB7, 0x02, 0, FrameRunner.shortest),  # r2 = shortest
        (0x1F, 0x02, 0, 0),  # r2 -= r0
        (0xBF, 0x61, 0, 0), (0x85, 0, 0, _ADJUST_TAIL),
        # Of the last frame, `shortest` bytes are left. Behind the batch the map has zeros.
        (0xBF, 0x61, 0, 0),
        (0xB7, 0x02, 0, 0),
        (0x18, 0x23, 0, fd), (0, 0, 0, _DATA + _BYTES),  # r3 = zeros
        (0xB7, 0x04, 0, FrameRunner.shortest),
        (0x85, 0, 0, _STORE_BYTES),
        # The kernel writes zeros into bytes that a frame gains.
        (0xBF, 0x92, 0, 0),  # r2 = r9
        (0x07, 0x02, 0, -FrameRunner.shortest),  # r2 -= shortest
        (0xBF, 0x61, 0, 0), (0x85, 0, 0, _ADJUST_TAIL),
        (0x15, 0x08, 10, 0),  # if r8 == 0 goto end
        (0x25, 0x08, 9, FrameRunner.longest),  # if r8 > longest goto end, for the verifier
        (0x61, 0x71, _ENTRIES + 8, 0),  # r1 = start
        (0x57, 0x01, 0, _BYTES - 1),  # r1 &= ..., for the verifier
        (0x18, 0x23, 0, fd), (0, 0, 0, _DATA),  # r3 = data
        (0x0F, 0x13, 0, 0),  # r3 += r1
        (0xBF, 0x61, 0, 0),
        (0xB7, 0x02, 0, 0),
        (0xBF, 0x84, 0, 0),
        (0x85, 0, 0, _STORE_BYTES),  # write r8 bytes at 0
        (0xBF, 0x61, 0, 0),  # end: r1 = context
        *tail_call_stub(head_fd, VERDICT_PASS[ProgType.XDP]),
    ])  # fmt: skip
