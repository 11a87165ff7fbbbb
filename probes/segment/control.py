"""The segment probe as front ends see it. The module loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from probes.segment.options import SegmentOptions

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


class SegmentControl(Protocol):
    """Starts the segment probe of a controller. Any thread may call a method."""

    def measure(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        """Begin to record digests on the watched interface; `remove` ends that.

        With a lease, the probe ends `lease` seconds after the last call. A repeated call
        with the same options renews the lease, and changes nothing else. A lease of 0 has no end.
        Raises UsageError if the probe runs with other options, if no interface is watched, or if
        `lease` is not 0 to LONGEST_LEASE.
        """

    def status(self) -> SegmentStatus:
        """Return the state of the probe, and the clocks."""
