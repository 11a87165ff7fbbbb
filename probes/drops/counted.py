"""Rows of the probe of drops: sums by reason, and the drops of a flow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bpf.arrays import Array
from probes.snapshot import Snapshot

PROBE = DROPS_TABLE = "drops"
"""Name of the probe, and of its table by flow and reason."""
REASONS_TABLE = "drop_reasons"
"""Table of all drops by reason, complete also if the other is full."""
_MAPPED = np.frombuffer(bytes(10) + b"\xff\xff", "u1")


class Dropped(NamedTuple):
    """Packets that the kernel dropped for one reason."""

    reason: str
    """The kernel's name, such as `no_socket`."""
    packets: int
    bytes: int


def by_reason(item: Snapshot) -> tuple[Dropped, ...]:
    """Return the sums of a window, the largest first; empty for any other table."""
    if (item.probe, item.metric) != (PROBE, REASONS_TABLE):
        return ()
    return _sums(item, "key", item.rows["key"], np.ones(len(item.rows), bool))


def of_flow(item: Snapshot, near: bytes, far: bytes, ports: tuple[int, int]) -> tuple[Dropped, ...]:
    """Return the drops of a flow in both directions, the largest first; empty for another table.

    Packets of path tracing are left out: their end at a router is no loss of the flow.
    `near` and `far` are addresses of 4 or 16 bytes; `ports` are of `near`, then of `far`.
    """
    if (item.probe, item.metric) != (PROBE, DROPS_TABLE) or not len(item.rows):
        return ()
    key = item.rows["key"]
    one, other = (_packed(address) for address in (near, far))
    sources, destinations = (_addresses(key[name]) for name in ("source", "destination"))
    wanted = np.zeros(len(key), bool)
    for (source, port), (destination, to) in (
        ((one, ports[0]), (other, ports[1])),
        ((other, ports[1]), (one, ports[0])),
    ):
        wanted |= (
            (sources == source)
            & (destinations == destination)
            & (key["source_port"].byteswap() == port)
            & (key["destination_port"].byteswap() == to)
        )
    return _sums(item, "key.reason", key["reason"], wanted & (key["tracing"] == 0))


def _addresses(words: Array) -> Array:
    """Return addresses (n, 4) of 32-bit words as (n,) of 16 opaque bytes."""
    return np.ascontiguousarray(words).view("V16").reshape(-1)


def _packed(address: bytes) -> np.void:
    whole = address if len(address) == 16 else _MAPPED.tobytes() + address
    packed: np.void = np.frombuffer(whole, "V16")[0]
    return packed


def _sums(item: Snapshot, path: str, reasons: Array, wanted: Array) -> tuple[Dropped, ...]:
    names = item.schema.names.get(path, {}) if item.schema else {}
    values = item.rows["value"]
    found = []
    for reason in np.unique(reasons[wanted]).tolist():
        of_it = wanted & (reasons == reason)
        packets, size = (int(values[unit][of_it].sum()) for unit in ("packets", "bytes"))
        found.append(Dropped(names.get(reason, str(reason)), packets, size))
    return tuple(sorted(found, key=lambda each: -each.packets))


def summed(drops: Iterable[Dropped]) -> tuple[Dropped, ...]:
    """Return the sums of several windows by reason, the largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for dropped in drops:
        packets, size = sums.get(dropped.reason, (0, 0))
        sums[dropped.reason] = packets + dropped.packets, size + dropped.bytes
    found = (Dropped(reason, *both) for reason, both in sums.items())
    return tuple(sorted(found, key=lambda each: -each.packets))
