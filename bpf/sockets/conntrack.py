"""Tuples behind address translation: entries of conntrack, asked for by tuple (ctnetlink).

The kernel keeps each connection under two tuples, as its packets are before and after translation.
A packet outside has one of them, the socket inside the other. Source: include/uapi/linux/netfilter/
nfnetlink_conntrack.h.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from bpf.attach.rtnetlink import REQUEST
from bpf.sockets.diag import TCP, TUPLE, UDP
from bpf.sockets.netlink import HEADER, Layout, Messages, Netlink

_NETLINK_NETFILTER = 12
_GET = 1 << 8 | 1
"""NFNL_SUBSYS_CTNETLINK and IPCTNL_MSG_CT_GET."""
_ATTRIBUTES = 5
"""First word behind nlmsghdr and nfgenmsg."""
_ORIGINAL, _REPLY = 1, 2
"""CTA_TUPLE_ORIG, CTA_TUPLE_REPLY."""
_IP, _PROTO = 1, 2
"""CTA_TUPLE_IP, CTA_TUPLE_PROTO."""
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
"""CTA_PROTO_NUM and so on."""
_NESTED = 0x8000
IN_USE = Path("/proc/sys/net/netfilter/nf_conntrack_count")
"""Exists if the kernel has conntrack."""


class _Version:
    """Layout of addresses and requests of one IP version."""

    def __init__(self, family: int, size: int, source: int, destination: int) -> None:
        self.family = family
        self.size = size
        self.source, self.destination = source, destination
        """CTA_IP_V4_SRC and so on."""
        head = [("size", "u2"), ("kind", "u2")]
        ip = [
            ("head", head), ("source_head", head), ("source", "u1", (size,)),
            ("destination_head", head), ("destination", "u1", (size,)),
        ]  # fmt: skip
        proto = [
            ("head", head),
            ("number_head", head), ("number", "u1"), ("number_pad", "V3"),
            ("source_head", head), ("source", ">u2"), ("source_pad", "V2"),
            ("destination_head", head), ("destination", ">u2"), ("destination_pad", "V2"),
        ]  # fmt: skip
        self.request = np.dtype([
            *HEADER.descr, ("family", "u1"), ("version", "u1"), ("resource", "u2"),
            ("head", head), ("ip", ip), ("proto", proto),
        ])  # fmt: skip
        ip_size, proto_size = np.dtype(ip).itemsize, np.dtype(proto).itemsize
        model = np.zeros((), self.request)
        model["length"], model["type"], model["flags"] = model.itemsize, _GET, REQUEST
        model["family"] = family
        model["head"] = 4 + ip_size + proto_size, _NESTED | _ORIGINAL
        model["ip"]["head"] = ip_size, _NESTED | _IP
        model["ip"]["source_head"] = 4 + size, source
        model["ip"]["destination_head"] = 4 + size, destination
        model["proto"]["head"] = proto_size, _NESTED | _PROTO
        model["proto"]["number_head"] = 5, _NUMBER
        model["proto"]["source_head"] = 6, _SOURCE_PORT
        model["proto"]["destination_head"] = 6, _DESTINATION_PORT
        self._model = model

    def requests(self, tuples: Rows[TUPLE]) -> Array:
        """Questions for packets from the far to the near end."""
        asked = np.empty(len(tuples), self.request)
        asked[:] = self._model
        asked["ip"]["source"] = tuples["far"][:, : self.size]
        asked["ip"]["destination"] = tuples["near"][:, : self.size]
        asked["proto"]["number"] = tuples["protocol"]
        asked["proto"]["source"] = tuples["far_port"]
        asked["proto"]["destination"] = tuples["near_port"]
        return asked


_VERSIONS = {4: _Version(socket.AF_INET, 4, 1, 2), 6: _Version(socket.AF_INET6, 16, 3, 4)}


class Conntrack:
    """Questions for the conntrack of the network namespace in which the calling thread is now.

    Only entries of zone 0 are found. Raises OSError if the kernel has no netfilter netlink.
    """

    def __init__(self) -> None:
        self._netlink = Netlink(_NETLINK_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    def inner(self, tuples: Rows[TUPLE]) -> tuple[NDArray[np.bool_], Rows[TUPLE]]:
        """Return the tuples behind translation of TUPLE (n,), as packets outside have them.

        The result is a mask (n,) of those that are translated, and TUPLE (n,), where the others are
        as given. The near end is inside: for a masqueraded connection the end that opened it, for a
        forwarded port (DNAT) the end that serves it. Raises OSError: PermissionError without
        CAP_NET_ADMIN, EINVAL if the kernel lacks ctnetlink.
        """
        found, inner = np.zeros(len(tuples), bool), np.array(tuples, TUPLE)
        # A question would load the module. A kernel without the module translates no addresses.
        if not IN_USE.exists():
            return found, inner
        ports = np.isin(tuples["protocol"], (TCP, UDP))
        for number, version in _VERSIONS.items():
            index = np.flatnonzero(ports & (tuples["version"] == number))
            for answered, messages in self._netlink.ask(version.requests(tuples[index])):
                for layout in messages.layouts(_ATTRIBUTES):
                    rows = index[answered[layout.index]]
                    inner[rows] = _inside(messages, layout, version, inner[rows])
        for name in ("near", "far", "near_port", "far_port"):
            differs = inner[name] != tuples[name]
            found |= differs if differs.ndim == 1 else differs.any(axis=1)
        return found, inner


def _inside(messages: Messages, layout: Layout, version: _Version, outside: Array) -> Array:
    """Return the inner tuples (k,) of the entries of one layout."""
    original = _ends(messages, layout, version, _ORIGINAL, outside)
    reply = _ends(messages, layout, version, _REPLY, outside)
    if original is None or reply is None:
        return outside
    # The original tuple of a connection that came in is the packet's; its reply's source serves.
    came_in = np.ones(len(outside), bool)
    for name, other in (("near", "far"), ("far", "near")):
        came_in &= (original[name] == outside[other]).all(axis=1)
        came_in &= original[f"{name}_port"] == outside[f"{other}_port"]
    found: Array = np.where(came_in, reply, original)
    return found


def _ends(
    messages: Messages, layout: Layout, version: _Version, which: int, like: Array
) -> Array | None:
    """Return a tuple of each entry, its source as the near end; None if an attribute is missing."""
    found: NDArray[Any] = like.copy()
    at = messages.at[layout.index]
    for name, address, port in (
        ("near", version.source, _SOURCE_PORT),
        ("far", version.destination, _DESTINATION_PORT),
    ):
        address_place = layout.places.get((which, _IP, address))
        port_place = layout.places.get((which, _PROTO, port))
        if address_place is None or port_place is None:
            return None
        if address_place[1] != version.size or port_place[1] != 2:
            return None
        words = messages.words[at[:, None] + address_place[0] + np.arange(version.size // 4)]
        found[name][:, : version.size] = words.view("u1")
        ports = messages.words[at + port_place[0]]
        found[f"{name}_port"] = (ports & 0xFFFF).astype("<u2").view(">u2")
    return found
