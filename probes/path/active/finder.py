"""Finds and measures the hops at which a router answers, by ICMP echo requests with a limited TTL.

Address translation and firewalls drop guarded UDP probes, and whole ones might reach the
application. The finder's requests may reach the destination without harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bpf.attach.interface import Interface
from probes.path.active.echo import EchoEngine, EchoOutcome
from probes.path.slots import Destination

_MOST_ASKED = 4096


@dataclass(frozen=True, slots=True)
class FinderAnswer:
    """The end of a request: an answer, or none in time."""

    destination: Destination
    ttl: int
    is_destination: bool
    """Whether the destination itself answered, else a router."""
    responder: bytes
    """16 bytes, as Destination.address."""
    sent_ns: int
    """CLOCK_MONOTONIC, as `received_ns`."""
    received_ns: int
    """0: no answer came in time."""


class Finder:
    """Asks hops of destinations, each once for a call of `ask`."""

    def __init__(self, interface: Interface, key: int) -> None:
        """Open nothing until the first hop is asked. `key` is the secret of marks."""
        self._echo = EchoEngine(interface, key)
        self._asked: dict[tuple[Destination, int], None] = {}
        self._closed = False
        self.failure = ""
        """Why no request can be sent, such as a missing permission; empty if requests are sent."""

    def ask(self, destination: Destination, hops: Iterable[int]) -> None:
        """Send a request to each hop (TTL) soon. A hop that still waits is not asked twice."""
        if self._closed:
            return
        for hop in hops:
            if len(self._asked) < _MOST_ASKED:
                self._asked[destination, hop] = None

    def answers(self) -> list[FinderAnswer]:
        """Send the requests that are due, and return the ended ones since the last call.

        Errors of sending skip the request: `failure` has the last one. A router that refuses the
        request is no hop: it does so at every TTL behind its own.
        """
        self._send()
        ended = [
            (each.request, each.is_destination, each.responder, each.received_ns)
            for each in self._echo.answers()
            if each.is_destination or each.outcome is EchoOutcome.EXCEEDED
        ]
        ended += [(request, False, bytes(16), 0) for request in self._echo.expired]
        return [
            FinderAnswer(of.destination, of.ttl, at_end, responder, of.sent_ns, received_ns)
            for of, at_end, responder, received_ns in ended
        ]

    def close(self) -> None:
        self._closed = True
        self._asked.clear()
        self._echo.close()

    def _send(self) -> None:
        while self._asked:
            destination, hop = next(iter(self._asked))
            try:
                self._echo.send(destination, hop)
                self.failure = ""
            except BlockingIOError:
                return
            except OSError as error:
                self.failure = str(error.strerror)
            del self._asked[destination, hop]
