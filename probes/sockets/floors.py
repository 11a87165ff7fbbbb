"""The least round-trip time to each destination: the path without queues."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.path.analysis.flows import address_ids
from probes.path.records import DESTINATION_HOP, HOP

_AGE_S = 300.0
"""The kernel's own minimum is of the last five minutes, too: paths change."""
_MOST = 1 << 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Floors:
    """The least round-trip times that sockets and path probes saw in the last five to ten minutes.

    A connection that was opened while a queue stood never sees the empty path itself.
    """

    def __init__(self) -> None:
        self._now, self._before = _nothing(), _nothing()
        self._since = 0.0

    def note(self, far: Array, rtt_us: Array, at_s: float, netns: Array | int = 0) -> None:
        """Take in round-trip times (n,), us, to addresses (n, 16) u1; a time of 0 is unknown.

        `netns` is the inode of the network namespace that sees the addresses: (n,) or one for all.
        `at_s` is in seconds of CLOCK_MONOTONIC.
        """
        if at_s - self._since > _AGE_S or len(self._now[0]) > _MOST:
            self._now, self._before, self._since = _nothing(), self._now, at_s
        known = rtt_us > 0
        keys = np.concatenate((self._now[0], _keys(far, netns)[known]))
        times = np.concatenate((self._now[1], rtt_us[known].astype("u4")))
        if not len(keys):
            return
        order = np.argsort(keys)
        keys, times = keys[order], times[order]
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        self._now = keys[starts], np.minimum.reduceat(times, starts)

    def note_hops(self, hops: Rows[HOP], at_s: float, netns: int = 0) -> None:
        """Take in path probes (n,) of dtype HOP: those that the destination itself answered."""
        own = hops["hop"] == DESTINATION_HOP
        arrived = own | (hops["responder"] == hops["destination"]).all(axis=1)
        rows = hops[arrived & (hops["received_ns"] > 0)]
        times = (rows["received_ns"] - rows["sent_ns"]) // 1000
        self.note(rows["destination"], np.maximum(times, 1), at_s, netns)

    def of(self, far: Array, netns: Array | int = 0) -> Array:
        """Return the least times (n,) u4, us, to addresses (n, 16); 0 if unknown."""
        wanted = _keys(far, netns)
        found = np.full(len(wanted), 0xFFFFFFFF, "u4")
        for keys, times in (self._now, self._before):
            if len(keys):
                at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
                found = np.where(keys[at] == wanted, np.minimum(found, times[at]), found)
        found[found == 0xFFFFFFFF] = 0
        return found


def _nothing() -> tuple[Array, Array]:
    """Keys (n,) u8, ascending, and times (n,) u4, us."""
    return np.empty(0, "u8"), np.empty(0, "u4")


def _keys(far: Array, netns: Array | int) -> Array:
    words = np.ascontiguousarray(far).view("u8").reshape(len(far), 2)
    return address_ids(words) ^ (np.asarray(netns, "u8") * _FACTOR)
