"""The network namespaces of the host: their numbers, their addresses, and questions in them.

An open socket keeps its namespace alive, and the veth of an ended container with it. So nothing
stays open here: a question enters the namespace of a process, opens a socket, and leaves again,
which takes some 30 us. Namespaces without a process have no sockets that anybody reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows
from bpf.attach.rtnetlink import attribute, attributes, request
from bpf.machine import enter_network
from bpf.sockets.conntrack import Conntrack
from bpf.sockets.diag import INFO, TUPLE, SocketDiag
from bpf.sockets.netlink import Messages, Netlink

_GETADDR, _GETNSID = 22, 90
_ADDRESS_WORDS = 6
"""nlmsghdr and struct ifaddrmsg."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = (1,), (2,), (4,)
_NSID, _NSID_FD = 1, 3
"""NETNSA_NSID and NETNSA_FD."""
_NO_ID = -1
_SIZES = {socket.AF_INET: 4, socket.AF_INET6: 16}
_BUDGET_S = 0.002
_MOST_S = 0.1
"""Most time by the clock for addresses, as the kernel may make a reader wait."""
_YOUNG_S = 10.0
"""Age up to which addresses are read at each look: a container gets them after its start."""
_CANDIDATES = 4
"""Processes of a namespace that are known as ways into it."""
_TASKS = 1000
"""Threads of a process that are searched for one in another namespace."""
_FACTORS = np.frombuffer(os.urandom(24), "u8") | np.uint64(1)


@dataclass(slots=True)
class _Space:
    """A namespace's processes, addresses and id."""

    tgids: list[int]
    """Processes that were seen in it, the last one last."""
    found_s: float
    round: int
    """Walk over the processes that saw it last."""
    read_s: float = 0.0
    """Time of the last reading, CLOCK_MONOTONIC; 0: the next look must read it."""
    read_round: int = -1
    addresses: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 2), "u8"))
    versions: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, "u1"))
    id: int = _NO_ID


class Namespaces:
    """Namespaces of the host, seen from the calling thread's namespace; for one thread at a time.

    Raises OSError if /proc is not mounted.
    """

    def __init__(self) -> None:
        self._home_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.home = os.fstat(self._home_fd).st_ino
        """Number (inode) of the own namespace."""
        self.refused = ""
        """Why some namespaces cannot be seen or entered; empty if all can."""
        self._refusal = ""
        """The same, of the walk that is going on."""
        self._spaces = {self.home: _Space([os.getpid()], 0.0, 0)}
        self._round = 1
        self._walk = _processes()
        self._table: tuple[Array, Array, Array, Array] | None = None

    def close(self) -> None:
        os.close(self._home_fd)

    def __len__(self) -> int:
        return len(self._spaces)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the known namespaces, the own one first."""
        return tuple(self._spaces)

    def look(self, budget_s: float = _BUDGET_S) -> None:
        """Look for new and ended namespaces, and then for changed addresses.

        Each takes `budget_s` of CPU time at most, so a loaded host finds no fewer namespaces. The
        addresses of new namespaces are read beyond that, as their flows would seem forwarded. Each
        call goes on where the last one stopped. Raises OSError if the own addresses cannot be read.
        """
        self._find(time.thread_time() + budget_s)
        now, deadline = time.monotonic(), time.thread_time() + budget_s
        self._read(self.home, self._spaces[self.home])
        due = [
            (space.read_s, number)
            for number, space in self._spaces.items()
            if number != self.home
            and (space.read_round != self._round or now < space.found_s + _YOUNG_S)
        ]
        for read_s, number in sorted(due):
            # It is gone, or refused: its turn comes again.
            with contextlib.suppress(OSError):
                self._read(number, self._spaces[number])
            # The new ones are first.
            is_over = read_s > 0 and time.thread_time() > deadline
            if is_over or time.monotonic() > now + _MOST_S:
                return

    def saw(self, number: int, tgid: int) -> None:
        """Take in that a process has a socket of a namespace, or is in it."""
        space = self._spaces.get(number)
        if space is None:
            self._spaces[number] = _Space([tgid], time.monotonic(), self._round)
            return
        space.round = self._round
        if tgid not in space.tgids:
            space.tgids.append(tgid)
            del space.tgids[:-_CANDIDATES]
            if not len(space.addresses):
                space.read_s = 0.0  # The processes known before were no way into it.

    def _find(self, deadline: float) -> None:
        for tgid in self._walk:
            try:
                self.saw(os.stat(f"/proc/{tgid}/ns/net").st_ino, tgid)
            except PermissionError as error:
                self._refuse(f"processes: {error.strerror}")
            except OSError:
                pass  # It has ended.
            if time.thread_time() > deadline:
                return
        ended = [
            number
            for number, space in self._spaces.items()
            if space.round < self._round and number != self.home
        ]
        for number in ended:
            del self._spaces[number]
            self._table = None
        self.refused, self._refusal = self._refusal, ""
        self._round += 1
        self._walk = _processes()

    def _read(self, number: int, space: _Space) -> None:
        """Read a namespace's addresses and id. Raises OSError."""
        space.read_s, space.read_round = time.monotonic(), self._round
        with self._opened(number) as fd:
            with self._inside(fd):
                netlink = Netlink(socket.NETLINK_ROUTE)
            with contextlib.closing(netlink):
                addresses, versions = _addresses(netlink.dump(_GETADDR, bytes(8)))
            space.id = _NO_ID if number == self.home else _id_of(fd)
        if not np.array_equal(addresses, space.addresses):
            space.addresses, space.versions = addresses, versions
            self._table = None

    @contextmanager
    def entered(self, number: int) -> Iterator[None]:
        """Move the calling thread into a namespace for the block, which opens sockets there.

        Raises OSError: ProcessLookupError if no process is known in it any more, PermissionError
        without CAP_SYS_ADMIN.
        """
        with self._opened(number) as fd, self._inside(fd):
            yield

    def ask(self, number: int, tuples: Rows[TUPLE], device: int = 0) -> Rows[INFO]:
        """`SocketDiag.ask` in a namespace. Raises OSError as `entered` does."""
        with self.entered(number):
            diag = SocketDiag()
        with contextlib.closing(diag):
            return diag.ask(tuples, device)

    def inner(self, number: int, tuples: Rows[TUPLE]) -> tuple[NDArray[np.bool_], Rows[TUPLE]]:
        """`Conntrack.inner` in a namespace. Raises OSError as `entered` does."""
        with self.entered(number):
            conntrack = Conntrack()
        with contextlib.closing(conntrack):
            return conntrack.inner(tuples)

    def locate(self, addresses: Array, versions: Array) -> NDArray[np.uint32]:
        """Return the numbers (n,) of the namespaces that own addresses; 0: unknown.

        Addresses are (n, 2) u8, the bytes of TUPLE's; versions (n,) are 4 or 6. If several
        namespaces have an address, such as 127.0.0.1, the own one counts first, and then the
        namespace that was found first. The own one also has all of 127.0.0.0/8, broadcast and
        multicast.
        """
        if self._table is None:
            self._table = self._make_table()
        hashes, known, known_versions, numbers = self._table
        found = np.zeros(len(addresses), "u4")
        if len(hashes):
            at = np.searchsorted(hashes, _hash(addresses, versions))
            at[at == len(hashes)] = 0
            same = (known[at] == addresses).all(axis=1) & (known_versions[at] == versions)
            found[same] = numbers[at[same]]
        first = addresses[:, 0] & np.uint64(0xFF)
        ipv4 = versions == 4
        here = ipv4 & ((first == 127) | (first >= 224) & (first < 240))
        here |= ipv4 & (addresses[:, 0] == 0xFFFFFFFF)
        here |= ~ipv4 & (first == 0xFF)
        found[here] = self.home
        return found

    def numbers_of(self, ids: Array) -> NDArray[np.uint32]:
        """Return the numbers (n,) of namespaces by their ids here; -1: the own one, 0: unknown."""
        known = {space.id: number for number, space in self._spaces.items()}
        known[_NO_ID] = self.home
        unique, inverse = np.unique(ids, return_inverse=True)
        return np.array([known.get(each, 0) for each in unique.tolist()], "u4")[inverse]

    def _make_table(self) -> tuple[Array, Array, Array, Array]:
        spaces = self._spaces.values()
        addresses = np.concatenate([space.addresses for space in spaces])
        versions = np.concatenate([space.versions for space in spaces])
        counts = [len(space.versions) for space in spaces]
        numbers = np.repeat(np.array(list(self._spaces), "u4"), counts)
        # The first of equal ones is kept, and the own namespace is the first.
        hashes, first = np.unique(_hash(addresses, versions), return_index=True)
        return hashes, addresses[first], versions[first], numbers[first]

    @contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        if number == self.home:
            yield self._home_fd
            return
        fd = self._open(number)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, number: int) -> int:
        """Open a namespace by a process in it. Raises OSError."""
        space = self._spaces.get(number)
        for tgid in reversed(space.tgids if space else ()):
            for path in _ways(tgid):
                try:
                    fd = os.open(path, os.O_RDONLY)
                except PermissionError as error:
                    self._refuse(f"processes: {error.strerror}")
                    raise
                except OSError:
                    continue
                if os.fstat(fd).st_ino == number:
                    return fd
                os.close(fd)
        raise ProcessLookupError(errno.ESRCH, f"no process is in network namespace {number}")

    def _refuse(self, reason: str) -> None:
        self.refused = self._refusal = reason

    @contextmanager
    def _inside(self, fd: int) -> Iterator[None]:
        if fd == self._home_fd:
            yield
            return
        try:
            enter_network(fd)
        except PermissionError as error:
            self._refuse(str(error.strerror))
            raise
        try:
            yield
        finally:
            enter_network(self._home_fd)


def _processes() -> Iterator[int]:
    return iter([int(name) for name in os.listdir("/proc") if name.isdigit()])


def _ways(tgid: int) -> Iterator[str]:
    """Yield the paths of a process's namespace, and of its threads', which may be in others."""
    yield f"/proc/{tgid}/ns/net"
    with contextlib.suppress(OSError):
        for task in islice(os.listdir(f"/proc/{tgid}/task"), _TASKS):
            yield f"/proc/{tgid}/task/{task}/ns/net"


def _id_of(fd: int) -> int:
    """Return the id of a namespace in the calling thread's namespace; -1 without an id."""
    body = struct.pack("=B3x", socket.AF_UNSPEC) + attribute(_NSID_FD, struct.pack("=i", fd))
    reply = next(request(socket.NETLINK_ROUTE, _GETNSID, body))
    told = attributes(reply[4:]).get(_NSID, b"")
    return int.from_bytes(told[:4], "little", signed=True) if len(told) == 4 else _NO_ID


def _addresses(messages: Messages) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return addresses (k, 2) u8 and versions (k,) of the answers to RTM_GETADDR.

    Broadcast addresses are among them.
    """
    messages = messages.select(messages.lengths >= _ADDRESS_WORDS * 4)
    found = [(np.zeros((0, 2), "u8"), np.zeros(0, "u1"))]
    for layout in messages.layouts(_ADDRESS_WORDS):
        at = messages.at[layout.index]
        families = messages.words[at + 4] & 0xFF
        own = _IFA_LOCAL if _IFA_LOCAL in layout.places else _IFA_ADDRESS
        for path in (own, _IFA_BROADCAST):
            for family, size in _SIZES.items():
                word, length = layout.places.get(path, (0, 0))
                some = at[families == family]
                if length == size and len(some):
                    wide = np.zeros((len(some), 4), "u4")
                    wide[:, : size // 4] = messages.words[
                        some[:, None] + word + np.arange(size // 4)
                    ]
                    version = 4 if family == socket.AF_INET else 6
                    found.append((wide.view("u8"), np.full(len(some), version, "u1")))
    addresses, versions = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return addresses, versions


def _hash(addresses: Array, versions: Array) -> NDArray[np.uint64]:
    mixed = addresses[:, 0] * _FACTORS[0]
    mixed ^= mixed >> np.uint64(32)
    mixed = (mixed + addresses[:, 1]) * _FACTORS[1] + versions
    mixed ^= mixed >> np.uint64(29)
    found: NDArray[np.uint64] = mixed * _FACTORS[2]
    return found
