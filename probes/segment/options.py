"""Choice of packets that two hosts agree on, and the segment probe as front ends see it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from bpf.errors import UsageError
from probes.flow.filter import FlowFilter

PROBE = "segment"
"""Name of the probe."""
MOST_RATIO = 65536
"""Largest denominator of the ratio."""
LONGEST_KEY = 256
"""Characters."""
_FACTORS = 12


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Packets whose digests a host records. Both hosts have the same key, ratio and filter."""

    key: str
    """Key of the hash, a text that only the operators know: nobody else can tell chosen packets."""
    ratio: int = 1
    """One of so many packets is chosen, 1 to 65536."""
    capture: FlowFilter = field(default_factory=FlowFilter)
    """Packets to choose from. All of them pass both hosts."""
    interval: float = 1.0
    """Seconds of a window; 0: only exports end windows."""

    def check(self) -> None:
        """Raise UsageError if an option is out of range, TextError if the kernel can't filter."""
        if not 0 < len(self.key) <= LONGEST_KEY:
            raise UsageError(f"the key must have 1 to {LONGEST_KEY} characters")
        if not 1 <= self.ratio <= MOST_RATIO:
            raise UsageError(f"a ratio of 1/{self.ratio} is not between 1/1 and 1/{MOST_RATIO}")
        if self.interval and not 0.01 <= self.interval <= 300:
            raise UsageError(f"an interval of {self.interval:g} s is not between 0.01 and 300")
        self.capture.to_c()

    @property
    def key_id(self) -> str:
        """An id of the key that does not reveal it."""
        lines = (f"#define {name} {factor:#x}ULL\n" for name, factor in self._factors.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]

    @property
    def limit(self) -> int:
        """Largest upper half of the digest of a chosen packet."""
        return (1 << 32) // self.ratio - 1

    @property
    def macros(self) -> dict[str, int]:
        """Macros of segment.c: the factors of the hash, and the limit."""
        return {**self._factors, "LIMIT": self.limit}

    @property
    def _factors(self) -> dict[str, int]:
        digest = hashlib.shake_256(f"probedeck segment {self.key}".encode()).digest(8 * _FACTORS)
        words = (digest[n : n + 8] for n in range(0, len(digest), 8))
        return {f"HASH_{n}": int.from_bytes(word, "little") | 1 for n, word in enumerate(words)}


LONGEST_LEASE = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """The segment probe of a host, and the host's clocks now."""

    running: bool
    key_id: str
    """Id of the key, which does not reveal the key. Without a probe, this and the next fields are
    empty."""
    ratio: int
    filter: str
    interval: float
    interface: str
    boot: str
    """Id of the host's boot: hosts with the same one have the same clock."""
    monotonic_ns: int
    utc_ns: int
