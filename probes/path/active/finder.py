"""Finds the hops at which a router answers, by ICMP echo requests with a limited TTL.

Behind address translation the probes of an application's UDP flow cannot tell where the path
ends. The finder's requests may reach the destination without harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probes.path.active.echo import EchoEngine
from probes.path.slots import Destination

_MOST_ASKED = 4096


@dataclass(frozen=True, slots=True)
class FinderAnswer:
    destination: Destination
    ttl: int
    is_destination: bool
    """Whether the destination itself answered, else a router."""
    responder: bytes
    """16 bytes, as Destination.address."""


class Finder:
    """Asks hops of destinations, each once for a call of `ask`."""

    def __init__(self, interface: str, key: int) -> None:
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
        """Send the requests that are due, and return the answers since the last call.

        Errors of sending skip the request: `failure` has the last one.
        """
        self._send()
        return [
            FinderAnswer(
                answer.request.destination,
                answer.request.ttl,
                answer.is_destination,
                answer.responder,
            )
            for answer in self._echo.answers()
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
