"""Sockets of a network namespace, asked for by tuple: sock_diag(7).

The kernel finds a socket in its hash tables, so an answer costs the same with ten and with 100,000
sockets on the host; a dump walks over the sockets of all namespaces. Message: `struct
inet_diag_msg` of include/uapi/linux/inet_diag.h. TCP numbers: `struct tcp_info` of
include/uapi/linux/tcp.h; older kernels send a prefix of it.
"""

from __future__ import annotations

import errno
import socket
import struct
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bpf.maps.layout import Array
from bpf.sockets.netlink import HEADER, REQUEST, Messages, Netlink
from bpf.sockets.tuples import TCP, TUPLE, UDP, unmap

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

    def ask(self, tuples: Array, device: int = 0) -> NDArray[np.void]:
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
    ) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return TUPLE (n,) and INFO (n,) of all sockets of a protocol, TCP or UDP, and IP version.

        `states` has the bit `1 << state` of each wanted SocketState. Sockets of version 6 that
        carry IPv4 have IPv4 tuples. Raises OSError; FileNotFoundError if the kernel lacks the
        module of the protocol.
        """
        body = struct.pack("=BBBxI48x", _FAMILY_OF[version], protocol, _WANTED, states)
        return decode(self._netlink.dump(_BY_FAMILY, body), protocol)


def _requests(tuples: Array, device: int) -> NDArray[np.void]:
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


def decode(messages: Messages, protocol: int = 0) -> tuple[NDArray[np.void], NDArray[np.void]]:
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


def _fill_heads(messages: Messages, tuples: Array, info: Array) -> None:
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


def _fill_tcp(info: Array, index: Array, values: _Values, word: int, size: int) -> None:
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
