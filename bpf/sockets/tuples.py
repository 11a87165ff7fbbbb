"""Five-tuples of sockets, as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpf.maps.layout import Array

TUPLE = np.dtype([
    ("near", "u1", (16,)), ("far", "u1", (16,)), ("near_port", ">u2"), ("far_port", ">u2"),
    ("protocol", "u1"), ("version", "u1"),
])  # fmt: skip
"""The two ends of a socket or a flow. `near` is the end on this host. Addresses are in network
order, IPv4 in the first four bytes and zeros behind; `version` is 4 or 6. An unconnected socket has
zeros as its far end."""

TCP, UDP = 6, 17
"""IP protocol numbers."""

_MAPPED_PREFIX = int.from_bytes(b"\0\0\xff\xff", "little")
"""Third 32-bit word of ::ffff:0:0/96, as this machine reads it."""


def address_words(addresses: Array) -> NDArray[np.uint32]:
    """Addresses (n, 16) u1 as 32-bit words (n, 4): the same memory."""
    return addresses.view("<u4")


def unmap(tuples: Array) -> None:
    """Turn IPv4-mapped IPv6 tuples into IPv4, in place: a dual-stack socket carries IPv4 packets.

    An end without an address (`::`) goes with an end that is mapped.
    """
    near, far = address_words(tuples["near"]), address_words(tuples["far"])
    mapped = tuples["version"] == 6
    if not mapped.any():
        return
    ends = [(_is_mapped(words), ~words.any(axis=1)) for words in (near, far)]
    (near_mapped, near_empty), (far_mapped, far_empty) = ends
    mapped &= (near_mapped & (far_mapped | far_empty)) | (near_empty & far_mapped)
    for words in (near, far):
        words[mapped, 0] = words[mapped, 3]
        words[mapped, 1:] = 0
    tuples["version"][mapped] = 4


def _is_mapped(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (
        (words[:, 0] == 0) & (words[:, 1] == 0) & (words[:, 2] == _MAPPED_PREFIX)
    )
    return found
