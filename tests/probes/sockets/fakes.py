"""A host of two namespaces without a kernel, for the search for owners."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from bpf.arrays import Array, Row
from bpf.sockets.diag import INFO, TUPLE, SocketState
from probes.sockets.holders import CLOSED, EVENT, HOLDER, OPENED
from probes.sockets.owners.known import EndedSockets, Known, keys_of
from probes.sockets.records import ends_of
from tests.probes.flow.test_grouping import HERE, HERE6

INSIDE = "10.1.0.2"
"""Address of the container."""
End = tuple[str, int]
ANY4, ANY6 = ("0.0.0.0", 0), ("::", 0)


def packed(text: str) -> bytes:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return socket.inet_pton(family, text).ljust(16, b"\0")


def a_tuple(near: End, far: End, protocol: int = socket.IPPROTO_TCP) -> Array:
    row = np.zeros(1, TUPLE)
    row["near"], row["far"] = list(packed(near[0])), list(packed(far[0]))
    row["near_port"], row["far_port"] = near[1], far[1]
    row["protocol"], row["version"] = protocol, 6 if ":" in near[0] else 4
    return row


class FakeSpace:
    """A namespace with sockets by their ends; listeners and unconnected ones have no far end."""

    def __init__(self, netns: int) -> None:
        self.netns = netns
        self.ended = EndedSockets()
        self.asked = 0
        self.refuses = False
        self.is_late = False
        """Whether reports of closed sockets come late."""
        self._sockets: dict[bytes, Row[INFO]] = {}
        self._closing: list[tuple[Array, Array]] = []
        self._numbers = count(netns * 1000)

    def open(
        self, near: End, far: End = ANY4, protocol: int = socket.IPPROTO_TCP, **fields: Any
    ) -> int:
        """Open a socket; returns its cookie, which is its inode, too."""
        number = next(self._numbers)
        values = {"found": True, "state": SocketState.ESTABLISHED, "cgroup": 77}
        values |= {"cookie": number, "inode": number} | fields
        info = np.zeros(1, INFO)
        for name, value in values.items():
            info[name] = value
        self._sockets[self._key(a_tuple(near, far, protocol))] = info[0]
        return number

    def listen(self, near: End) -> int:
        return self.open(near, ANY6 if ":" in near[0] else ANY4, state=SocketState.LISTEN)

    def close(self, near: End, far: End = ANY4, protocol: int = socket.IPPROTO_TCP) -> None:
        row = a_tuple(near, far, protocol)
        info = self._sockets.pop(self._key(row))
        self._closing.append((row, info.reshape(1)))

    def hear(self, now_s: float) -> None:
        if not self.is_late:
            for row, info in self._closing:
                self.ended.take(row, info, now_s)
            self._closing.clear()

    def ask(self, tuples: Array) -> Array:
        self.asked += len(tuples)
        if self.refuses:
            raise PermissionError
        found = np.zeros(len(tuples), INFO)
        for at in range(len(tuples)):
            row = tuples[at : at + 1].copy()
            info = self._sockets.get(self._key(row))
            if info is None:
                row["far"], row["far_port"] = 0, 0
                info = self._sockets.get(self._key(row))
            if info is not None:
                found[at] = info
        return found

    @staticmethod
    def _key(row: Array) -> bytes:
        (key,) = keys_of(ends_of(row))
        return key


class FakeHost:
    """probedeck's namespace, and a container's."""

    def __init__(self) -> None:
        self.own, self.container = FakeSpace(1), FakeSpace(2)
        self._spaces = {each.netns: each for each in (self.own, self.container)}
        self.home = self.own.netns
        self.addresses = {packed(HERE): 1, packed(HERE6): 1, packed(INSIDE): 2}
        self.unreadable = self.losing = False
        self.translated: dict[bytes, Array] = {}
        self.tracks = True
        self.since_s = 0.0
        self.now_s = 100.0
        self.families: dict[int, Array] = {}
        """Sockets of processes and of their descendants, rows of HOLDER."""
        self.searches_all = True
        self.searched: list[int] = []
        self.waiting: list[Array] = []
        """Events that the next call of `listen` takes in."""

    def locate(self, addresses: Array, versions: Array) -> Array:
        return np.array([self.addresses.get(each.tobytes(), 0) for each in addresses], "u4")

    def ask(self, number: int, tuples: Array) -> Array:
        return self._spaces[number].ask(tuples)

    def ended(self, number: int) -> EndedSockets:
        return self._spaces[number].ended

    def inner(self, tuples: Array) -> tuple[Array, Array]:
        if not self.tracks:
            raise PermissionError
        found, inner = np.zeros(len(tuples), bool), tuples.copy()
        for at in range(len(tuples)):
            row = self.translated.get(tuples[at : at + 1].tobytes())
            if row is not None:
                found[at], inner[at] = True, row[0]
        return found, inner

    def translate(self, outside: Array, inside: Array) -> None:
        self.translated[outside.tobytes()] = inside

    def search(self, known: Known, inodes: Sequence[int], tgids: Sequence[int]) -> None:
        self.searched += tgids
        none = np.zeros(0, HOLDER)
        rows = np.concatenate([none, *(self.families.get(each, none) for each in tgids)])
        known.take_search(inodes, rows, self.searches_all)

    def listen(self, known: Known) -> None:
        for space in self._spaces.values():
            space.hear(self.now_s)
        for rows in self.waiting:
            known.take_events(rows, self.now_s)
        self.waiting.clear()


def event(cookie: int, tgid: int, what: int = OPENED, **fields: Any) -> Array:
    """An event of a process that opens or closes a socket."""
    row = np.zeros(1, EVENT)
    values: dict[str, Any] = {
        "what": what,
        "cookie": cookie,
        "tgid": tgid,
        "start_ns": tgid * 10_000_000,
    }
    values |= {"comm": f"p{tgid}", "cgroup": 7000 + tgid, "protocol": 6} | fields
    for name, value in values.items():
        row[name] = value
    return row


def closes(cookie: int, tgid: int) -> Array:
    return event(cookie, tgid, CLOSED)


def held(inodes: Sequence[int], tgid: int, **fields: Any) -> Array:
    """Rows of a process that holds sockets."""
    rows = np.zeros(len(inodes), HOLDER)
    rows["inode"], rows["tgid"], rows["start_ns"] = inodes, tgid, tgid * 10_000_000
    rows["comm"], rows["protocol"] = f"p{tgid}", 6
    for name, value in fields.items():
        rows[name] = value
    return rows
