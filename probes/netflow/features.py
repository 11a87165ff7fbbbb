"""Names of the flow features of NetFlow v9, and the methods of their selection."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args

Feature = Literal[
    "INPUT_SNMP",
    "OUTPUT_SNMP",
    "SRC_AS",
    "DST_AS",
    "IN_PKTS",
    "IN_BYTES",
    "IPV4_SRC_ADDR",
    "IPV4_DST_ADDR",
    "PROTOCOL",
    "SRC_TOS",
    "L4_SRC_PORT",
    "L4_DST_PORT",
    "TCP_FLAGS",
    "FIRST_SWITCHED",
    "LAST_SWITCHED",
]
FEATURES: tuple[Feature, ...] = get_args(Feature)
"""In the order of the paper, which numbers them from 1 (S1.30)."""
ADDRESSES = frozenset({"IPV4_SRC_ADDR", "IPV4_DST_ADDR"})
KEYS = ADDRESSES | {"PROTOCOL", "SRC_TOS", "L4_SRC_PORT", "L4_DST_PORT"}
"""Features that identify a flow; all others describe it."""
IP_FEATURES = KEYS | {"SRC_AS", "DST_AS", "TCP_FLAGS"}
"""Features that need a parsed packet, and exist for IPv4 only."""


class Method(StrEnum):
    """Methods of selection (S1.31)."""

    FULLY_ADAPTIVE = "fully-adaptive"
    """The program has only the chosen features; another choice replaces the program."""
    ADAPTIVE = "adaptive"
    """The program has all features; for each packet a map tells which are on."""
    NON_ADAPTIVE = "non-adaptive"
    """The program has all features, always on."""
