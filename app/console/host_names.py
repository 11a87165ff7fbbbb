"""Host names of addresses: of /etc/hosts, of packets that passed, and of reverse DNS.

Threads look up names, so that the console never waits for a name server.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from bpf.errors import printable
from bpf.quantities import REPLACED

_THREADS = 3
_LOOK_S = 0.02
"""Time between two checks whether all names are known."""
_WAITING = 256
"""Most addresses in the queue; the screens ask again for others."""
_KNOWN = 4096
"""Most addresses in the cache, with a name or without."""
_LEARNED = 16384
"""Most addresses with names of packets."""
_LIFE_S = (60.0, 86400.0)
"""Shortest and longest time for which a name of a packet is valid."""
_HOSTS = Path("/etc/hosts")


class NameSource(StrEnum):
    """Origin of a name."""

    HOSTS = "hosts"
    """/etc/hosts."""
    TLS = "tls"
    """The server name of a TLS connection that passed."""
    DNS = "dns"
    """A DNS answer that passed."""
    REVERSE = "reverse"
    """Reverse DNS, asked by probedeck."""

    @property
    def about(self) -> str:
        """The origin in words."""
        return {
            NameSource.HOSTS: "of /etc/hosts",
            NameSource.TLS: "of a TLS connection",
            NameSource.DNS: "of a DNS answer",
            NameSource.REVERSE: "by reverse DNS",
        }[self]


class Name(NamedTuple):
    """The name of an address."""

    text: str
    """Without control characters."""
    source: NameSource


class _Learned(NamedTuple):
    name: Name
    until: float
    """Time of time.monotonic()."""


class Names:
    """A cache of names, filled by daemon threads, for which the end of the program does not wait.

    A thread calls `found` after each new name.
    """

    def __init__(
        self, found: Callable[[], object],
        resolve: Callable[[str], str] = lambda address: socket.gethostbyaddr(address)[0],
        *, enabled: bool = True,
    ) -> None:  # fmt: skip
        self.enabled = enabled
        """Whether to look up names, and to return them."""
        self._found = found
        self._resolve = resolve
        self._names: OrderedDict[str, Name | None] = OrderedDict()
        """Names by address; None for no name, or not yet."""
        self._learned: OrderedDict[str, _Learned] = OrderedDict()
        """Names of packets, by address."""
        self._hosts: dict[str, str] | None = None
        """Names of /etc/hosts by address; None: not read yet."""
        self._queue: queue.Queue[str] = queue.Queue(_WAITING)
        self._version = 0
        self._lock = threading.Lock()
        self._threads = 0

    @property
    def version(self) -> int:
        """Incremented with each new name."""
        return self._version if self.enabled else -1

    def name(self, address: str) -> str:
        """Return the text of the name; empty if it is unknown."""
        found = self.of(address)
        return found.text if found is not None else ""

    def of(self, address: str) -> Name | None:
        """Return the name of an address; look it up if unknown. None: no name yet.

        A name of /etc/hosts comes first, then one of a packet, then reverse DNS.
        """
        if not self.enabled:
            return None
        with self._lock:
            found = self._looked_up(address)
            if found is not None and found.source is NameSource.HOSTS:
                return found
            learned = self._learned.get(address)
            if learned is None:
                return found
            if learned.until < time.monotonic():
                del self._learned[address]
                self._version += 1
                return found
            return learned.name

    def learn(self, address: str, text: str, source: NameSource, life_s: float) -> None:
        """Store the name of a packet, valid for `life_s` seconds within limits.

        An address keeps its name while it is valid, so that a host of many names does not change
        its name all the time. A server name of TLS takes the place of a DNS answer.
        """
        name = Name(printable(text, REPLACED), source)
        now = time.monotonic()
        until = now + min(max(life_s, _LIFE_S[0]), _LIFE_S[1])
        with self._lock:
            before = self._learned.get(address)
            if before is not None and before.until >= now and before.name != name:
                if (before.name.source, source) != (NameSource.DNS, NameSource.TLS):
                    return
                until = max(until, before.until)
            self._learned[address] = _Learned(name, until)
            self._learned.move_to_end(address)
            if len(self._learned) > _LEARNED:
                self._learned.popitem(last=False)
            if before is not None and before.name == name:
                return
            self._version += 1
        self._found()

    def _looked_up(self, address: str) -> Name | None:
        """Return a name of the cache; if the address is new, have a thread look it up."""
        if address in self._names:
            self._names.move_to_end(address)
            return self._names[address]
        try:
            self._queue.put_nowait(address)
        except queue.Full:
            return None
        self._names[address] = None
        if len(self._names) > _KNOWN:
            self._names.popitem(last=False)
        if self._threads < _THREADS:
            self._threads += 1
            threading.Thread(target=self._run, name="names", daemon=True).start()
        return None

    def look_up(self, addresses: Iterable[str], seconds: float) -> None:
        """Look up addresses, and wait until all are known; at most this long."""
        deadline = time.monotonic() + seconds
        for address in addresses:
            while self._queue.full() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            self.name(address)
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        while True:
            address = self._queue.get()
            # The owner of the zone chooses the text, and the resolver raises many kinds of errors.
            with contextlib.suppress(OSError, UnicodeError):
                with self._lock:
                    if self._hosts is None:
                        self._hosts = _names_of_hosts()
                source = NameSource.HOSTS if self._hosts.get(address) else NameSource.REVERSE
                text = self._hosts.get(address) or self._resolve(address)
                name = Name(printable(text, REPLACED), source)
                with self._lock:
                    if address in self._names:
                        self._names[address] = name
                        self._version += 1
                self._found()
            self._queue.task_done()


def _names_of_hosts() -> dict[str, str]:
    """The first name of each address in /etc/hosts."""
    names: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _HOSTS.read_text(errors="replace").splitlines():
            fields = line.partition("#")[0].split()
            if len(fields) > 1:
                names.setdefault(fields[0], fields[1])
    return names
