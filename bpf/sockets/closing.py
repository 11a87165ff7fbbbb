"""Sockets as they close, with their final numbers: the multicast groups of sock_diag(7).

A worker of the kernel sends a message within some milliseconds after the last close(), and the
application does not wait. The message has tuple, cookie and final tcp_info, but neither inode, user
nor cgroup. For the side of TCP that closes first, the message comes when TIME_WAIT takes over.
Kernel 4.3, net/core/sock_diag.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpf.sockets.diag import INFO, NETLINK_SOCK_DIAG, decode, is_whole
from bpf.sockets.netlink import Netlink
from bpf.sockets.tuples import TUPLE

_GROUPS = (1, 2, 3, 4)
"""SKNLGRP_INET_TCP_DESTROY, _INET_UDP_, _INET6_TCP_ and _INET6_UDP_DESTROY."""
_BUFFER = 32 << 20
"""Bytes; the kernel doubles it. A message takes 1.3 kB there: some 50,000 sockets a window."""


class ClosingSockets:
    """Closed sockets of the network namespace in which the calling thread is now.

    `everywhere` adds the sockets of other namespaces that have an id in this one. The kernel gives
    an id to every namespace that a veth joins to this one. `buffer` is the receive buffer in bytes;
    without CAP_NET_ADMIN the kernel grants a part. Raises OSError if the kernel has no such groups,
    and PermissionError for `everywhere` without CAP_NET_BROADCAST.
    """

    def __init__(self, buffer: int = _BUFFER, everywhere: bool = False) -> None:
        self._netlink = Netlink(NETLINK_SOCK_DIAG, _GROUPS, buffer)
        if everywhere:
            try:
                self._netlink.listen_everywhere()
            except OSError:
                self._netlink.close()
                raise

    def close(self) -> None:
        self._netlink.close()

    def fileno(self) -> int:
        """Descriptor that is readable when sockets have closed."""
        return self._netlink.fileno()

    def read(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return TUPLE (n,) and INFO (n,) of the sockets that closed since the last call."""
        _, tuples, info = self.read_everywhere()
        return tuples, info

    def read_everywhere(self) -> tuple[NDArray[np.int32], NDArray[np.void], NDArray[np.void]]:
        """Return ids (n,) of namespaces, TUPLE (n,) and INFO (n,) of the closed sockets.

        The id is -1 for the own namespace; `Namespaces.numbers_of` knows the others.
        """
        parts = [(np.zeros(0, "i4"), np.zeros(0, TUPLE), np.zeros(0, INFO))]
        for ids, messages in self._netlink.events():
            parts.append((ids[is_whole(messages)], *decode(messages)))
        ids, tuples, info = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return ids, tuples, info

    @property
    def lost(self) -> int:
        """Closed sockets that were not told because the receive buffer was full; exact."""
        return self._netlink.lost
