"""Hops beyond the last router that answers: what the finder knows of them, and why none answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from probes.path.active.finder import FinderAnswer
from probes.path.options import MAX_HOPS
from probes.path.probing_plan import AHEAD, hops_of, mask_within
from probes.path.slots import Destination

_SETTLED_NS = 1_000_000_000
"""The finder is asked if the last router is the same for so long."""
_PAUSES_NS = (10_000_000_000, 60_000_000_000)
"""Time before the second request and before all later ones."""
_SURE_NS = 5_000_000_000
"""The reason is noted after so long."""
_HEARD_NS = 3_000_000_000
_HIDDEN = 2
"""Fewer hidden routers than this may be routers that do not answer."""
_HIDDEN_BACK = 3
"""The same by the TTL of the way back, which may be longer."""


class HopFinder(Protocol):
    """Sends a few requests of its own with limited TTLs."""

    def ask(self, destination: Destination, hops: Iterable[int]) -> None:
        """Send a request to each hop soon."""

    def answers(self) -> list[FinderAnswer]:
        """Return the answers since the last call."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """What is known of the path's end."""

    length: int
    """The farthest router that answers probes."""
    end: int
    """The hop at which the destination answered probes, 0 if it did not."""
    back: int
    """Routers on the way back, 0 if unknown."""
    heard_ns: int
    """When the last packet from the destination came, 0 if none."""
    active: bool
    """Whether the application sends."""
    tried: bool
    """Whether guarded and whole probes to the next hops stayed unanswered."""


class HiddenHops:
    """Asks the finder about one destination if its path seems to go on behind the last router."""

    def __init__(self, destination: Destination, finder: HopFinder) -> None:
        self._destination = destination
        self._finder = finder
        self._length = 0
        self._since_ns = 0
        """The length is the same since then."""
        self._asked_ns = 0
        self._rounds = 0
        self.asked = 0
        """Requests to the finder."""
        self.routers = 0
        """Hops at which a router answered the finder, or that are nearer than the destination."""
        self.end = 0
        """The nearest hop at which the destination answered the finder, 0: none."""
        self.note = ""
        """The reason why packets pass the last router and probes do not; empty if unknown."""

    def answered(self, hop: int, is_destination: bool) -> None:
        """Take in an answer to the finder."""
        if is_destination:
            self.end = min(self.end or hop, hop)
        elif not self.end or hop < self.end:
            self.routers |= 1 << hop
        if self.end:
            self.routers = mask_within(1, self.end - 1)

    def decide(self, frontier: Frontier, now_ns: int) -> None:
        """Ask the finder if needed, and update the note."""
        if frontier.length != self._length:
            if frontier.length < self._length or frontier.length >= self.end:
                self.routers = self.end = 0  # This was another path.
            self._length, self._since_ns, self._rounds = frontier.length, now_ns, 0
        settled_ns = now_ns - self._since_ns
        heard = frontier.heard_ns > now_ns - _HEARD_NS
        end = frontier.end or self.end
        complete = end == frontier.length + 1 or (heard and frontier.back == frontier.length)
        if complete or not frontier.length:
            self.note = ""
            return
        if frontier.active and settled_ns >= _SETTLED_NS and not frontier.end:
            self._ask(frontier, now_ns)
        hidden, least = frontier.back - frontier.length, _HIDDEN_BACK
        if end:
            hidden, least = end - 1 - frontier.length, _HIDDEN
        tried = frontier.tried or self._rounds > 1
        if hidden < least:
            self.note = ""
        elif heard and tried and settled_ns >= _SURE_NS:
            self.note = f"NAT or firewall behind hop {frontier.length}: packets pass, probes do not"

    def _ask(self, frontier: Frontier, now_ns: int) -> None:
        if self._rounds and now_ns - self._asked_ns < _PAUSES_NS[self._rounds > 1]:
            return
        last = self.end or max(frontier.length + AHEAD, frontier.back + 1)
        hops = hops_of(mask_within(frontier.length + 1, min(last, MAX_HOPS)))
        self._finder.ask(self._destination, hops)
        self.asked += len(hops)
        self._asked_ns, self._rounds = now_ns, self._rounds + 1
