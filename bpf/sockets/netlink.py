"""Netlink in bulk: batched requests, dumps and events, and their attributes as columns.

A request of one datagram is answered before `send` returns, so reading the answers never waits.
Lengths and counts come from the kernel and are checked: a message that is cut off loses its tail.
"""

from __future__ import annotations

import ctypes as ct
import errno
import os
import socket
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array
from bpf.attach.rtnetlink import DUMP, ERROR, message, messages

_HEADER_WORDS = 4
_SOL_NETLINK, _ADD_MEMBERSHIP, _LISTEN_ALL_NSID = 270, 1, 8
_SO_RCVBUFFORCE = 33
_SO_MEMINFO, _MEMINFO_DROPS, _MEMINFO_WORDS = 55, 8, 9
_NESTED, _KIND_MASK = 0x8000, 0x3FFF
_TIMEOUT_S = 2
"""Longest wait for the next part of a dump."""
_DATAGRAM = 1 << 16
"""Most bytes of a dump's datagram; the kernel sends half of that at most."""
_BATCH = 128
"""Requests a send. The usual receive buffer holds 166 answers of sockets."""
_CAPACITY = 1024
"""Messages that one decoding takes: they stay in the CPU's cache."""
_STRIDE = 768
"""Bytes kept of an answer: answers for TCP have 464 on kernel 6.18, and tcp_info grows."""

HEADER = np.dtype([
    ("length", "u4"), ("type", "u2"), ("flags", "u2"), ("sequence", "u4"), ("port", "u4"),
])  # fmt: skip
"""struct nlmsghdr."""

_IOVEC = np.dtype([("base", "u8"), ("length", "u8")])
_MMSGHDR = np.dtype({
    "names": ["iov", "iovlen", "control", "controllen", "length"],
    "formats": ["u8", "u8", "u8", "u8", "u4"],
    "offsets": [16, 24, 32, 40, 56],
    "itemsize": 64,
})  # fmt: skip

_CONTROL = np.dtype(
    [("length", "u8"), ("level", "i4"), ("type", "i4"), ("id", "i4"), ("pad", "u4")]
)
"""struct cmsghdr with the id of a network namespace."""

# These calls return within microseconds. They keep the GIL: getting it back may take 5 ms.
_BRIEF = ct.PyDLL(None, use_errno=True)
_recvmmsg = _BRIEF.recvmmsg
_recvmmsg.argtypes = (ct.c_int, ct.c_void_p, ct.c_uint, ct.c_int, ct.c_void_p)
_send = _BRIEF.send
_send.argtypes = (ct.c_int, ct.c_void_p, ct.c_size_t, ct.c_int)
_send.restype = ct.c_ssize_t


Path = tuple[int, ...]
"""Kinds of an attribute and of those around it, outermost first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Messages whose attributes have the same kinds and lengths."""

    index: NDArray[np.int64]
    """Positions (k,) of the messages."""
    places: dict[Path, tuple[int, int]]
    """First 32-bit word of each attribute's value, from the message's start, and its bytes."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Netlink messages in one buffer, which the next read overwrites."""

    words: NDArray[np.uint32]
    at: NDArray[np.int64]
    """First word (n,) of each message."""
    lengths: NDArray[np.int64]
    """Bytes (n,) of each message that are in the buffer."""

    def __len__(self) -> int:
        return len(self.at)

    def select(self, index: Array) -> Messages:
        """Return the messages at positions or of a mask `index`."""
        return Messages(self.words, self.at[index], self.lengths[index])

    def column(self, word: int) -> NDArray[np.uint32]:
        """One 32-bit word (n,) of each message. The messages must be long enough."""
        found: NDArray[np.uint32] = self.words[self.at + word]
        return found

    def layouts(self, first: int) -> Iterator[Layout]:
        """Group the messages by their attributes, which begin at word `first`."""
        for length in np.unique(self.lengths):
            index = np.flatnonzero(self.lengths == length)
            while len(index):
                at = self.at[index]
                heads, places = self._attributes(int(at[0]), first, int(length))
                same = np.ones(len(index), bool)
                for word, head in heads:
                    same &= self.words[at + word] == head
                yield Layout(index[same], places)
                index = index[~same]

    def _attributes(
        self, at: int, first: int, length: int
    ) -> tuple[list[tuple[int, int]], dict[Path, tuple[int, int]]]:
        """Walk over one message: headers of attributes by word, and places of values."""
        heads: list[tuple[int, int]] = []
        places: dict[Path, tuple[int, int]] = {}
        open_parts: list[tuple[int, int, Path]] = [(first, length, ())]
        while open_parts:
            word, end, path = open_parts.pop()
            while word * 4 + 4 <= end:
                head = int(self.words[at + word])
                size, kind = head & 0xFFFF, head >> 16
                heads.append((word, head))
                if size < 4 or word * 4 + size > end:
                    break
                inner = (*path, kind & _KIND_MASK)
                places[inner] = (word + 1, size - 4)
                if kind & _NESTED:
                    open_parts.append((word + 1, word * 4 + size, inner))
                word += (size + 3) // 4
        return heads, places


class _Inbox:
    """Buffers of recvmmsg(2): one datagram a row."""

    def __init__(self) -> None:
        self._data = np.zeros((_CAPACITY, _STRIDE), "u1")
        self._iov = np.zeros(_CAPACITY, _IOVEC)
        self._iov["base"] = _rows_of(self._data)
        self._iov["length"] = _STRIDE
        self._control = np.zeros(_CAPACITY, _CONTROL)
        self._headers = np.zeros(_CAPACITY, _MMSGHDR)
        self._headers["iov"] = _rows_of(self._iov)
        self._headers["iovlen"] = 1
        self._headers["control"] = _rows_of(self._control)

    def receive(self, fd: int, start: int, wanted: int) -> int:
        """Receive up to `wanted` datagrams into rows from `start`; returns their number.

        The number is less only when the queue is empty. An overrun (ENOBUFS) is no error here: the
        kernel reports it once, in front of the datagrams that it kept.
        """
        got = 0
        # The kernel replaces the room by the length.
        self._headers["controllen"][start : start + wanted] = _CONTROL.itemsize
        while got < wanted:
            headers = self._headers.ctypes.data + _MMSGHDR.itemsize * (start + got)
            flags = socket.MSG_DONTWAIT | socket.MSG_TRUNC
            count = _recvmmsg(fd, headers, wanted - got, flags, None)
            if count < 0:
                code = ct.get_errno()
                if code == errno.EAGAIN:
                    break
                if code not in (errno.EINTR, errno.ENOBUFS):
                    raise OSError(code, f"netlink: {os.strerror(code)}")
            else:
                got += count
        return got

    def namespaces(self, count: int) -> NDArray[np.int32]:
        """Return the id (n,) of the namespace that each datagram is from; -1: the socket's own."""
        control = self._control[:count]
        told = self._headers["controllen"][:count] >= _CONTROL.itemsize - 4
        told &= (control["level"] == _SOL_NETLINK) & (control["type"] == _LISTEN_ALL_NSID)
        return np.where(told, control["id"], -1).astype("i4")

    def messages(self, count: int) -> Messages:
        """Return the first message of each of the first `count` rows."""
        words = self._data.view("<u4").reshape(-1)
        at = _STRIDE // 4 * np.arange(count)
        received = self._headers["length"][:count].astype("i8")
        lengths = np.minimum(np.minimum(received, _STRIDE), words[at])
        # A header that is cut off has no length: decoders leave the message out.
        lengths[np.minimum(received, lengths) < HEADER.itemsize] = 0
        return Messages(words, at, lengths)


def _rows_of(array: Array) -> NDArray[np.int64]:
    """Return the memory address of each row."""
    return array.ctypes.data + array.strides[0] * np.arange(len(array))


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.inbox = _Inbox()


_buffers = _PerThread()
"""Shared by all sockets of a thread: a host may have hundreds of namespaces."""


class Netlink:
    """A netlink socket of the calling thread's network namespace, for one thread at a time.

    Raises OSError if the kernel has no such family.
    """

    def __init__(self, family: int, groups: Sequence[int] = (), buffer: int = 0) -> None:
        """Join multicast `groups`; `buffer` is the receive buffer in bytes, 0 the default."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
        self._sequence = 0
        try:
            if buffer:
                self._enlarge(buffer)
            timeout = struct.pack("@ll", _TIMEOUT_S, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            self._socket.bind((0, 0))
            for group in groups:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def listen_everywhere(self) -> None:
        """Hear events of all namespaces that have an id in the socket's own.

        The kernel gives one to each that a veth joins to it. Raises OSError: PermissionError
        without CAP_NET_BROADCAST.
        """
        self._socket.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)

    def _enlarge(self, size: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:
            # Without CAP_NET_ADMIN the kernel grants net.core.rmem_max at most.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    @property
    def lost(self) -> int:
        """Events that the kernel dropped because the receive buffer was full."""
        size = 4 * _MEMINFO_WORDS
        raw = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, size)
        if len(raw) < size:
            return 0
        found: int = struct.unpack("@9I", raw)[_MEMINFO_DROPS]
        return found

    def ask(
        self, requests: Array, absent: Collection[int] = (errno.ENOENT,)
    ) -> Iterator[tuple[NDArray[np.int64], Messages]]:
        """Send requests (n,), whose dtype begins with HEADER's fields; yield answers in blocks.

        A block is the positions (k,) of requests, and their answers (k,). Requests that the kernel
        refuses with an errno of `absent` are left out. Raises OSError for other refusals.
        """
        first = self._sequence
        self._sequence = (first + len(requests)) & 0xFFFFFFFF
        requests["sequence"] = (first + np.arange(len(requests))) & 0xFFFFFFFF
        inbox = _buffers.inbox
        at, size = 0, _BATCH
        while at < len(requests):
            held = 0
            while at < len(requests) and held + size <= _CAPACITY:
                part = requests[at : at + size]
                self._send(part)
                got = inbox.receive(self.fileno(), held, len(part))
                held += got
                if got == len(part):
                    at += got
                elif size > 1:
                    # The receive buffer was too small for so many answers: ask again, for fewer.
                    size //= 2
                else:
                    raise OSError(errno.ENOBUFS, "netlink: no room for one answer")
            messages = self._refused(inbox.messages(held), absent)
            index = (messages.column(2).astype("i8") - first) & 0xFFFFFFFF
            ours = index < len(requests)
            yield index[ours], messages.select(ours)

    def _send(self, requests: Array) -> None:
        size = requests.nbytes
        while (sent := _send(self.fileno(), requests.ctypes.data, size, 0)) != size:
            code = ct.get_errno() if sent < 0 else errno.EMSGSIZE
            if code != errno.EINTR:
                raise OSError(code, f"netlink: {os.strerror(code)}")

    @staticmethod
    def _refused(messages: Messages, absent: Collection[int]) -> Messages:
        """Take the errors out of `messages`; raises OSError for one that is not in `absent`."""
        messages = messages.select(messages.lengths >= HEADER.itemsize)
        errors = messages.column(1) & 0xFFFF == ERROR
        if not errors.any():
            return messages
        told = messages.select(errors & (messages.lengths >= HEADER.itemsize + 4))
        for code in np.unique(told.column(_HEADER_WORDS).view("i4")):
            if code and -code not in absent:
                raise OSError(int(-code), f"netlink: {os.strerror(int(-code))}")
        return messages.select(~errors)

    def dump(self, kind: int, body: bytes) -> Messages:
        """Return all messages of a dump of type `kind`. Raises OSError."""
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._socket.send(message(kind, body, DUMP, self._sequence))
        parts: list[bytes] = []
        at: list[int] = []
        lengths: list[int] = []
        words = 0
        done = False
        while not done:
            data = self._socket.recv(_DATAGRAM)
            data += bytes(-len(data) % 4)
            for begin, length, done in messages(data, self._sequence):
                if done:
                    break
                at.append(words + begin // 4)
                lengths.append(length)
            parts.append(data)
            words += len(data) // 4
        whole = np.frombuffer(b"".join(parts), "<u4")
        return Messages(whole, np.array(at, "i8"), np.array(lengths, "i8"))

    def events(self) -> Iterator[tuple[NDArray[np.int32], Messages]]:
        """Yield the events that came since the last call, in blocks of one message a datagram.

        A block is ids (n,) of the namespaces that they are from, -1 the own one, and messages (n,).
        """
        inbox = _buffers.inbox
        while count := inbox.receive(self.fileno(), 0, _CAPACITY):
            yield inbox.namespaces(count), inbox.messages(count)
            if count < _CAPACITY:
                return
