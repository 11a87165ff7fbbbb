"""Tables of the segment probe: digests, sums, and the host's clocks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bpf.arrays import Rows
from probes.tables.conversion import TableKind, TableSchema

DIGESTS_TABLE = "digests"
"""Chosen packets of a direction, in the order in which the hook saw them."""
SEEN_TABLE = "segment_seen"
"""All packets of a direction that pass the filter."""
CLOCK_TABLE = "segment_clock"
"""The host's clocks at the end of the window."""
DIGEST = np.dtype([
    ("key", "<u4"),
    ("value", [("digest", "<u8"), ("time", "<u8"), ("bytes", "<u4"), ("flow", "<u4")]),
])  # fmt: skip
"""A chosen packet. `time`: ns of CLOCK_MONOTONIC at the hook. `bytes`: of the IP packet. `flow`: a
keyed hash of the 5-tuple. Packets of one large segment follow each other in their order."""
CLOCK = np.dtype([
    ("key", "<u4"),
    ("value", [("monotonic", "<u8"), ("utc", "<u8"), ("error", "<u8"), ("boot", "u1", (16,))]),
])  # fmt: skip
"""CLOCK_MONOTONIC and UTC of one moment, ns; the error of this reading, ns; the boot's id. Hosts
with the same id have the same CLOCK_MONOTONIC."""
CLOCK_SCHEMA = TableSchema(TableKind.ARRAY, "the host's clocks at the end of the window")
_READINGS = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_clock() -> Rows[CLOCK]:
    """Return the host's clocks now, dtype CLOCK, shape (1,)."""
    readings = []
    for _ in range(_READINGS):
        before, utc, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, before, utc))
    spent, before, utc = min(readings)
    row = np.zeros(1, CLOCK)
    boot = bytes.fromhex(_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))
    row["value"] = (before + spent // 2, utc, spent - spent // 2, tuple(boot))
    return row
