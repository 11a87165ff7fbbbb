"""The sources of this host: the kernel's answers, events, iterators and namespaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

import numpy as np

from bpf.arrays import Array, Rows
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from bpf.sockets.conntrack import Conntrack
from bpf.sockets.diag import INFO, TUPLE, ClosingSockets, SocketDiag
from bpf.sockets.namespaces import Namespaces
from probes.sockets.holders import Holders, SocketEvents, search
from probes.sockets.owners.known import EndedSockets, Known

T = TypeVar("T")
HOLDERS_S, URGENT_HOLDERS_S = 0.0005, 0.003
"""Time for descriptors in a window; the second while open sockets have no process."""
_FIRST_S = 2.0
"""Most time for the first pass over all descriptors, and for that over all processes."""
_SECOND_S = 0.2
"""Most time for the pass before the first answer."""
_SLICE_S = 0.02
_LOSING_S = 5.0
_LINK_LOCAL = np.array([0xFE, 0x80], "u1")


class LiveSources:
    """Implements `SocketSources`. A source that fails is left out, with a line in `missing`.

    One thread at a time may use an instance.
    """

    def __init__(self, compiler: Compiler, device: int) -> None:
        """Open all sources: some 0.5 s, and 40 ms for 100,000 descriptors.

        `device` is the index of the watched interface. Raises ProbedeckError if the kernel
        refuses sock_diag.
        """
        self.missing: dict[str, str] = {}
        """Cost and cause of each missing source, by the source's name."""
        self._device = device
        self._ended: dict[int, EndedSockets] = {}
        self._lost = 0
        self._losing_until = 0.0
        self.since_s = 0.0
        self._is_first = True
        with ExitStack() as undo:
            self._namespaces = Namespaces()
            undo.callback(self._namespaces.close)
            try:
                self._diag = undo.enter_context(closing(SocketDiag()))
            except OSError as error:
                raise ProbedeckError(f"the kernel tells no sockets (sock_diag): {error}") from None
            self.events = self._open(
                undo,
                "socket events",
                "sockets that closed within a window have no process",
                lambda: SocketEvents(compiler),
            )
            self._closing = self._open(
                undo, "closed sockets", "a socket that closed has no owner", _listen_to_closing
            )
            self._conntrack = self._open(
                undo, "connection tracking", "translated addresses have no owner", Conntrack
            )
            self.since_s = time.monotonic()
            self.holders = undo.enter_context(Holders(compiler))
            if why := self.holders.why_proc:
                self.missing["holders by iterator"] = f"processes are found slower, by /proc: {why}"
            self._undo = undo.pop_all()

    def _open(self, undo: ExitStack, name: str, cost: str, make: Callable[[], T]) -> T | None:
        try:
            source = make()
        except (ProbedeckError, OSError) as error:
            self.missing[name] = f"{cost}: {error}"
            return None
        undo.callback(source.close)  # type: ignore[attr-defined]
        return source

    def close(self) -> None:
        self._undo.close()

    @property
    def home(self) -> int:
        return self._namespaces.home

    @property
    def unreadable(self) -> bool:
        return bool(self._namespaces.refused)

    @property
    def losing(self) -> bool:
        return time.monotonic() < self._losing_until

    @property
    def lost(self) -> int:
        """Events of opened and closed sockets that were lost so far, as a queue was full."""
        return (self._closing.lost if self._closing else 0) + (
            self.events.lost if self.events else 0
        )

    def locate(self, addresses: Array, versions: Array) -> Array:
        found: Array = self._namespaces.locate(addresses, versions)
        return found

    def ask(self, number: int, tuples: Rows[TUPLE]) -> Rows[INFO]:
        if number != self.home:
            return self._namespaces.ask(number, tuples)
        local = (tuples["near"][:, :2] == _LINK_LOCAL).all(axis=1) & (tuples["version"] == 6)
        if not local.any():
            return self._diag.ask(tuples)
        found = np.zeros(len(tuples), INFO)
        for of, device in ((local, self._device), (~local, 0)):
            found[of] = self._diag.ask(tuples[of], device)
        return found

    def ended(self, number: int) -> EndedSockets:
        return self._ended.setdefault(number, EndedSockets())

    def inner(self, tuples: Array) -> tuple[Array, Array]:
        if self._conntrack is None:
            raise PermissionError("connection tracking can't be read")
        return self._conntrack.inner(tuples)

    def search(self, known: Known, inodes: Sequence[int], tgids: Sequence[int]) -> None:
        known.take_search(inodes, *search(tgids))

    def listen(self, known: Known) -> None:
        now = time.monotonic()
        self._take_events(known)
        if self._closing:
            ids, tuples, info = self._closing.read_everywhere()
            if len(ids):
                numbers = self._namespaces.numbers_of(ids)
                for number in np.unique(numbers).tolist():
                    of = numbers == number
                    self.ended(number).take(tuples[of], info[of], now)
        if (lost := self.lost) > self._lost:
            self._lost, self._losing_until = lost, now + _LOSING_S

    def _take_events(self, known: Known) -> None:
        """Take in events, and new namespaces by their first sockets: the walk is later."""
        if self.events is None:
            return
        events = self.events.read()
        known.take_events(events, time.monotonic())
        events = events[::-1]  # The last process of a namespace is likely to live.
        numbers, last = np.unique(events["netns"], return_index=True)
        for number, tgid in zip(numbers.tolist(), events["tgid"][last].tolist(), strict=True):
            if number:
                self._namespaces.saw(number, tgid)

    def begin(self, known: Known) -> None:
        """Find the namespaces, and the holders of the sockets that are open already."""
        self._namespaces.look(_FIRST_S)
        self._look_at_all_holders(known, _FIRST_S)

    def _look_at_all_holders(self, known: Known, most_s: float) -> None:
        before, end = known.passes, time.monotonic() + most_s
        while known.passes == before and time.monotonic() < end and "holders" not in self.missing:
            self._look_at_holders(known, _SLICE_S)

    def look(self, known: Known, *, urgent: bool) -> None:
        """Look for new namespaces and holders, for some milliseconds; the first time for all."""
        if self._is_first:
            self._is_first = False
            self._look_at_all_holders(known, _SECOND_S)
        else:
            self._look_at_holders(known, URGENT_HOLDERS_S if urgent else HOLDERS_S)
        # Before closed sockets are read: only known namespaces have them.
        self._take_events(known)
        self._namespaces.look()
        for number in self._ended.keys() - set(self._namespaces.numbers):
            del self._ended[number]

    def _look_at_holders(self, known: Known, budget_s: float) -> None:
        try:
            rows = self.holders.read(budget_s)
        except OSError as error:
            self.missing["holders"] = f"sockets that are open have no process: {error}"
            return
        known.take_holders(rows, self.holders.passes)
        numbers, first = np.unique(rows["netns"], return_index=True)
        for number, tgid in zip(numbers.tolist(), rows["tgid"][first].tolist(), strict=True):
            if number:
                self._namespaces.saw(number, tgid)


def _listen_to_closing() -> ClosingSockets:
    try:
        return ClosingSockets(everywhere=True)
    except PermissionError:
        return ClosingSockets()
