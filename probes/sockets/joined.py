"""Join of flows and conversations with the sockets of their window."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.flow.grouping import REQUESTS, halves
from probes.flow.records import FlowDirection, hash_keys
from probes.sockets.records import OWNER, SOCKET

_WORDS = 5


def ends_of(rows: Array) -> Array:
    """Return the two ends of each row as words (n, 5) u8, in the order of SOCKET's fields.

    `rows` (n,) has the ends of FLOW, GROUP or SOCKET. Of a flow, the near end is the source if it
    leaves this host, otherwise the destination. The fifth word has ports, protocol and version.
    """
    if "near" in (rows.dtype.names or ()):
        near, far = halves(rows["near"]), halves(rows["far"])
        near_port, far_port = (rows[f"{end}_port"].astype("u8") for end in ("near", "far"))
    else:
        leaves = rows["direction"] == FlowDirection.EGRESS
        source, destination = halves(rows["source"]), halves(rows["destination"])
        near = np.where(leaves[:, None], source, destination)
        far = np.where(leaves[:, None], destination, source)
        first, last = (rows[f"{end}_port"].astype("u8") for end in ("source", "destination"))
        icmp = _is_icmp(rows["protocol"])
        forward = leaves | icmp
        near_port, far_port = np.where(forward, first, last), np.where(forward, last, first)
        # Types of ICMP answers (type * 256 + code) become those of their requests.
        for number, types in REQUESTS.items() if icmp.any() else ():
            for answer, request in types.items():
                answers = (rows["protocol"] == number) & (far_port == answer << 8)
                far_port[answers] = request << 8
    words = np.empty((len(rows), _WORDS), "u8")
    words[:, :2], words[:, 2:4] = near, far
    words[:, 4] = near_port | far_port << np.uint64(16)
    words[:, 4] |= rows["protocol"].astype("u8") << np.uint64(32)
    words[:, 4] |= rows["version"].astype("u8") << np.uint64(40)
    return words


def swapped(ends: Array) -> Array:
    """Return the same ends with the other one near; of ICMP, the ports stay."""
    words = ends.copy()
    words[:, :2], words[:, 2:4] = ends[:, 2:4], ends[:, :2]
    last = ends[:, 4]
    ports = (last & np.uint64(0xFFFF)) << np.uint64(16) | last >> np.uint64(16) & np.uint64(0xFFFF)
    turned = last & ~np.uint64(0xFFFFFFFF) | ports
    protocol = (last >> np.uint64(32) & np.uint64(0xFF)).astype("u1")
    words[:, 4] = np.where(_is_icmp(protocol), last, turned)
    return words


def sockets_of(rows: Array, sockets: Rows[SOCKET]) -> Array:
    """Return the index (n,) i8 in `sockets` (m,) of each row's socket; -1: none.

    `rows` (n,) has the ends of FLOW or GROUP, `sockets` is of dtype SOCKET. A flow that this host
    forwards to one of its namespaces finds the socket at its other end. A row without a socket was
    not asked for, see Reason.NOT_ASKED.
    """
    if not len(sockets) or not len(rows):
        return np.full(len(rows), -1, "i8")
    ends = ends_of(rows)
    hashes = hash_keys(ends_of(sockets))
    order = np.argsort(hashes)
    ordered = hashes[order]
    found = _places(hash_keys(ends), ordered, order)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        found[missing] = _places(hash_keys(swapped(ends[missing])), ordered, order)
    return found


def owners_of(sockets: Rows[SOCKET], owners: Rows[OWNER]) -> Array:
    """Return the index (n,) i8 in `owners` (m,) of each socket's owner; -1: none.

    `sockets` is of dtype SOCKET, `owners` of dtype OWNER of the same window.
    """
    if not len(owners):
        return np.full(len(sockets), -1, "i8")
    numbers = owners["number"]
    at = np.minimum(np.searchsorted(numbers, sockets["owner"]), len(owners) - 1)
    found: Array = np.where(numbers[at] == sockets["owner"], at, -1)
    return found


def _places(hashes: Array, ordered: Array, order: Array) -> Array:
    at = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    found: Array = np.where(ordered[at] == hashes, order[at], -1)
    return found


def _is_icmp(protocol: Array) -> Array:
    return (protocol == 1) | (protocol == 58)
