"""The mark in the payload of requests and datagrams of path tracing: `struct mark` of mark.h."""

from __future__ import annotations

import struct

PROBE_MAGIC = 0x70646B31
"""The first word; public, so that other tracers recognise the packet."""
MARK_SIZE = 8


def request_mark(sequence: int, key: int) -> bytes:
    """Return the mark of a packet that user space sends: its tag is the complement of a probe's.

    `key` is the secret of the process, KEY of mark.h.
    """
    tag = ~((sequence + 1) * key >> 48)
    return struct.pack(">IHH", PROBE_MAGIC, sequence, tag & 0xFFFF)
