"""Addresses and protocols: their names, addresses as text, and tests of each address once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import numpy as np

from bpf.arrays import Array, halves
from probes.filter.table import AddressNames

PROTOCOLS = {
    "icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "ah": 51,
    "icmp6": 58, "ospf": 89, "sctp": 132, "udplite": 136,
}  # fmt: skip
"""Protocol numbers (IANA) by name."""
TCP_FLAGS = "FSRPAUEW"
"""Letters of the TCP flags, from the lowest bit."""
_NAMES = {number: name for name, number in PROTOCOLS.items()}


def protocol_name(number: int) -> str:
    """The protocol's name in lower case, or its number."""
    return _NAMES.get(number, str(number))


def address_text(raw: bytes, version: int) -> str:
    if version == 4:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    return socket.inet_ntop(socket.AF_INET6, raw)


_KNOWN = 1 << 17
_ASKED = 1000
"""Limit of name look-ups for one table: a flood of addresses must not flood name servers."""
_FACTORS = np.frombuffer(os.urandom(24), "u8") | np.uint64(1)
"""Secret, so that nobody outside can make two addresses collide."""


def address_keys(addresses: Array, versions: Array) -> Array:
    """Return a hash (n,) u8 of each of the addresses (n, 16) u1 with its IP version."""
    words = halves(addresses)
    keys: Array = words[:, 0] * _FACTORS[0] + words[:, 1] * _FACTORS[1] + versions * _FACTORS[2]
    return keys


class Hosts:
    """Results by address; they are renewed when the known names change."""

    def __init__(self, passes: Callable[[str], bool]) -> None:
        self._passes = passes
        self._version: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._keys = np.empty(0, "u8")
        self._passed = np.empty(0, bool)

    def mask(self, addresses: Array, versions: Array, names: AddressNames | None) -> Array:
        """Which addresses (n, 16) u1 in network order pass: bool (n,)."""
        version = names.version if names is not None else None
        if version != self._version or len(self._keys) > _KNOWN:
            self._version = version
            self._forget()
        keys = address_keys(addresses, versions)
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        known = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), bool)
        if not known.all():
            new = np.flatnonzero(~known)
            fresh, first = np.unique(keys[new], return_index=True)
            passed = [
                self._judge(
                    address_text(addresses[place].tobytes(), int(versions[place])),
                    names if number < _ASKED else None,
                )
                for number, place in enumerate(new[first].tolist())
            ]
            together = np.concatenate((self._keys, fresh))
            order = np.argsort(together)
            self._keys = together[order]
            self._passed = np.concatenate((self._passed, passed))[order]
            at = np.searchsorted(self._keys, keys)
        found: Array = self._passed[at]
        return found

    def _judge(self, text: str, names: AddressNames | None) -> bool:
        return self._passes(text) or bool(
            names is not None and (name := names.name(text)) and self._passes(name)
        )
