"""Number of distinct flows, by HyperLogLog registers that keep more than a rank (S2.7).

The lower bits of a flow's 64-bit hash choose one of m registers, which keeps the largest `hash >>
32 | 1`; 0: empty. Let U be 1 - value / 2**32 of a register, P the mean of all U, and D the number
of used registers. The registers of n flows are below x_1 .. x_m with probability (mean x)**n, so
the likelihood of n is n! / (n - D)! * (1 - P)**(n - D): that of n trials with D successes of
probability P each. Hence

- it is largest at n = D / P: one formula for any n, with no table and no linear counting;
- this is too large by c / P, c = 1 - L / (exp(L) - 1), L = n / m, except terms of second order in 1
  / m: the estimate is (D - c) / P;
- given the registers, n - D is negative binomial (with 1 / n as the prior): the band. It is nearly
  exact for few flows.

A value is the middle of a cell of width 2**-31, which matters if n is as large as m * 2**28: the
likelihood of D cells is exp(-L * m * P) * sinh(L / 2**32)**D, and largest for L = 2**32 * atanh(D /
S), S = 2**32 * m * P. So the estimate is right up to n = m * 2**31, and the band, which does not
widen with cells, up to m * 2**30.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bpf.arrays import Array
from bpf.errors import UsageError
from probes.monitor.options import BITS

_T = TypeVar("_T", int, str)

_FULL = 1 << 32
"""U of an empty register, in units of 2**-32."""
_SPREADS = 10.0
"""The band is searched within so many standard deviations to each side."""
_HARDLY = 0.1
"""A smaller number of possible further flows is not shown."""
_POINTS = 2000
"""Most counts that are weighed for a band: every count, or evenly spaced ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Distinct flows of one or several windows or hosts."""

    bits: int
    registers: Array
    """(2**bits,) u4, read-only: the largest `hash >> 32 | 1` of each register, 0: empty."""
    seed: str
    """Id of the hash's key: registers of different keys cannot be compared."""

    def __post_init__(self) -> None:
        least, most = BITS
        if not least <= self.bits <= most:
            raise UsageError(f"sketch: bits = {self.bits} is not between {least} and {most}")
        if self.registers.shape != (1 << self.bits,) or self.registers.dtype != np.dtype("u4"):
            raise UsageError(
                f"sketch: {self.registers.shape} registers of {self.registers.dtype}",
                hint=f"{self.bits} bits have {1 << self.bits} of uint32",
            )
        self.registers.flags.writeable = False

    @classmethod
    def of(cls, hashes: Array, bits: int, seed: str) -> Sketch:
        """The sketch that the kernel would keep of hashes (n,) u8."""
        registers = np.zeros(1 << bits, "u4")
        values = (hashes >> np.uint64(32)).astype("u4") | np.uint32(1)
        np.maximum.at(registers, hashes & np.uint64(len(registers) - 1), values)
        return cls(bits, registers, seed)

    @classmethod
    def of_cpus(cls, registers: Array, bits: int, seed: str) -> Sketch:
        """The sketch of all CPUs' registers (cpus, 2**bits) u4, copied."""
        return cls(bits, registers.max(axis=0), seed)

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> Sketch:
        """Read `bits`, `seed` and `registers` of a `to_dict` document; the rest follows from them.

        Raises UsageError if one is missing or wrong.
        """
        bits = _field(document, "bits", int)
        seed = _field(document, "seed", str)
        text = _field(document, "registers", str)
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise UsageError(f"sketch: registers are not base64: {error}") from None
        if len(data) % 4:
            raise UsageError(f"sketch: registers of {len(data)} bytes", hint="each has 4 bytes")
        registers = np.frombuffer(data, "<u4").astype("u4")
        if np.any((registers != 0) & (registers % 2 == 0)):
            raise UsageError("sketch: registers with even values", hint="little-endian, odd or 0")
        return cls(bits, registers, seed)

    def to_dict(self) -> dict[str, int | float | str]:
        """For JSON: `bits`, `seed`, `estimate`, `low`, `high` (95 %), and in base64 `registers`
        (little-endian u4) and `ranks` (u1)."""
        low, high = self.band()
        return {
            "bits": self.bits,
            "seed": self.seed,
            "estimate": self.estimate(),
            "low": low,
            "high": high,
            "registers": base64.b64encode(self.registers.astype("<u4").tobytes()).decode(),
            "ranks": base64.b64encode(self.ranks().tobytes()).decode(),
        }

    def merged(self, *others: Sketch) -> Sketch:
        """The sketch of all flows in any of these, exactly: a flow in several counts once."""
        for other in others:
            if other.bits != self.bits:
                raise UsageError(
                    f"sketches of {self.bits} and {other.bits} bits can't be merged",
                    hint="have all monitors use the same bits",
                )
            if other.seed != self.seed:
                raise UsageError(
                    f"sketches of seeds {self.seed} and {other.seed} can't be merged",
                    hint="have all monitors use the same seed",
                )
        registers = (sketch.registers for sketch in others)
        return Sketch(self.bits, functools.reduce(np.maximum, registers, self.registers), self.seed)

    def ranks(self) -> Array:
        """(2**bits,) u1: the registers of a classic HyperLogLog, for other tools.

        It chooses the register by the lowest bits of the hash. The rank is the position, 1 to 32,
        of the first 0 (in others: the first 1) among the hash's upper 31 bits. 0: empty.
        """
        zero = 32 - np.frexp(~self.registers >> np.uint32(1))[1]
        return np.where(self.registers, zero, 0).astype("u1")

    def estimate(self) -> float:
        """Unbiased estimate of the number of distinct flows, with a standard error of at most 1 /
        sqrt(2**bits - 2) of it."""
        return self._moments()[1]

    def flows(self) -> float:
        """The estimate, rounded to the used registers if hardly any two flows share one: so five
        flows are 5, and `flows > 5` does not hold. The rounding is a tenth of a flow at most."""
        used, estimate, _ = self._moments()
        return float(used) if estimate - used < _HARDLY else estimate

    def band(self, confidence: float = 0.95) -> tuple[float, float]:
        """Limits of the number of distinct flows at this confidence, around the estimate."""
        if not 0 < confidence < 1:
            raise UsageError(f"a confidence of {confidence:g} is not between 0 and 1")
        used, estimate, chance = self._moments()
        if not used:
            return 0.0, 0.0
        mean = used * (1 - chance) / chance
        spread = math.sqrt(mean / chance)
        least = math.floor(max(0.0, mean - _SPREADS * spread))
        # One more: with few flows a spread is less than one flow.
        most = math.ceil(mean + _SPREADS * (spread + 1))
        hidden = least + np.arange(0, most - least, max(1.0, (most - least) / _POINTS))
        # ln((hidden + used - 1)! / hidden! * (1 - chance)**hidden) by Stirling's series, written
        # without differences of large numbers.
        weight = (
            (hidden + 0.5) * np.log1p((used - 1) / (hidden + 1))
            + (used - 1) * np.log(hidden + used)
            + (1 / (hidden + used) - 1 / (hidden + 1)) / 12
            + hidden * math.log1p(-chance)
        )
        below = np.cumsum(np.exp(weight - weight.max()))
        tails = np.array([1 - confidence, 1 + confidence]) / 2 * below[-1]
        low, high = used + hidden[np.searchsorted(below, tails)]
        return min(float(low), estimate), max(float(high), estimate)

    def _moments(self) -> tuple[int, float, float]:
        """D, the estimate, and P corrected for cells."""
        used = int(np.count_nonzero(self.registers))
        if not used:
            return 0, 0.0, 1.0
        left = (_FULL << self.bits) - int(self.registers.sum(dtype="u8"))
        rate = used / left * _FULL
        excess = 1 + rate * math.exp(-rate) / math.expm1(-rate)
        share = (used - excess) / left
        chance = share / math.atanh(share) * left / (_FULL << self.bits)
        return used, max(float(used), (used - excess) / chance), chance


def _field(document: Mapping[str, object], name: str, kind: type[_T]) -> _T:
    """A field of the document. Raises UsageError if it is missing or of another type."""
    if name not in document:
        raise UsageError(f"sketch: no {name}")
    value = document[name]
    if not isinstance(value, kind):
        raise UsageError(f"sketch: {name} is {type(value).__name__}, not {kind.__name__}")
    return value
