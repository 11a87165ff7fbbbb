"""Estimates of one window from the slots of a selection (bpf/include/slots.h)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from bpf.arrays import Array
from probes.monitor.selected import Estimate
from probes.monitor.sketch import Sketch

BITS = 10
"""2**BITS registers of a slot."""


def distinct_values(registers: Array) -> Estimate:
    """The number of distinct values, of registers (CPUs, 2**BITS) u4."""
    return _distinct(registers.max(axis=0).tobytes())


@functools.lru_cache(256)
def _distinct(registers: bytes) -> Estimate:
    """Estimate from the registers of all CPUs. On a quiet host they are often the same."""
    sketch = Sketch(BITS, np.frombuffer(registers, "u4"), "")
    return Estimate(sketch.flows(), *sketch.band())


def sampled(registers: Array, counts: Callable[[Array], Array]) -> Estimate:
    """The number of distinct values that count, of registers (CPUs, 2**BITS) of `struct sampled`.

    The value with a register's largest hash is a sample. Its packets on all CPUs are known; a CPU
    with another value there had none of them.
    """
    largest = registers["value"].max(axis=0)
    seen = np.where(registers["value"] == largest, registers["seen"], 0)[:, largest > 0]
    directions = np.bitwise_or.reduce(seen & 3)
    found = int(counts((seen >> 2).sum(axis=0) << 2 | directions).sum())
    distinct = distinct_values(registers["value"])
    used = seen.shape[1]
    # The unseen values count as often as the sample, within two standard errors (Agresti, Coull).
    share = (found + 2) / (used + 4)
    error = 2 * math.sqrt(share * (1 - share) / (used + 4))
    return Estimate(
        distinct.value * found / max(used, 1),
        found + (distinct.low - used) * max(share - error, 0.0),
        found + (distinct.high - used) * min(share + error, 1.0),
    )


def largest_share(buckets: Array, packets: int) -> Estimate:
    """The share of `packets` that the commonest value has; buckets (CPUs, n) of `struct bucket`.

    The limits are certain. The value is the upper one: it hardly differs from the share if one
    value has most packets of its bucket.
    """
    if not packets:
        return Estimate(0.0, 0.0, 0.0)
    total = buckets["packets"].sum(axis=0).astype("i8")
    _, votes = functools.reduce(
        _elected, zip(buckets["candidate"], buckets["votes"].astype("i8"), strict=True)
    )
    low, high = votes.max() / packets, (total + votes).max() / 2 / packets
    return Estimate(high, low, high)


def _elected(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Join the majority votes of two CPUs: candidates and votes (n,) of their buckets."""
    (candidate, votes), (other_candidate, other_votes) = one, other
    same = candidate == other_candidate
    return (
        np.where(votes >= other_votes, candidate, other_candidate),
        np.where(same, votes + other_votes, abs(votes - other_votes)),
    )
