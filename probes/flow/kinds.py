"""Tables and groups of flows, and the prefixes of networks. The module loads no numpy."""

from __future__ import annotations

from bpf.errors import UsageError

REPEATED = "repeated"
"""Table of packets that another interface counts, at their later interfaces."""
INTERFACES = "interfaces"
"""Table of totals by interface."""
KINDS = ("conversations", "hosts", "services", "networks")
PREFIXES = (24, 64)
"""Lengths of networks' prefixes, of IPv4 and IPv6."""


def parse_prefixes(text: str) -> tuple[int, int]:
    """Parse `24,64`, lengths for IPv4 and IPv6, or `24` for IPv4 alone. Raises UsageError."""
    words = [word.strip().removeprefix("/") for word in text.split(",")]
    numbers = [int(word) for word in words if word.isdecimal() and len(word) <= 3]
    if len(numbers) == len(words) == 1:
        numbers.append(PREFIXES[1])
    if len(numbers) != 2 or len(words) > 2 or numbers[0] > 32 or numbers[1] > 128:
        raise UsageError(
            f"{text!r} is not the length of a prefix",
            hint="24,64 means networks of 24 bits with IPv4 and of 64 bits with IPv6",
        )
    return numbers[0], numbers[1]
