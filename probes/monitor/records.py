"""What the monitor gives: the metrics of each window, its policies' standing, and transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

METRIC = np.dtype(
    [
        ("packets", "u8"),
        ("bytes", "u8"),
        ("tcp_packets", "u8"),
        ("tcp_bytes", "u8"),
        ("udp_packets", "u8"),
        ("udp_bytes", "u8"),
        ("icmp_packets", "u8"),
        ("icmp_bytes", "u8"),
        ("flows", "f8"),
        ("flows_low", "f8"),
        ("flows_high", "f8"),
    ]
)
"""One window, one row (S2.6, S2.7). `packets` and `bytes` are of all frames, those that are not IP
too; ICMP is that of both IP versions. `flows` is the estimated number of distinct 5-tuples,
`flows_low` and `flows_high` the limits between which it lies with 95 % confidence."""

POLICY = np.dtype(
    [
        ("policy", "S64"),
        ("state", "u1"),
        ("holds", "u1"),
        ("certain", "u1"),
        ("_", "V5"),
        ("since_ns", "i8"),
        ("value", "f8"),
        ("low", "f8"),
        ("high", "f8"),
        ("threshold", "f8"),
        ("selected", "u8"),
    ]
)
"""How a policy stands after a window, a row a policy. `since_ns` is since when it is in its state
(CLOCK_MONOTONIC); `holds` whether the condition that is looked at (in ACTIVE the one to deactivate,
where there is one) holds, `certain` whether it would at both ends of the error band too; `value`,
`low`, `high` and `threshold` are the two sides of the comparison that decides, NaN where there is
none; `selected` counts the packets of this window that its selection gave to its applications."""

TRANSITION = np.dtype(
    [
        ("policy", "S64"),
        ("before", "u1"),
        ("after", "u1"),
        ("_", "V6"),
        ("at_ns", "i8"),
        ("cause", "S256"),
        ("metrics", METRIC),
    ]
)
"""One transition of a policy, when it was made (CLOCK_MONOTONIC), why, in words with the values
that caused it, and the metrics of the window that did (zero where an operator did)."""
