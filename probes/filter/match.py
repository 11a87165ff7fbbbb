"""Masked flow keys, as match+action tables have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KEY_SIZE = 40
"""Bytes of a `struct flow_key` (bpf/include/packet.h)."""
ADDRESSES = {"source": 0, "destination": 16}
PORTS = {"source": 32, "destination": 34}
PROTOCOL, VERSION = 36, 37
"""Offsets in a `struct flow_key`."""


@dataclass(frozen=True, slots=True)
class Match:
    """Flow keys that equal `value` in the bits of `mask`; both are KEY_SIZE bytes."""

    mask: bytes
    value: bytes

    @classmethod
    def at(cls, offset: int, mask: bytes, value: bytes) -> Match:
        """A match of one part of the key."""
        return cls(_placed(offset, mask), _placed(offset, value))

    def __and__(self, other: Match) -> Match | None:
        """Keys that match both; None if no key can."""
        mine, theirs = (int.from_bytes(match.mask, "big") for match in (self, other))
        value, other_value = (int.from_bytes(match.value, "big") for match in (self, other))
        if (value ^ other_value) & mine & theirs:
            return None
        joined = (mine | theirs, value | other_value)
        return Match(*(number.to_bytes(KEY_SIZE, "big") for number in joined))


EVERYTHING = Match(bytes(KEY_SIZE), bytes(KEY_SIZE))


def between(offset: int, low: int, high: int) -> Iterator[Match]:
    """The fewest matches of a two-byte number from `low` to `high`: prefixes, as of addresses."""
    while low <= high:
        size = low & -low or 1 << 16
        while low + size - 1 > high:
            size >>= 1
        yield Match.at(offset, (0x10000 - size).to_bytes(2, "big"), low.to_bytes(2, "big"))
        low += size


def _placed(offset: int, part: bytes) -> bytes:
    return (bytes(offset) + part).ljust(KEY_SIZE, b"\0")
