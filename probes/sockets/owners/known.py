"""Openers, holders and closers of sockets, in memory bounded by age and number.

The kernel reuses process numbers: number and start time identify a process. It never reuses cookies
of sockets, inodes rarely, ports at once.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from bpf.arrays import Array, Row, Rows
from bpf.errors import printable_bytes
from bpf.sockets.diag import INFO
from probes.sockets.holders import CLOSED, EVENT, HOLDER
from probes.sockets.records import ends_of

CLOSED_S = 60.0
"""Seconds for which a closed socket is remembered: as long as TIME_WAIT lasts."""
MOST_SOCKETS = 1 << 17
"""Limit of remembered openers, and of remembered closed sockets; the oldest leave first."""
MOST_CLOSED = 1 << 15
"""Closed sockets of a namespace with their last numbers, some 300 bytes each."""
MOST_RAW = 1024
RAW = -1
"""In place of the identifier of an ICMP echo socket."""
_COMMON = (0, 6, 17)
"""Protocols of sockets that are found by their ends."""
_INIT = 1
UNKNOWN_USER = 0xFFFFFFFF
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Process:
    """A process that opened, holds or closed a socket; one object each, so `is` compares."""

    tgid: int
    start_ns: int
    """CLOCK_BOOTTIME, in steps of 10 ms."""
    comm: bytes
    uid: int = UNKNOWN_USER
    cgroup: int = 0
    """Id of its folder; 0: unknown."""
    netns: int = 0


class Aged(Generic[K, V]):
    """A dictionary that forgets values by age, and the oldest beyond a number."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._values: dict[K, tuple[float, V]] = {}
        self._order: deque[tuple[float, K]] = deque()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: K, value: V, now_s: float) -> None:
        self._values[key] = now_s, value
        self._order.append((now_s, key))
        if len(self._order) > self._most:
            self._drop()

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        return found[1] if found else None

    def since(self, key: K, since_s: float) -> V | None:
        """Return the value if it was put at `since_s` or later."""
        found = self._values.get(key)
        return found[1] if found and found[0] >= since_s else None

    def values(self, since_s: float) -> Iterator[tuple[K, V]]:
        """Yield keys and values put at `since_s` or later."""
        return ((key, value) for key, (put_s, value) in self._values.items() if put_s >= since_s)

    def forget(self, now_s: float) -> None:
        """Forget old values."""
        while self._order and self._order[0][0] < now_s - self._seconds:
            self._drop()

    def _drop(self) -> None:
        put_s, key = self._order.popleft()
        found = self._values.get(key)
        if found and found[0] <= put_s:
            del self._values[key]


@dataclass(slots=True, eq=False)
class Ended:
    """A closed socket."""

    cookie: int
    info: Row[INFO]
    """The kernel's last numbers."""


class EndedSockets:
    """Closed sockets of one namespace, by their ends."""

    def __init__(self) -> None:
        self._ended: Aged[bytes, Ended] = Aged(MOST_CLOSED, CLOSED_S)

    def take(self, tuples: Array, info: Rows[INFO], now_s: float) -> None:
        """Take in TUPLE (n,) and INFO (n,) of closed sockets."""
        if len(tuples) > MOST_CLOSED:
            tuples, info = tuples[-MOST_CLOSED:], info[-MOST_CLOSED:]
        cookies = info["cookie"].tolist()
        for at, key in enumerate(keys_of(ends_of(tuples))):
            self._ended.put(key, Ended(cookies[at], info[at]), now_s)
        self._ended.forget(now_s)

    def get(self, key: bytes) -> Ended | None:
        return self._ended.get(key)

    def unconnected(self, key: bytes, since_s: float) -> Ended | None:
        """Return the socket without a far end that had this near end, or its port on any address,
        if it closed at `since_s` or later: ports come again.
        """
        for candidate in _without_far(key):
            if found := self._ended.since(candidate, since_s):
                return found
        return None


def keys_of(ends: Array) -> Iterable[bytes]:
    """Yield a key for each of ends (n, 5)."""
    raw = np.ascontiguousarray(ends).tobytes()
    size = ends.shape[1] * 8
    return (raw[at : at + size] for at in range(0, len(raw), size))


def _without_far(key: bytes) -> tuple[bytes, ...]:
    none = bytes(16)
    last = key[32:34] + bytes(2) + key[36:]
    dual = last[:5] + b"\x06" + last[6:]  # A socket of IPv6 on any address takes IPv4, too.
    return key[:16] + none + last, none + none + last, none + none + dual


@dataclass(slots=True)
class _Holding:
    """Holders of sockets, as one pass over all descriptors found them."""

    by_inode: dict[int, tuple[Process, ...]] = field(default_factory=dict)
    raw: dict[tuple[int, int], tuple[Process, ...]] = field(default_factory=dict)
    """By protocol and the identifier of an ICMP echo socket, or RAW."""


class Known:
    """Knowledge about sockets by cookie and inode, in bounded memory."""

    def __init__(self) -> None:
        self._processes: WeakValueDictionary[tuple[int, int], Process] = WeakValueDictionary()
        self._opened: dict[int, Process] = {}
        """Openers of open sockets."""
        self._held: dict[int, Process] = {}
        """Only holders of open sockets without an opener."""
        self._closed: Aged[int, tuple[Process | None, Process, Process | None]] = Aged(
            MOST_SOCKETS, CLOSED_S
        )
        """Opener, closer and last holder of each closed socket."""
        self._raw: Aged[tuple[int, int], Process] = Aged(MOST_RAW, CLOSED_S)
        """Openers of sockets that are neither TCP nor UDP, by protocol and cookie."""
        self._last, self._current = _Holding(), _Holding()
        self._pass = 0

    def take_events(self, rows: Rows[EVENT], now_s: float) -> None:
        """Take in rows of dtype EVENT (n,)."""
        names = ("what", "cookie", "protocol", "tgid", "start_ns", "comm", "uid", "cgroup", "netns")
        columns = (rows[name].tolist() for name in names)
        for what, cookie, protocol, *process in zip(*columns, strict=True):
            who = self._process(*process)
            if what == CLOSED:
                opener, holder = self._opened.pop(cookie, None), self._held.pop(cookie, None)
                self._closed.put(cookie, (opener, who, holder), now_s)
                continue
            self._opened[cookie] = who
            if protocol not in _COMMON:
                self._raw.put((protocol, cookie), who, now_s)
        _give_up(self._opened)
        self._closed.forget(now_s)
        self._raw.forget(now_s)

    def take_holders(self, rows: Rows[HOLDER], passes: int) -> None:
        """Take in rows of dtype HOLDER (n,); `passes` over all descriptors are complete now."""
        into = self._current
        names = ("inode", "protocol", "type", "port", "tgid", "start_ns", "comm")
        columns = (rows[name].tolist() for name in names)
        for inode, protocol, kind, port, *process in zip(*columns, strict=True):
            who = self._process(*process)
            _add(into.by_inode, inode, who)
            if protocol not in _COMMON:
                _add(into.raw, (protocol, RAW if kind == socket.SOCK_RAW else port), who)
        if passes > self._pass:
            # The last slice of a pass is read to its end.
            self._last, self._current, self._pass = into, _Holding(), passes

    def take_search(self, inodes: Iterable[int], rows: Rows[HOLDER], complete: bool) -> None:
        """Take in rows of dtype HOLDER (n,) of a search for some sockets.

        If the search was `complete`, it told all holders of these sockets.
        """
        rows = rows[np.isin(rows["inode"], list(inodes))]
        self.take_holders(rows, self._pass)
        for inode in set(rows["inode"].tolist()) if complete else ():
            for who in self._current.by_inode[inode]:
                _add(self._last.by_inode, inode, who)

    def _process(
        self, tgid: int, start_ns: int, comm: bytes, uid: int = 0, cgroup: int = 0, netns: int = 0
    ) -> Process:
        found = self._processes.get((tgid, start_ns))
        if found is None:
            found = self._processes[tgid, start_ns] = Process(tgid, start_ns, b"")
        # The name changes by exec. Only events tell the rest.
        found.comm = printable_bytes(comm)
        if cgroup:
            found.uid, found.cgroup, found.netns = uid, cgroup, netns
        return found

    def note_holder(self, cookie: int, who: Process) -> None:
        """Remember the only holder of a socket: a closed socket has no inode to find it by."""
        if cookie not in self._opened:
            self._held[cookie] = who
            _give_up(self._held)

    def last_holder(self, cookie: int) -> Process | None:
        """Return the only process that held a socket before it closed."""
        closed = self._closed.get(cookie)
        return closed[2] if closed else None

    def opener(self, cookie: int) -> Process | None:
        if found := self._opened.get(cookie):
            return found
        closed = self._closed.get(cookie)
        return closed[0] if closed else None

    def closer(self, cookie: int) -> Process | None:
        closed = self._closed.get(cookie)
        return closed[1] if closed else None

    def holders(self, inode: int) -> tuple[Process, ...]:
        """Return the processes that hold a socket, by the last complete pass, or else this one.

        Init is left out if others hold the socket, too: it opened the socket for them.
        """
        found = self._last.by_inode.get(inode) or self._current.by_inode.get(inode, ())
        return without_init(found)

    def knows_all_holders(self, inode: int) -> bool:
        """Whether a complete pass or search found the holders of a socket."""
        return inode in self._last.by_inode

    def raw_holders(self, protocol: int, identifier: int = RAW) -> tuple[Process, ...]:
        """Return the processes with an ICMP echo socket of an identifier, or with raw sockets of a
        protocol.
        """
        key = protocol, identifier
        return self._last.raw.get(key) or self._current.raw.get(key, ())

    def raw_openers(self, protocol: int, since_s: float) -> tuple[Process, ...]:
        """Return the processes that opened a socket of a protocol at `since_s` or later."""
        found = (who for (of, _), who in self._raw.values(since_s) if of == protocol)
        return tuple(dict.fromkeys(found))

    @property
    def passes(self) -> int:
        """Complete passes over all descriptors."""
        return self._pass


def _give_up(sockets: dict[int, Process]) -> None:
    """Delete the oldest sockets beyond MOST_SOCKETS: events of their end were lost."""
    if len(sockets) > MOST_SOCKETS:
        for cookie in list(islice(sockets, len(sockets) - MOST_SOCKETS)):
            del sockets[cookie]


def _add(to: dict[K, tuple[Process, ...]], key: K, who: Process) -> None:
    before = to.get(key, ())
    if who not in before:
        to[key] = (*before, who)


def without_init(found: tuple[Process, ...]) -> tuple[Process, ...]:
    """Leave out init if there are others: it opened the socket for them."""
    return tuple(who for who in found if who.tgid != _INIT) or found
