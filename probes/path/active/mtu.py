"""The path MTU, and the hop behind which it becomes smaller, by echo requests of several sizes.

A request that is larger than the MTU of a link is dropped there. Most routers report the MTU of the
link then (RFC 1191, RFC 8201). If they do not, sizes are divided until the largest that passes is
found. A router answers to a large request whose TTL ends there, so the path needs no destination
that answers pings.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import numpy as np

from bpf.arrays import Rows
from bpf.attach.interface import Interface
from probes.path.active.echo import SMALLEST, EchoAnswer, EchoEngine, EchoOutcome
from probes.path.records import DESTINATION_HOP, HOP
from probes.path.slots import Destination
from probes.path.traced import MtuStep, PathMtu

TO_DESTINATION = 32
"""TTL of requests to the destination itself."""
_TRIES = 3
_TRY_NS = 450_000_000
_LAST_WAIT_NS = 1_000_000_000
"""Time from the last try of a request until it counts as dropped."""
_SIZES = 8
"""Sizes that are tried at a time."""
_MOST_REPORTS = 8
_SIOCGIFMTU = 0x8921
_MOST_BYTES = 65535

_PATIENCE = 12
"""Windows in which the hop of a router that reported is searched: three seconds."""

Trial = tuple[int, int]
"""TTL and size of a request."""
Answers = dict[Trial, EchoAnswer]


@dataclass(slots=True)
class _Batch:
    """Requests of one step of a search."""

    trials: tuple[Trial, ...]
    answers: Answers = field(default_factory=dict)
    tries: dict[Trial, int] = field(default_factory=dict)
    tried_ns: int = 0
    """When the last request was sent."""

    def due(self, now_ns: int) -> list[Trial]:
        """Return the trials to be sent now: each one up to _TRIES times."""
        if self.tries and now_ns - self.tried_ns < _TRY_NS and min(self._counts()) > 0:
            return []
        fewest = min(self._counts(), default=_TRIES)
        return [
            trial
            for trial in self.trials
            if trial not in self.answers and self.tries.get(trial, 0) == fewest < _TRIES
        ]

    def _counts(self) -> list[int]:
        return [self.tries.get(trial, 0) for trial in self.trials if trial not in self.answers]

    def is_over(self, now_ns: int) -> bool:
        waiting = self._counts()
        spent = all(count >= _TRIES for count in waiting)
        return not waiting or (spent and now_ns - self.tried_ns >= _LAST_WAIT_NS)


Search = Generator[Iterable[Trial], Answers, PathMtu | None]


class MtuSearches:
    """Searches the path MTU of destinations, each once. `poll` sends and receives."""

    def __init__(self, interface: Interface, max_hops: int, key: int) -> None:
        """Open nothing until the first search. `key` is the secret of marks."""
        self._echo = EchoEngine(interface, key)
        self._interface = interface
        self._max_hops = max_hops
        self._searches: dict[Destination, tuple[Search, _Batch]] = {}
        self._results: dict[Destination, PathMtu | None] = {}

    def start(self, destination: Destination) -> None:
        """Begin a search, unless there was one."""
        if destination in self._searches or destination in self._results:
            return
        try:
            largest = interface_mtu(self._interface.name)
        except OSError:
            return  # The interface is gone.
        search = search_mtu(destination, largest, self._max_hops)
        self._searches[destination] = search, _Batch(tuple(next(search)))

    def forget(self, destination: Destination) -> None:
        self._searches.pop(destination, None)
        self._results.pop(destination, None)

    def is_over(self, destination: Destination) -> bool:
        """Whether a search has ended, with or without a result."""
        return destination in self._results

    def is_news(self, destination: Destination, mtu: int) -> bool:
        """Whether a report by a router says more than the search has found or will find."""
        result = self._results.get(destination)
        return destination not in self._searches and (result is None or mtu < result.mtu)

    def result(self, destination: Destination) -> PathMtu | None:
        """Return the path MTU; None before the end of the search, or if nothing answers."""
        return self._results.get(destination)

    def poll(self) -> list[tuple[str, str]]:
        """Take the answers, and send the requests that are due. Never waits.

        Returns severity and text of an event for each search that ended.
        """
        if not self._searches:
            return []
        events = []
        now = time.monotonic_ns()
        for answer in self._echo.answers():
            request = answer.request
            if found := self._searches.get(request.destination):
                found[1].answers.setdefault((request.ttl, request.size), answer)
        for destination, (search, batch) in tuple(self._searches.items()):
            if batch.is_over(now):
                try:
                    batch = _Batch(tuple(search.send(batch.answers)))
                except StopIteration as end:
                    del self._searches[destination]
                    self._results[destination] = end.value
                    words = end.value or "path MTU unknown: no hop answers ICMP echo requests"
                    events.append(("info", f"{destination.text}: {words}"))
                    continue
                self._searches[destination] = search, batch
            self._send(destination, batch, now)
        return events

    def close(self) -> None:
        self._searches.clear()
        self._results.clear()
        self._echo.close()

    def _send(self, destination: Destination, batch: _Batch, now_ns: int) -> None:
        for trial in batch.due(now_ns):
            try:
                self._echo.send(destination, *trial)
            except BlockingIOError:
                return
            except OSError:
                pass  # No route, for example: counts as a request without an answer.
            batch.tries[trial] = batch.tries.get(trial, 0) + 1
            batch.tried_ns = now_ns


def search_mtu(destination: Destination, largest: int, max_hops: int) -> Search:
    """Search a path MTU of at most `largest` bytes. Yields trials and takes their answers.

    Returns None if no hop answers.
    """
    least = SMALLEST[destination.version]
    small = yield [(hop, least) for hop in range(1, max_hops + 1)]
    routers = {
        hop: answer.responder
        for (hop, _), answer in small.items()
        if answer.outcome is EchoOutcome.EXCEEDED
    }
    there = any(answer.outcome is EchoOutcome.REPLY for answer in small.values())
    if not there and not routers:
        return None
    end = TO_DESTINATION if there else max(routers)

    steps: list[MtuStep] = []
    fits, fails = least, largest + 1  # the largest known size that passes, and one that does not
    trying = largest
    for _ in range(_MOST_REPORTS):
        answer = (yield [(end, trying)]).get((end, trying))
        if _passed(answer):
            fits = trying
            break
        fails = trying
        if not answer or not least <= answer.mtu < trying:
            break
        steps.append(_reported(answer, routers))
        fails, trying = answer.mtu + 1, answer.mtu
    silent = fails - fits > 1
    while fails - fits > 1:
        sizes = _between(fits, fails)
        answers = yield [(end, size) for size in sizes]
        passed = [size for size in sizes if _passed(answers.get((end, size)))]
        fits = max([fits, *passed])
        fails = min([fails, *(size for size in sizes if size > fits)])
    if silent:
        hops = [hop for hop in routers if hop <= end]
        answers = yield [(hop, fits + 1) for hop in hops]
        reached = [hop for hop in hops if _passed(answers.get((hop, fits + 1)))]
        steps.append(MtuStep(max(reached, default=0), fits, ""))
    return PathMtu(fits, tuple(steps), None if there else end)


def interface_mtu(name: str) -> int:
    """Return the MTU of an interface, at most 65535. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        found = fcntl.ioctl(opened, _SIOCGIFMTU, struct.pack("16s16x", name.encode()[:15]))
    mtu: int = struct.unpack_from("i", found, 16)[0]
    return min(mtu, _MOST_BYTES)


def _passed(answer: EchoAnswer | None) -> bool:
    """Whether a request came to its end."""
    return answer is not None and answer.outcome is not EchoOutcome.TOO_BIG


def _reported(answer: EchoAnswer, routers: dict[int, bytes]) -> MtuStep:
    known = [hop for hop, responder in routers.items() if responder == answer.responder]
    reporter = Destination(answer.responder, answer.request.destination.version)
    return MtuStep(min(known, default=0), answer.mtu, reporter.text)


def _between(fits: int, fails: int) -> list[int]:
    """Return at most _SIZES sizes that divide what lies between two sizes."""
    apart = fails - fits
    count = min(_SIZES, apart - 1)
    return [fits + apart * i // (count + 1) for i in range(1, count + 1)]


@dataclass(slots=True)
class _Known:
    report: tuple[int, bytes]
    """MTU and router, 16 bytes."""
    windows: int = 0
    result: PathMtu | None = None


class MtuReports:
    """Routers' reports that the flows' own packets are larger than the next link's MTU: the last
    one about each destination, with the hop of its router."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}

    def add(
        self, destination: Destination, report: tuple[int, bytes], rows: Rows[HOP]
    ) -> list[tuple[str, str]]:
        """Take the kernel's last report and the destination's new rows of dtype HOP.

        Returns severity and text of an event if the report is new.
        """
        known = self._known.get(destination.address)
        if known is None or known.report != report:
            known = self._known[destination.address] = _Known(report)
        if known.result:
            return []
        known.windows += 1
        mtu, reporter = known.report
        from_it = (rows["responder"] == np.frombuffer(reporter, "u1")).all(axis=1)
        hops = rows["hop"][from_it & (rows["hop"] < DESTINATION_HOP)]
        if not len(hops) and known.windows < _PATIENCE:
            return []
        by = Destination(reporter, destination.version).text
        known.result = PathMtu(mtu, (MtuStep(min(hops.tolist(), default=0), mtu, by),))
        return [("info", f"{destination.text}: {known.result}")]

    def result(self, destination: Destination) -> PathMtu | None:
        known = self._known.get(destination.address)
        return known.result if known else None

    def forget(self, destination: Destination) -> None:
        self._known.pop(destination.address, None)
