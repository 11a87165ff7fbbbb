"""Incoming packets of some sockets, as sets of ports and addresses for the kernel's classifier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import IPPROTO_TCP, IPPROTO_UDP

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter.conjunction import (
    SIZES,
    WIDTHS,
    Conjunction,
    Dimension,
    NumberSet,
    Prefix,
    PrefixSet,
    Set,
)
from probes.flow.grouping import halves
from probes.flow.records import hash_keys
from probes.sockets.records import SOCKET, By

MAX_ADDRESSES = 1024
"""Other ends of an owner's connections. If there are more, its own ports alone select them."""
REMEMBER_NS = 300_000_000_000
"""Time for which a service without packets is remembered."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENS = 10
"""TCP's state of a listener."""


class OwnSockets:
    """Sockets of one owner, window by window. Ports of its services are remembered."""

    def __init__(self) -> None:
        self._services = np.empty(0, SOCKET)
        self._seen_ns = np.empty(0, "i8")

    def conjunctions(self, own: Array, others: Array, end_ns: int) -> tuple[Conjunction, ...]:
        """Return the owner's incoming packets: two conjunctions a protocol.

        One has the ports of services, from any sender, so new connections are selected at once. The
        other has the tuples of connections, and each part is a set: nearly no packet of another
        process has all parts. `own` (n,) and `others` (m,) are the window's sockets, dtype SOCKET,
        of this owner and of other ones; others take over the ports of services.
        """
        serves = _serves(own)
        self._remember(own[serves], others, end_ns)
        return tuple(_conjunctions(self._services, own[~serves]))

    def _remember(self, services: Array, others: Array, end_ns: int) -> None:
        now = _near_keys(services)
        keys = np.concatenate([now, _near_keys(self._services)])
        rows = np.concatenate([services, self._services])
        seen_ns = np.concatenate([np.full(len(services), end_ns, "i8"), self._seen_ns])
        taken = np.isin(keys, _near_keys(others)) & ~np.isin(keys, now)
        kept = np.flatnonzero(~taken & (seen_ns > end_ns - REMEMBER_NS))
        # Of equal keys the first one, which is the newest.
        first = kept[np.unique(keys[kept], return_index=True)[1]]
        self._services, self._seen_ns = rows[first], seen_ns[first]


def _serves(sockets: Rows[SOCKET]) -> Array:
    """Return which sockets (n,) are on a port of a service: bool (n,)."""
    first, last = map(int, _EPHEMERAL.read_text(encoding="ascii").split())
    ports = sockets["near_port"].astype("u4")
    serves = (sockets["by"] == By.LISTENER) | (sockets["state"] == _LISTENS)
    serves |= (ports < first) | (ports > last)
    keys = _near_keys(sockets)
    return np.isin(keys, keys[serves])


def _near_keys(sockets: Rows[SOCKET]) -> Array:
    """Return hashes of the near ends (n,) u8."""
    words = np.empty((len(sockets), 3), "u8")
    words[:, :2] = halves(sockets["near"])
    words[:, 2] = sockets["near_port"].astype("u8") << np.uint64(16)
    words[:, 2] |= sockets["protocol"].astype("u8") << np.uint64(8)
    words[:, 2] |= sockets["version"]
    found: Array = hash_keys(words)
    return found


def _conjunctions(services: Rows[SOCKET], connections: Rows[SOCKET]) -> Iterator[Conjunction]:
    for protocol in (IPPROTO_TCP, IPPROTO_UDP):
        if len(rows := services[services["protocol"] == protocol]):
            yield _conjunction(protocol, rows)
        if len(rows := connections[connections["protocol"] == protocol]):
            more: dict[Dimension, Set] = {Dimension.SOURCE_PORT: _numbers(rows["far_port"])}
            others = _addresses(rows, "far")
            if len(others.steps) <= MAX_ADDRESSES:
                more[Dimension.SOURCE] = others
            yield _conjunction(protocol, rows, more)


def _conjunction(
    protocol: int, rows: Rows[SOCKET], more: dict[Dimension, Set] | None = None
) -> Conjunction:
    return Conjunction.of({
        Dimension.PROTOCOL: NumberSet(SIZES[Dimension.PROTOCOL], 1 << protocol),
        Dimension.DESTINATION_PORT: _numbers(rows["near_port"]),
        Dimension.DESTINATION: _addresses(rows, "near"),
        **(more or {}),
    })  # fmt: skip


def _numbers(ports: Array) -> NumberSet:
    among = np.zeros(1 << 16, bool)
    among[ports.astype("u4")] = True
    packed = np.packbits(among, bitorder="little").tobytes()
    return NumberSet(1 << 16, int.from_bytes(packed, "little"))


def _addresses(rows: Rows[SOCKET], end: str) -> PrefixSet:
    prefixes: list[Prefix] = []
    for version, width in WIDTHS.items():
        raw = rows[end][rows["version"] == version]
        prefixes += (
            (version, int.from_bytes(one.tobytes()[: width // 8], "big"), width)
            for one in np.unique(raw, axis=0)
        )
    return PrefixSet(tuple((prefix, 1) for prefix in sorted(prefixes)))
