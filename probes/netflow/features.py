"""What NetFlow v9 calls the features of a flow, and the methods of choosing among them."""

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
"""In the paper's order, which numbers them from 1 (S1.30)."""
ADDRESSES = frozenset({"IPV4_SRC_ADDR", "IPV4_DST_ADDR"})
KEYS = ADDRESSES | {"PROTOCOL", "SRC_TOS", "L4_SRC_PORT", "L4_DST_PORT"}
"""Features that tell flows apart; all others are of a flow."""
IP_FEATURES = KEYS | {"SRC_AS", "DST_AS", "TCP_FLAGS"}
"""Features for which a packet is parsed, and which only IPv4 packets have."""


class Method(StrEnum):
    """How features are chosen (S1.31)."""

    FULLY_ADAPTIVE = "fully-adaptive"
    """The program has the chosen ones and nothing else; to choose others is to swap the program."""
    ADAPTIVE = "adaptive"
    """The program has all, and asks a map, packet by packet, which of them are on."""
    NON_ADAPTIVE = "non-adaptive"
    """The program has all, always."""
