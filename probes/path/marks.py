"""The mark in the payload of the tracer's own packets, also for other tracers to recognise."""

from __future__ import annotations

import struct

PROBE_MAGIC = 0x9B0BDEC5
"""First word of the payload of UDP and ICMP echo probes; public, and the same in every session."""
MARK_SIZE = 8


def mark(sequence: int, tag: int) -> bytes:
    """Return the first bytes of a probe's payload: magic, sequence number and tag, 16 bits each."""
    return struct.pack(">IHH", PROBE_MAGIC, sequence & 0xFFFF, tag & 0xFFFF)
