"""Reading whole maps: ours against a C program's system calls and bcc's iteration.

    python -m bench.drain [--entries N] [--rounds N]

Contestants take turns on the same map in the same run; medians are compared. The C opponent
(drain.c) reads into buffers that it keeps; ours makes new arrays for every read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from bench.support.report import Report
from bpf.abi import MapFlag, MapType
from bpf.maps.map import Map, ReadMethod
from bpf.syscall import MapSpec

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

Contestant = Callable[[], float]
"""Reads the map once and returns the milliseconds it took."""


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
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def take_turns(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Median milliseconds of each; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, contestant in contestants.items():
            taken = contestant()
            if turn:
                times[name].append(taken)
    return {name: median(taken) for name, taken in times.items()}


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


def compare(report: Report, name: str, ours: float, theirs: float, most: float) -> None:
    """`ours` may take `most` times as long as `theirs`."""
    ratio = ours / theirs
    measured = f"{ours:9.2f} ms  {ratio:7.4f} of it (at most {most:g})"
    report.target(name, measured, ratio <= most)


def bench_hash(report: Report, program: Path, entries: int, rounds: int) -> None:
    spec = MapSpec("bench", MapType.HASH, 8, 8, entries)
    order = np.random.default_rng(1).permutation(entries).astype("u8")
    with (
        Map.create(spec, _U8, _U8, routine=ReadMethod.DRAIN) as drained,
        Map(os.dup(drained.fd), spec, _U8, _U8, routine=ReadMethod.BATCH) as batched,
        opponent(program, drained, entries) as c,
    ):
        drained.update(order, order)
        times = take_turns(
            {
                "c": lambda: c("lookup"),
                "batch": lambda: timed(batched.read),
                "drain": lambda: timed(drained.read),
            },
            rounds,
        )
        iteration = bcc_iteration(drained, entries)
    report.row("hash: C, batch system calls", f"{times['c']:9.2f} ms")
    report.row("hash: bcc, items()", f"{iteration:9.2f} ms")
    compare(report, "hash: batch against C", times["batch"], times["c"], 1.05)
    compare(report, "hash: in-kernel drain against C", times["drain"], times["c"], 0.5)
    compare(report, "hash: in-kernel drain against bcc", times["drain"], iteration, 1 / 60)


def bench_array(report: Report, program: Path, entries: int, rounds: int) -> None:
    spec = MapSpec("bench", MapType.ARRAY, 4, 8, entries, MapFlag.MMAPABLE)
    with Map.create(spec, None, _U8) as mapped, opponent(program, mapped, entries) as c:
        mapped.update(np.arange(entries), np.arange(entries))
        times = take_turns(
            {
                "c": lambda: c("lookup"),
                "copy": lambda: timed(mapped.read),
                "sum": lambda: timed(mapped.view().sum),
            },
            rounds,
        )
    report.row("array: C, batch system calls", f"{times['c']:9.2f} ms")
    compare(report, "array: copy of the mapping against C", times["copy"], times["c"], 0.01)
    compare(report, "array: sum over the mapping against C", times["sum"], times["c"], 0.01)


def bench_queue(report: Report, program: Path, entries: int, rounds: int, kind: MapType) -> None:
    name = kind.name.lower()
    with (
        Map.create(MapSpec("bench", kind, 0, 8, entries), None, _U8) as map_,
        opponent(program, map_, entries) as c,
    ):

        def pop() -> float:
            c("push")
            return c("pop")

        def drain() -> float:
            c("push")
            return timed(map_.read)

        times = take_turns({"c": pop, "drain": drain}, rounds)
    report.row(f"{name}: C, one system call an entry", f"{times['c']:9.2f} ms")
    compare(report, f"{name}: in-kernel drain against C", times["drain"], times["c"], 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    entries, rounds = options.entries, options.rounds
    report = Report(f"Reading whole maps: {entries} entries of 8 bytes, median of {rounds}")
    with tempfile.TemporaryDirectory() as where:
        program = Path(where, "drain")
        subprocess.run(["gcc", "-O2", "-Wall", "-o", program, _SOURCE], check=True)
        bench_hash(report, program, entries, rounds)
        bench_array(report, program, entries, rounds)
        for kind in (MapType.QUEUE, MapType.STACK):
            bench_queue(report, program, entries, rounds, kind)
    report.end()


if __name__ == "__main__":
    main()
