"""Frames of a capture in batches: their bytes in one buffer, and arrays of the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bpf.arrays import Array


class CapturedFrame(NamedTuple):
    """An Ethernet frame without its checksum."""

    time_ns: int
    """Usually since the epoch; only differences matter."""
    data: bytes
    """The captured bytes."""
    length: int
    """Bytes of the original frame."""


class FrameBatch(NamedTuple):
    """Frames in the order of a capture. Arrays are i8 (n,), as the fields of CapturedFrame."""

    data: bytes
    """The captured bytes, perhaps with others between them."""
    starts: Array
    """Where the captured bytes of each frame begin in `data`; increasing."""
    captured: Array
    """Number of its captured bytes."""
    lengths: Array
    times_ns: Array

    @staticmethod
    def of(frames: Sequence[CapturedFrame]) -> FrameBatch:
        captured, lengths, times_ns = np.array(
            [(len(data), length, time_ns) for time_ns, data, length in frames], "i8"
        ).reshape(-1, 3).T  # fmt: skip
        data = b"".join(frame.data for frame in frames)
        return FrameBatch(data, captured.cumsum() - captured, captured, lengths, times_ns)

    def frames(self, begin: int = 0, end: int | None = None) -> Iterator[CapturedFrame]:
        """Yield the frames from number `begin` to before `end`."""
        columns = (self.starts, self.captured, self.lengths, self.times_ns)
        for at, captured, length, time_ns in zip(
            *(column[begin:end].tolist() for column in columns), strict=True
        ):
            yield CapturedFrame(time_ns, self.data[at : at + captured], length)


class BatchesAhead:
    """Iterates once over batches, and knows the next frames."""

    def __init__(self, batches: Iterable[FrameBatch]) -> None:
        self._batches = iter(batches)
        self._held: deque[FrameBatch] = deque()

    def __iter__(self) -> Iterator[FrameBatch]:
        return self

    def __next__(self) -> FrameBatch:
        return self._held.popleft() if self._held else next(self._batches)

    def next(self, batch: FrameBatch, at: int, count: int) -> list[tuple[int, int]]:
        """Return times and lengths of `count` frames from frame `at` of the present batch on, at
        the end fewer. Reads other batches only if it needs them."""
        found: list[tuple[int, int]] = []
        held, begin = [batch, *self._held], at
        while held and len(found) < count:
            part = slice(begin, begin + count - len(found))
            each, begin = held.pop(0), 0
            found += zip(each.times_ns[part].tolist(), each.lengths[part].tolist(), strict=True)
            if not held and len(found) < count and (more := next(self._batches, None)):
                self._held.append(more)
                held.append(more)
        return found
