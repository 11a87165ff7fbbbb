"""Whole maps: read, filled and erased, beside a C program's system calls and bcc's iteration.

Contestants take turns on the same map. The C opponent (drain.c) reads into buffers that it keeps;
ours makes new arrays for every read.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.runner.cases import Case, Effort, Group, Line, at_most
from bpf.abi import MapFlag, MapType
from bpf.arrays import Array
from bpf.maps.map import Map, ReadMethod
from bpf.syscall import MapSpec, map_update

_SOURCE = Path(__file__).with_name("drain.c")
_U8 = np.dtype("u8")

_BCC_ITERATION = """
import ctypes, sys, time
from bcc.table import HashTable

table = HashTable.__new__(HashTable)  # Without a BPF object: the map is there already.
table.map_fd, table.Key, table.Leaf = int(sys.argv[1]), ctypes.c_ulonglong, ctypes.c_ulonglong
start = time.perf_counter_ns()
count = len(table.items())
print(time.perf_counter_ns() - start, count)
"""


class Opponent:
    """The C program at work on one map."""

    def __init__(self, program: Path, map_: Map, entries: int) -> None:
        self._entries = entries
        sizes = (map_.fd, map_.spec.key_size, map_.spec.value_size, entries)
        self._process = subprocess.Popen(
            [program, *map(str, sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[map_.fd],
        )

    def __call__(self, word: str) -> float:
        """Have it do `word` with all entries; returns milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        nanoseconds, done = map(int, self._process.stdout.readline().split())
        assert done == self._entries
        return nanoseconds / 1e6

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def opponent(program: Path, map_: Map, entries: int) -> Iterator[Opponent]:
    process = Opponent(program, map_, entries)
    try:
        yield process
    finally:
        process.close()


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def bcc_iteration(map_: Map, entries: int) -> float:
    """Milliseconds of one `items()`, by Debian's bcc in its own interpreter."""
    result = subprocess.run(
        ["/usr/bin/python3", "-c", _BCC_ITERATION, str(map_.fd)],
        check=True,
        capture_output=True,
        text=True,
        pass_fds=[map_.fd],
    )
    nanoseconds, count = map(int, result.stdout.split())
    assert count == entries
    return nanoseconds / 1e6


def built(stack: ExitStack) -> Path:
    """Return the C program, compiled."""
    program = Path(stack.enter_context(tempfile.TemporaryDirectory()), "drain")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", program, _SOURCE], check=True)
    return program


def read_hash(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    entries = effort.of(1_000_000, 2000)
    spec = MapSpec("bench", MapType.HASH, 8, 8, entries)
    order = np.random.default_rng(1).permutation(entries).astype("u8")
    drained = stack.enter_context(Map.create(spec, _U8, _U8, routine=ReadMethod.DRAIN))
    again = Map(os.dup(drained.fd), spec, _U8, _U8, routine=ReadMethod.BATCH)
    batched = stack.enter_context(again)
    c = stack.enter_context(opponent(built(stack), drained, entries))
    drained.update(order, order)
    batch, drain = partial(timed, batched.read), partial(timed, drained.read)
    lookup, bcc = partial(c, "lookup"), partial(bcc_iteration, drained, entries)
    name = f"read a hash, {entries} entries of 8 bytes"
    yield Case(f"{name}, batch", "ms", batch, lookup, "C, batch system calls", goal=at_most(1.05))
    yield Case(f"{name}, in-kernel drain", "ms", drain, lookup, "C, batch system calls",
               goal=at_most(0.5))  # fmt: skip
    yield Case(f"{name}, in-kernel drain beside bcc", "ms", drain, bcc, "bcc, items()",
               goal=at_most(1 / 60))  # fmt: skip


def read_array(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    entries = effort.of(1_000_000, 2000)
    spec = MapSpec("bench", MapType.ARRAY, 4, 8, entries, MapFlag.MMAPABLE)
    mapped = stack.enter_context(Map.create(spec, None, _U8))
    c = stack.enter_context(opponent(built(stack), mapped, entries))
    mapped.update(np.arange(entries), np.arange(entries))
    lookup = partial(c, "lookup")
    for words, work in (("copy", mapped.read), ("sum over", mapped.view().sum)):
        name = f"read an array, {entries} entries of 8 bytes, {words} the mapping"
        yield Case(name, "ms", partial(timed, work), lookup, "C, batch system calls",
                   goal=at_most(0.01))  # fmt: skip


def read_queue(kind: MapType, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    entries = effort.of(1_000_000, 2000)
    made = Map.create(MapSpec("bench", kind, 0, 8, entries), None, _U8)
    map_ = stack.enter_context(made)
    c = stack.enter_context(opponent(built(stack), map_, entries))

    def pop() -> float:
        c("push")
        return c("pop")

    def drain() -> float:
        c("push")
        return timed(map_.read)

    name = f"empty a {kind.name.lower()}, {entries} entries of 8 bytes, in-kernel drain"
    yield Case(name, "ms", drain, pop, "C, a system call an entry", goal=at_most(0.1))


_KINDS = {
    "array": MapSpec("bench", MapType.ARRAY, 4, 8, 0, MapFlag.MMAPABLE),
    "hash": MapSpec("bench", MapType.HASH, 8, 8, 0),
    "queue": MapSpec("bench", MapType.QUEUE, 0, 8, 0),
}
_SIZES = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
_PAPER = "27x faster at 1,000,000 entries, 1.8x at one"


def fill_and_erase(kind: str, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Populate and erase, as figure 5 of S1 does: one call for many entries, and a call an entry.

    The kernel fills no queue by one call, so of a queue only the erasing is timed.
    """
    words = "erase" if kind == "queue" else "fill and erase"
    line = Line(f"S1 5: {words} a map, {kind}", "probedeck", "entries")
    for entries in effort.of(_SIZES, (1, 1000)):
        spec = replace(_KINDS[kind], max_entries=entries)
        key = _U8 if kind == "hash" else None
        fast = stack.enter_context(Map.create(spec, key, _U8))
        method = ReadMethod.POP if kind == "queue" else ReadMethod.ITERATE
        slow = stack.enter_context(Map(os.dup(fast.fd), spec, key, _U8, routine=method))
        keys: Array = np.arange(entries, dtype=key or np.dtype("u4"))
        goals = {1: at_most(1), 1_000_000: at_most(0.02)} if kind != "queue" else {}
        yield Case(
            f"{words}, {kind}, {entries} entries", "ms", partial(_whole, fast, keys),
            partial(_one_by_one, slow, keys), "a system call an entry", goal=goals.get(entries),
            figure="S1 5", paper=_PAPER, line=line, size=entries,
        )  # fmt: skip


def _whole(map_: Map, keys: Array) -> float:
    values = np.ones(len(keys), "u8")
    return _filled_and_erased(map_, lambda: map_.update(keys, values), len(keys))


def _one_by_one(map_: Map, keys: Array) -> float:
    names, one = [each.tobytes() for each in keys], (1).to_bytes(8, "little")

    def fill() -> None:
        for name in names:
            map_update(map_.fd, name, one)

    is_queue = map_.spec.kind.is_queue
    return _filled_and_erased(
        map_,
        (lambda: map_.update(None, np.ones(len(names), "u8"))) if is_queue else fill,
        len(keys),
    )


def _filled_and_erased(map_: Map, fill: Callable[[], object], entries: int) -> float:
    """Return the milliseconds of one turn; of few entries many turns are made."""
    turns, taken = max(1, 200 // entries), 0.0
    for _ in range(turns):
        filling = timed(fill)
        taken += timed(map_.clear) + (0 if map_.spec.kind.is_queue else filling)
    return taken / turns


GROUPS = (
    Group("hash", read_hash, 7),
    Group("array", read_array, 7),
    *(Group(k.name.lower(), partial(read_queue, k), 7) for k in (MapType.QUEUE, MapType.STACK)),
    *(Group(f"figure 5, {kind}", partial(fill_and_erase, kind), 7) for kind in _KINDS),
)
