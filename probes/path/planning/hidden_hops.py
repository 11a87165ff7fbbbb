"""Hops beyond the last router that answers probes: what the finder knows of them, and why none
answers."""

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
_ANSWERED_NS = 1_000_000_000
"""All answers to a request have come after so long."""
_MEASURE_NS = 950_000_000
"""Time between two requests to a hop that answers them: a little under 1 s, because polls come
every 0.25 s."""
_PAUSES_NS = (_MEASURE_NS, _MEASURE_NS, 10_000_000_000, 60_000_000_000)
"""Time between two requests to a hop that does not answer: the first ones may have been lost."""
_HEARD_NS = 3_000_000_000
_HIDDEN = 2
"""Fewer hidden routers than this may be routers that do not answer."""


class HopFinder(Protocol):
    """Sends a few extra requests with limited TTLs."""

    def ask(self, destination: Destination, hops: Iterable[int]) -> None:
        """Send a request to each hop soon."""

    def answers(self) -> list[FinderAnswer]:
        """Return the answers since the last call."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Known facts about the path's end."""

    length: int
    """The farthest router that answers probes, those of UDP if applications send UDP; 0: none."""
    end: int
    """A hop at which the destination answered probes, 0 if it did not. It may be nearer: probes of
    most flows get no answer from it."""
    back: int
    """Routers on the way back, 0 if unknown."""
    heard_ns: int
    """When the last packet from the destination came, 0 if none."""
    active: bool
    """Whether the application sends."""


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
        self._searched = 0
        """Hops that were asked since the length is the same."""
        self._measured_ns = 0
        self.asked = 0
        """Requests to the finder."""
        self.routers = 0
        """Hops at which a router answered the finder."""
        self.end = 0
        """The nearest hop at which the destination answered the finder, 0: none."""
        self._ended = False
        """Whether the path seems to end behind the last router."""
        self.note = ""
        """The reason why packets pass the last router and probes do not; empty if unknown."""

    @property
    def measured(self) -> int:
        """Bits of the hops at which only the finder is answered: by a router or the destination."""
        first = self._length + 1
        if self._ended or (self._length and self.end == first):
            return 0
        return (self.routers | 1 << self.end) >> first << first

    def answered(self, hop: int, is_destination: bool) -> None:
        """Take in an answer to the finder."""
        if is_destination:
            self.end = min(self.end or hop, hop)
            self.routers &= mask_within(1, self.end - 1)
            return
        if hop >= self.end > 0:
            # The path has become longer.
            self.end, self._searched = 0, mask_within(1, hop)
        self.routers |= 1 << hop

    def decide(self, frontier: Frontier, now_ns: int) -> None:
        """Ask the finder if needed, and update the note."""
        if frontier.active and not self._since_ns:
            self._since_ns = now_ns
        if frontier.length != self._length:
            if frontier.length < self._length or frontier.length >= self.end:
                self.routers = self.end = 0  # This was another path.
            self._length, self._since_ns = frontier.length, now_ns
            self._rounds = self._searched = 0
        heard = frontier.heard_ns > now_ns - _HEARD_NS
        at_end = frontier.length + 1 in (frontier.end, self.end)
        as_long = heard and frontier.back == frontier.length > 0
        if as_long or (at_end and frontier.length):
            self.note, self._ended = "", True
            return
        self._ended = False
        # Only the finder's own requests tell how many routers are there: the way back may be
        # longer, and the destination may answer few of the probes that reach it.
        silent = mask_within(frontier.length + 1, self.end - 1) & ~self.routers
        hides = silent.bit_count() >= _HIDDEN
        if frontier.active and now_ns - self._since_ns >= _SETTLED_NS:
            self._ask(frontier, hides, now_ns)
        # Packets before this may be the destination's answers to the finder.
        passes = heard and frontier.heard_ns > self._asked_ns + _ANSWERED_NS
        if not hides:
            self.note = ""
        elif passes and self._rounds > 1:
            where = f"hop {frontier.length}" if frontier.length else "this host"
            self.note = f"NAT or firewall behind {where}: packets pass, probes do not"

    def _ask(self, frontier: Frontier, hides: bool, now_ns: int) -> None:
        pause_ns = _PAUSES_NS[min(self._rounds, len(_PAUSES_NS)) - 1]
        farthest = max(frontier.length, self.routers.bit_length() - 1)
        last = self.end or frontier.end or max(farthest + AHEAD, frontier.back + 1)
        hops = mask_within(frontier.length + 1, min(last, MAX_HOPS))
        if not self._rounds or now_ns - self._asked_ns >= pause_ns:
            self._asked_ns, self._rounds = now_ns, self._rounds + 1
        elif hops & ~self._searched:
            hops &= ~self._searched
        else:
            due = now_ns - self._measured_ns >= _MEASURE_NS
            # If routers hide, answers of the destination would look like packets of the flow.
            hops &= (self.routers | (0 if hides else 1 << self.end)) if due else 0
        if hops:
            self._measured_ns = now_ns
            self._searched |= hops
            self._finder.ask(self._destination, hops_of(hops))
            self.asked += hops.bit_count()
