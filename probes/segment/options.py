"""Choice of packets that two hosts agree on, and the segment probe as front ends see it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bpf.errors import UsageError
from probes.config.options import setting

if TYPE_CHECKING:
    from probes.flow.filter import FlowFilter

SEGMENT = "Options"
"""Heading of the options in the help."""

PROBE = "segment"
"""Name of the probe."""
MOST_RATIO = 65536
"""Largest denominator of the ratio."""
LONGEST_KEY = 256
"""Characters."""
_FACTORS = 12


def ratio_of(text: str | int) -> int:
    """Return 64 for `1/64` or `64`. Raises UsageError."""
    one, slash, many = str(text).strip().rpartition("/")
    if many.isdecimal() and len(many) <= 6 and one.strip() in (("1",) if slash else ("",)):
        return int(many)
    raise UsageError(f"{text!r} is no ratio", hint="1/64 chooses one of 64 packets, 1/1 all")


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Packets whose digests a host records. Both hosts have the same key, ratio and filter."""

    key: str = setting(SEGMENT, "", "Key of the choice.", "TEXT", usual="random")
    """A text that only the operators know: nobody else can tell chosen packets."""
    ratio: int = setting(
        SEGMENT, 1, f"Choose one of N packets, up to 1/{MOST_RATIO}.", "1/N", usual="1/1",
        read=ratio_of,
    )  # fmt: skip
    capture: str = ""
    """Filter of the packets to choose from. All of them pass both hosts."""
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
        self.filter.to_c()

    @property
    def filter(self) -> FlowFilter:
        """The packets to choose from. Raises TextError."""
        # Imported here: the command line starts without numpy.
        from probes.flow.filter import FlowFilter

        return FlowFilter.parse(self.capture)

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


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Options of the comparison of two hosts."""

    seconds: float = setting(
        SEGMENT, 10.0, "Measure so long; Ctrl-C or SIGTERM ends it earlier.", "SECONDS",
        flags=("--for",),
    )  # fmt: skip
    horizon: float = setting(SEGMENT, 1.0, "A packet that takes longer is lost.", "SECONDS")

    def check(self) -> None:
        """Raise UsageError if an option is out of range."""
        if not 0 < self.seconds < math.inf or not 0.01 <= self.horizon <= 60:
            raise UsageError("--for must be more than 0, and --horizon 0.01 to 60 seconds")


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
