"""The estimate of distinct flows against exact counts, and against what others make of them (S2.7).

Hashes are random, because the bench measures the sketch and not the hash. The flows of a round
grow to a million; the bench compares the estimates on the way. Up to thirty flows, errors are
rare, so there are eight times as many rounds. Raw HyperLogLog (with linear counting) and Ertl's
estimate have 500 rounds, from the ranks of the same registers. datasketches (HLL_8) has 125 rounds
and its own hash. Without a merge it also uses the order in which flows arrive.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import datasketches  # type: ignore[import-untyped]
import numpy as np

from bench.flow import constant
from bench.runner.cases import Case, Effort, Group, at_least, at_most
from bpf.arrays import Array
from probes.monitor.sketch import Sketch

_BITS = (8, 10, 12, 14)
_FEW = (1, 3, 10, 30)
_MANY = (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_COUNTS = _FEW + _MANY
_MOST_DATASKETCHES = 100_000
_CHUNK = 1 << 16
_CALLS = 1000


class Errors:
    """Relative errors of one estimate at one number of flows."""

    def __init__(self) -> None:
        self._errors: list[float] = []

    def add(self, estimate: float, flows: int) -> None:
        self._errors.append(estimate / flows - 1)

    @property
    def deviation(self) -> float:
        """Root of their mean square."""
        return float(np.sqrt(np.mean(np.square(self._errors))))

    @property
    def has_any(self) -> bool:
        return bool(self._errors)

    @property
    def bias(self) -> float:
        return float(np.mean(self._errors))


class Measured:
    """All estimates at one number of registers and of flows."""

    def __init__(self) -> None:
        self.ours, self.raw, self.ertl, self.datasketches = (Errors() for _ in range(4))
        self._covered: list[bool] = []

    def add(self, sketch: Sketch, flows: int, others: bool) -> None:
        self.ours.add(sketch.estimate(), flows)
        low, high = sketch.band()
        self._covered.append(low <= flows <= high)
        if others:
            ranks = sketch.ranks()
            self.raw.add(raw(ranks), flows)
            self.ertl.add(ertl(ranks), flows)

    @property
    def coverage(self) -> float:
        return float(np.mean(self._covered))

    @property
    def tolerance(self) -> float:
        """Three standard errors of a coverage of 95 %."""
        return 3 * math.sqrt(0.95 * 0.05 / len(self._covered))


def raw(ranks: Array) -> float:
    """Flajolet's estimate from ranks (m,), by linear counting where it is small."""
    m = len(ranks)
    estimate = 0.7213 / (1 + 1.079 / m) * m * m / float(np.sum(0.5 ** ranks.astype(float)))
    empty = m - np.count_nonzero(ranks)
    return m * math.log(m / empty) if empty and estimate <= 2.5 * m else estimate


def ertl(ranks: Array) -> float:
    """Ertl's improved estimate from ranks (m,): arXiv:1702.01284, algorithm 6, without what it has
    for registers at the largest rank, as here is none."""
    m = len(ranks)
    empty, *used = np.bincount(ranks) / m
    z = 0.0
    for share in reversed(used):
        z = (z + float(share)) / 2
    x, y, sigma, before = float(empty), 1.0, float(empty), math.nan
    while sigma != before and empty < 1:
        x, before = x * x, sigma
        sigma, y = sigma + x * y, 2 * y
    return m / (2 * math.log(2)) / (z + sigma)


def grown(rng: np.random.Generator, counts: tuple[int, ...]) -> Iterator[tuple[int, Sketch]]:
    """A sketch of most registers at each number of flows."""
    sketch = Sketch.of(np.empty(0, "u8"), _BITS[-1], "")
    for before, flows in itertools.pairwise((0, *counts)):
        for start in range(before, flows, _CHUNK):
            hashes = rng.integers(0, 1 << 64, min(_CHUNK, flows - start), "u8")
            sketch = sketch.merged(Sketch.of(hashes, sketch.bits, ""))
        yield flows, sketch


def narrowed(sketch: Sketch, bits: int) -> Sketch:
    """The registers that a smaller sketch would have for the same flows."""
    return Sketch.of_cpus(sketch.registers.reshape(-1, 1 << bits), bits, sketch.seed)


def measure(rounds: int) -> dict[tuple[int, int], Measured]:
    """By bits and flows."""
    measured: dict[tuple[int, int], Measured] = defaultdict(Measured)
    rng = np.random.default_rng(7)
    for counts, number in ((_FEW, 8 * rounds), (_MANY, rounds)):
        for turn in range(number):
            for flows, sketch in grown(rng, counts):
                for bits in _BITS:
                    others = turn % max(1, number // 500) == 0
                    measured[bits, flows].add(narrowed(sketch, bits), flows, others)
    for bits, _ in itertools.product(_BITS, range(rounds // 16)):
        theirs = datasketches.hll_sketch(bits, datasketches.tgt_hll_type.HLL_8)
        keys = rng.integers(0, 1 << 63, _MOST_DATASKETCHES).tolist()
        for flows, key in enumerate(keys, 1):
            theirs.update(key)
            if flows in _COUNTS:
                measured[bits, flows].datasketches.add(theirs.get_estimate(), flows)
    return measured


def microseconds(call: Callable[[], object]) -> float:
    """The median of many calls."""
    times = []
    for _ in range(_CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times)) / 1000


def errors(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Yield errors in percent, and the share of the 95 % bands that have the count."""
    for (bits, flows), each in sorted(measure(effort.of(2000, 5)).items()):
        limit = 104 / math.sqrt(1 << bits)
        name = f"distinct flows, b = {bits}, {flows} flows"
        yield Case(f"{name}: RMS error", "%", constant(each.ours.deviation * 100),
                   goal=at_most(limit))  # fmt: skip
        yield Case(f"{name}: bias", "%", constant(abs(each.ours.bias) * 100),
                   goal=at_most(limit / 3))  # fmt: skip
        yield Case(f"{name}: bands that have the count", "%", constant(each.coverage * 100),
                   goal=at_least(95 - 100 * each.tolerance))  # fmt: skip
        for other, theirs in (("raw HyperLogLog", each.raw), ("Ertl's estimate", each.ertl),
                              ("datasketches", each.datasketches)):  # fmt: skip
            if theirs.has_any and theirs.deviation:
                yield Case(f"{name}: RMS error beside {other}", "%",
                           constant(each.ours.deviation * 100), constant(theirs.deviation * 100),
                           other)  # fmt: skip


def times(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    rng = np.random.default_rng(7)
    for bits in _BITS:
        sketch = Sketch.of(rng.integers(0, 1 << 64, 100_000, "u8"), bits, "")
        yield Case(f"an estimate, b = {bits}", "us", partial(microseconds, sketch.estimate),
                   goal=at_most(200))  # fmt: skip
        yield Case(f"its band, b = {bits}", "us", partial(microseconds, sketch.band))


GROUPS = (Group("errors", errors, 1, warm=False), Group("times", times, 5))
