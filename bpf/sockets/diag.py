"""Sockets of a network namespace, asked for by tuple, and as they close: sock_diag(7).

The kernel finds a socket in its hash tables, so an answer costs the same with ten and with 100,000
sockets on the host; a dump walks over the sockets of all namespaces. Message: `struct
inet_diag_msg` of include/uapi/linux/inet_diag.h. TCP numbers: `struct tcp_info` of
include/uapi/linux/tcp.h; older kernels send a prefix of it.

Sockets that close tell their final numbers to multicast groups. A worker of the kernel sends a
message within some milliseconds after the last close(), and the application does not wait. The
message has tuple, cookie and final tcp_info, but neither inode, user nor cgroup. For the side of
TCP that closes first, the message comes when TIME_WAIT takes over. Kernel 4.3,
net/core/sock_diag.c.
"""

from __future__ import annotations

import errno
import socket
import struct
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from bpf.attach.rtnetlink import REQUEST
from bpf.sockets.netlink import HEADER, Messages, Netlink

TUPLE = np.dtype([
    ("near", "u1", (16,)), ("far", "u1", (16,)), ("near_port", ">u2"), ("far_port", ">u2"),
    ("protocol", "u1"), ("version", "u1"),
])  # fmt: skip
"""The two ends of a socket or a flow. `near` is the end on this host. Addresses are in network
order, IPv4 in the first four bytes and zeros behind; `version` is 4 or 6. An unconnected socket has
zeros as its far end."""

TCP, UDP = 6, 17
"""IP protocol numbers."""

_MAPPED_PREFIX = int.from_bytes(b"\0\0\xff\xff", "little")
"""Third 32-bit word of ::ffff:0:0/96, as this machine reads it."""


def address_words(addresses: Array) -> NDArray[np.uint32]:
    """Addresses (n, 16) u1 as 32-bit words (n, 4): the same memory."""
    return addresses.view("<u4")


def unmap(tuples: Rows[TUPLE]) -> None:
    """Turn IPv4-mapped IPv6 tuples into IPv4, in place: a dual-stack socket carries IPv4 packets.

    An end without an address (`::`) goes with an end that is mapped.
    """
    near, far = address_words(tuples["near"]), address_words(tuples["far"])
    mapped = tuples["version"] == 6
    if not mapped.any():
        return
    ends = [(_is_mapped(words), ~words.any(axis=1)) for words in (near, far)]
    (near_mapped, near_empty), (far_mapped, far_empty) = ends
    mapped &= (near_mapped & (far_mapped | far_empty)) | (near_empty & far_mapped)
    for words in (near, far):
        words[mapped, 0] = words[mapped, 3]
        words[mapped, 1:] = 0
    tuples["version"][mapped] = 4


def _is_mapped(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (
        (words[:, 0] == 0) & (words[:, 1] == 0) & (words[:, 2] == _MAPPED_PREFIX)
    )
    return found


NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_MESSAGE_WORDS, _MESSAGE_BYTES = 22, 88
"""Header and inet_diag_msg; attributes follow."""
_INFO, _SKMEMINFO, _PROTOCOL, _CGROUP_ID = (2,), (7,), (10,), (21,)
_WANTED = 1 << 1 | 1 << 5 | 1 << 6
"""Bits of the wanted attributes: tcp_info, TCLASS, sk_meminfo. The bit of TCLASS also asks for the
cgroup's id."""
_FAMILY_OF = {4: socket.AF_INET, 6: socket.AF_INET6}
ALL_STATES = 0xFFFFFFFF


class SocketState(IntEnum):
    """States of sockets, include/net/tcp_states.h. A UDP socket is ESTABLISHED or CLOSE."""

    ESTABLISHED = 1
    SYN_SENT = 2
    SYN_RECV = 3
    FIN_WAIT1 = 4
    FIN_WAIT2 = 5
    TIME_WAIT = 6
    CLOSE = 7
    CLOSE_WAIT = 8
    LAST_ACK = 9
    LISTEN = 10
    CLOSING = 11
    NEW_SYN_RECV = 12
    BOUND_INACTIVE = 13


_TCP_INFO = (
    ("rto_us", 8, "u4"), ("mss", 16, "u4"), ("unacked", 24, "u4"), ("lost", 32, "u4"),
    ("last_sent_ms", 44, "u4"), ("last_received_ms", 52, "u4"), ("rtt_us", 68, "u4"),
    ("rttvar_us", 72, "u4"), ("cwnd", 80, "u4"), ("receive_rtt_us", 92, "u4"),
    ("retransmitted", 100, "u4"), ("pacing_rate", 104, "u8"), ("max_pacing_rate", 112, "u8"),
    ("bytes_acked", 120, "u8"), ("bytes_received", 128, "u8"), ("notsent", 144, "u4"),
    ("min_rtt_us", 148, "u4"), ("segments_in", 152, "u4"), ("segments_out", 156, "u4"),
    ("delivery_rate", 160, "u8"), ("busy_us", 168, "u8"), ("rwnd_us", 176, "u8"),
    ("sndbuf_us", 184, "u8"), ("bytes_sent", 200, "u8"), ("bytes_retransmitted", 208, "u8"),
    ("dsacks", 216, "u4"), ("reordered", 220, "u4"), ("out_of_order", 224, "u4"),
    ("send_window", 228, "u4"), ("rtos", 240, "u2"),
)  # fmt: skip
"""Name, offset in bytes and format of the fields that are taken from tcp_info."""
_NO_SAMPLE = 0xFFFFFFFF

INFO = np.dtype(
    [
        ("found", "?"), ("state", "u1"), ("app_limited", "?"), ("retries", "u1"),
        ("info_bytes", "u2"), ("rtos", "u2"), ("cookie", "u8"), ("cgroup", "u8"),
        *((name, form) for name, _, form in _TCP_INFO if form == "u8"),
        ("inode", "u4"), ("uid", "u4"), ("rqueue", "u4"), ("wqueue", "u4"),
        ("wmem", "u4"), ("sndbuf", "u4"), ("rmem", "u4"), ("rcvbuf", "u4"), ("drops", "u4"),
        *((name, form) for name, _, form in _TCP_INFO if form == "u4"),
    ],
    align=True,
)  # fmt: skip
"""The kernel's view of one socket; all zero where `found` is not set.

`inode` is 0 in the accept queue, after close and in TIME_WAIT; `cgroup` is the id of the cgroup2
folder in which the socket was made, of an accepted socket its listener's, and 0 before kernel 5.8.
`rqueue` and `wqueue` are bytes that wait; a listener's are its accept queue and its limit. `wmem`
and `sndbuf` (`rmem`, `rcvbuf`) are bytes of kernel memory; `drops` counts received packets that did
not fit. The rest is of TCP: `info_bytes` is the length of tcp_info, and fields behind it are zero.
Rates are bytes/s, and `max_pacing_rate` is 2**64 - 1 without a limit. `min_rtt_us` is 0 before the
first sample. `retries` counts timeouts since the last acknowledgement. `segments_out` counts
segments with data, repeated ones included; `bytes_sent` counts
likewise. `bytes_received` counts the FIN of the other end as one byte. `busy_us`, `rwnd_us` and
`sndbuf_us` are times since the start of the connection."""

_BYTES = np.dtype((np.void, INFO.itemsize))

_REQUEST = np.dtype([
    *HEADER.descr, ("family", "u1"), ("protocol", "u1"), ("wanted", "u1"), ("pad", "u1"),
    ("states", "u4"), ("source_port", ">u2"), ("destination_port", ">u2"),
    ("source", "u1", (16,)), ("destination", "u1", (16,)), ("device", "u4"), ("cookie", "u8"),
])  # fmt: skip
"""nlmsghdr and struct inet_diag_req_v2."""
_ANY_COOKIE = 0xFFFFFFFFFFFFFFFF


class SocketDiag:
    """Questions for the sockets of the network namespace in which the calling thread is now.

    Raises OSError if the kernel has no sock_diag.
    """

    def __init__(self) -> None:
        self._netlink = Netlink(NETLINK_SOCK_DIAG)

    def close(self) -> None:
        self._netlink.close()

    def ask(self, tuples: Rows[TUPLE], device: int = 0) -> Rows[INFO]:
        """Return INFO (n,) of the sockets that packets of TUPLE (n,) belong to.

        The kernel's lookup for packets answers. If the connection is gone, a listener of the same
        port answers for TCP (state LISTEN), or TIME_WAIT. An unconnected UDP socket answers for any
        far end. `device` is the interface of the packets. Without it the kernel does not find
        sockets that are bound to an interface, such as sockets of link-local addresses. Raises
        OSError.
        """
        found = np.zeros(len(tuples), INFO)
        index = np.flatnonzero(np.isin(tuples["protocol"], (TCP, UDP)))
        requests = _requests(tuples[index], device)
        # EINVAL: the kernel has no IPv6.
        for answered, messages in self._netlink.ask(requests, (errno.ENOENT, errno.EINVAL)):
            _, info = decode(messages)
            # As plain bytes: numpy copies rows field by field, which takes 30 times as long.
            found.view(_BYTES)[index[answered[is_whole(messages)]]] = info.view(_BYTES)
        return found

    def dump(
        self, protocol: int, version: int, states: int = ALL_STATES
    ) -> tuple[Rows[TUPLE], Rows[INFO]]:
        """Return TUPLE (n,) and INFO (n,) of all sockets of a protocol, TCP or UDP, and IP version.

        `states` has the bit `1 << state` of each wanted SocketState. Sockets of version 6 that
        carry IPv4 have IPv4 tuples. Raises OSError; FileNotFoundError if the kernel lacks the
        module of the protocol.
        """
        body = struct.pack("=BBBxI48x", _FAMILY_OF[version], protocol, _WANTED, states)
        return decode(self._netlink.dump(_BY_FAMILY, body), protocol)


def _requests(tuples: Rows[TUPLE], device: int) -> Rows[_REQUEST]:
    asked = np.zeros(len(tuples), _REQUEST)
    asked["length"], asked["type"], asked["flags"] = _REQUEST.itemsize, _BY_FAMILY, REQUEST
    asked["family"] = np.where(tuples["version"] == 4, socket.AF_INET, socket.AF_INET6)
    asked["protocol"] = tuples["protocol"]
    asked["wanted"], asked["states"], asked["cookie"] = _WANTED, ALL_STATES, _ANY_COOKIE
    asked["device"] = device
    # The kernel takes the two ends of UDP as a received packet has them (udp_dump_one).
    udp = tuples["protocol"] == UDP
    ends = ("source", "near", "far"), ("destination", "far", "near")
    for end, name, other in ends:
        asked[end] = np.where(udp[:, None], tuples[other], tuples[name])
        port = np.where(udp, tuples[f"{other}_port"], tuples[f"{name}_port"])
        asked[f"{end}_port"] = port
    return asked


def decode(messages: Messages, protocol: int = 0) -> tuple[Rows[TUPLE], Rows[INFO]]:
    """Return TUPLE (n,) and INFO (n,) of inet_diag messages, in their order.

    An event says its protocol; answers have `protocol`. Messages that are cut off are left out.
    """
    messages = messages.select(is_whole(messages))
    tuples, info = np.zeros(len(messages), TUPLE), np.zeros(len(messages), INFO)
    _fill_heads(messages, tuples, info)
    tuples["protocol"] = protocol
    for layout in messages.layouts(_MESSAGE_WORDS):
        at, index = messages.at[layout.index], layout.index
        values = _Values(messages.words, at)
        if (place := layout.places.get(_CGROUP_ID)) and place[1] >= 8:
            info["cgroup"][index] = values.u8(place[0])
        if (place := layout.places.get(_PROTOCOL)) and place[1] >= 1:
            tuples["protocol"][index] = values.u4(place[0]) & 0xFF
        if (place := layout.places.get(_SKMEMINFO)) and place[1] >= 36:
            for name, word in (("rmem", 0), ("rcvbuf", 1), ("sndbuf", 3), ("wmem", 5)):
                info[name][index] = values.u4(place[0] + word)
            info["drops"][index] = values.u4(place[0] + 8)
        if place := layout.places.get(_INFO):
            _fill_tcp(info, index, values, *place)
    unmap(tuples)
    return tuples, info


def is_whole(messages: Messages) -> NDArray[np.bool_]:
    """Whether each message (n,) is long enough to be decoded."""
    return messages.lengths >= _MESSAGE_BYTES


def _fill_heads(messages: Messages, tuples: Rows[TUPLE], info: Rows[INFO]) -> None:
    family = messages.column(4)
    tuples["version"] = np.where(family & 0xFF == socket.AF_INET, 4, 6)
    info["found"] = True
    info["state"] = family >> 8 & 0xFF
    ports = messages.column(5)
    # Both ports are in network order, the near one first in memory.
    tuples["near_port"] = (ports & 0xFFFF).astype("<u2").view(">u2")
    tuples["far_port"] = (ports >> 16).astype("<u2").view(">u2")
    for name, word in (("near", 6), ("far", 10)):
        columns = messages.words[messages.at[:, None] + np.arange(word, word + 4)]
        tuples[name] = columns.view("u1")
    info["cookie"] = _Values(messages.words, messages.at).u8(15)
    for name, word in (("rqueue", 18), ("wqueue", 19), ("uid", 20), ("inode", 21)):
        info[name] = messages.column(word)


def _fill_tcp(info: Rows[INFO], index: Array, values: _Values, word: int, size: int) -> None:
    info["info_bytes"][index] = size
    for name, offset, form in _TCP_INFO:
        if offset + int(form[1]) <= size:
            column = values.u8 if form == "u8" else values.u4
            info[name][index] = column(word + offset // 4)
    if size >= 8:
        info["retries"][index] = values.u4(word) >> 16 & 0xFF
        info["app_limited"][index] = values.u4(word + 1) >> 24 & 1
    floor = info["min_rtt_us"]
    floor[floor == _NO_SAMPLE] = 0


class _Values:
    """Columns of messages at words `at` (n,)."""

    def __init__(self, words: NDArray[np.uint32], at: NDArray[np.int64]) -> None:
        self._words = words
        self._at = at

    def u4(self, word: int) -> NDArray[np.uint32]:
        found: NDArray[np.uint32] = self._words[self._at + word]
        return found

    def u8(self, word: int) -> NDArray[np.uint64]:
        low, high = self.u4(word).astype("u8"), self.u4(word + 1).astype("u8")
        found: NDArray[np.uint64] = low | high << np.uint64(32)
        return found


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

    def read(self) -> tuple[Rows[TUPLE], Rows[INFO]]:
        """Return TUPLE (n,) and INFO (n,) of the sockets that closed since the last call."""
        _, tuples, info = self.read_everywhere()
        return tuples, info

    def read_everywhere(self) -> tuple[Array, Rows[TUPLE], Rows[INFO]]:
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
