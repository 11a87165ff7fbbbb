"""The questions of a window: whose is each pair of ends that its flows have?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from bpf.sockets.diag import TCP, TUPLE
from probes.flow.grouping import REQUESTS
from probes.flow.records import FLOW, FlowDirection, hash_keys
from probes.sockets.limits import SYN
from probes.sockets.records import ends_of


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Different ends of a window's flows, (m,): those with most bytes first."""

    ends: Array
    """Words (m, 5) u8 of `ends_of`."""
    flows: Rows[FLOW]
    packets: Array
    bytes: Array
    packets_out: Array
    """Of those, packets that left."""
    flags_in: Array
    """Incoming TCP flags (m,) u1; `flags` has both directions."""
    flags: Array
    asks: Array
    """Whether ICMP requests left (m,), so that a process of this host asks."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def protocol(self) -> NDArray[np.uint8]:
        return protocol_of(self.ends)

    @property
    def only_syn(self) -> NDArray[np.bool_]:
        """Whether only SYN came in, as of a scan or a flood, (m,)."""
        found: NDArray[np.bool_] = (self.protocol == TCP) & (self.flags_in == SYN)
        return found


def questions_of(rows: Rows[FLOW]) -> Questions:
    """Return the questions of flows (n,) of dtype FLOW."""
    ends = ends_of(rows)
    hashes = hash_keys(ends)
    order = np.argsort(hashes)
    ordered = hashes[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(begins)
    rows = rows[order]
    leaves = rows["direction"] == FlowDirection.EGRESS
    flags = rows["tcp_flags"]

    def total(values: Array) -> Array:
        return np.add.reduceat(values, starts) if len(starts) else values

    def union(values: Array) -> Array:
        return np.bitwise_or.reduceat(values, starts) if len(starts) else values

    size = total(rows["bytes"])
    largest = np.argsort(-size.astype("i8"), kind="stable")
    return Questions(
        ends[order[starts]][largest],
        np.diff(starts, append=len(rows))[largest],
        total(rows["packets"])[largest],
        size[largest],
        total(rows["packets"] * leaves)[largest],
        union(np.where(leaves, 0, flags).astype("u1"))[largest],
        union(flags)[largest],
        union(leaves & _is_request(rows))[largest],
    )


def _is_request(rows: Rows[FLOW]) -> NDArray[np.bool_]:
    protocol, kind = rows["protocol"], rows["destination_port"] >> 8
    found = np.zeros(len(rows), bool)
    for number, types in REQUESTS.items():
        found |= (protocol == number) & np.isin(kind, tuple(types.values()))
    return found


def tuples_of(ends: Array) -> Rows[TUPLE]:
    """Return TUPLE (n,) of ends (n, 5)."""
    tuples = np.zeros(len(ends), TUPLE)
    raw = np.ascontiguousarray(ends[:, :4]).view("u1").reshape(len(ends), 32)
    tuples["near"], tuples["far"] = raw[:, :16], raw[:, 16:]
    last = ends[:, 4]
    tuples["near_port"], tuples["far_port"] = last & np.uint64(0xFFFF), far_port_of(ends)
    tuples["protocol"], tuples["version"] = protocol_of(ends), version_of(ends)
    return tuples


def near_port_of(ends: Array) -> NDArray[np.uint16]:
    return _field(ends, 0, 0xFFFF).astype("u2")


def far_port_of(ends: Array) -> NDArray[np.uint16]:
    return _field(ends, 16, 0xFFFF).astype("u2")


def protocol_of(ends: Array) -> NDArray[np.uint8]:
    return _field(ends, 32, 0xFF).astype("u1")


def version_of(ends: Array) -> NDArray[np.uint8]:
    return _field(ends, 40, 0xFF).astype("u1")


def _field(ends: Array, shift: int, mask: int) -> NDArray[np.uint64]:
    found: NDArray[np.uint64] = ends[:, 4] >> np.uint64(shift) & np.uint64(mask)
    return found
