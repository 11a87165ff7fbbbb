"""A path, a hop, or a hop at two moments, for the cells of its row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.console.screens.paths.hop import Hop, PathKey, Summary, methods_text
from app.console.screens.paths.numbers import Numbers
from widgets.bars import gauge
from widgets.table.rows import Pieces
from widgets.tones import Tone

BAR = 8
"""Cells of the bar of a hop."""
_NOTABLE = 0.05
"""Least share of a path's round trip that a notable hop adds."""
LITTLE = 0.0001
"""Seconds that no operator looks for."""


@dataclass(frozen=True, slots=True)
class ListedPath:
    """A row of the list."""

    key: PathKey
    depth: int = 0
    """Depth below its destination."""
    folds: int = 0
    """Number of flows that it stands for; 0: none."""
    is_open: bool = False
    """Whether those flows are listed below it."""
    about: str = ""
    """The number of ways of a destination, or the branch of a way."""


@dataclass(frozen=True, slots=True)
class PathLine:
    """A path, for the cells of its row."""

    title: str
    summary: Summary
    state: tuple[str, Tone]
    tone: Tone
    """Of most cells."""
    name_tone: Tone
    host: str
    """The host of the fleet that traces it; empty unless several hosts are shown."""

    @property
    def methods(self) -> str:
        return methods_text(self.summary.methods)


@dataclass(frozen=True, slots=True)
class HopLine:
    """A hop, for the cells of its row."""

    hop: Hop
    host: str
    line: Pieces
    """Its time line."""
    destination: str = ""
    """Name of the path's destination, in a table of several paths."""
    end: str = ""
    """Address of the destination, if the hop is the destination."""
    share: float = math.nan
    """Share of the path's round trip that the hop adds, 0 to 1."""
    node: str = ""
    """The host of the fleet that traces it, in a table of several hosts."""

    @property
    def bar(self) -> Pieces:
        """Its share as a bar."""
        (text, _), *_ = gauge(self.share, BAR)
        return ((text, self.queue_tone(Tone.ACCENT)),)

    @property
    def adds_tone(self) -> Tone:
        """Emphasis of the delay that the hop adds."""
        return self.queue_tone(Tone.NORMAL if is_notable(self.hop, self.share) else Tone.MUTED)

    @property
    def address(self) -> str:
        """Of the destination, or of the first router; empty if none answered."""
        return self.end or (self.hop.routers[0].address if self.hop.routers else "")

    @property
    def is_silent(self) -> bool:
        """Whether no router answered in the last minute, or no round trip to the end is known."""
        return not self.hop.numbers.answered

    @property
    def is_unknown_end(self) -> bool:
        """Whether it is the destination, and nothing tells its round trip."""
        return self.hop.is_end and not self.hop.numbers.sent

    @property
    def host_tone(self) -> Tone:
        if self.hop.is_end:
            return Tone.ACCENT
        return Tone.MUTED if self.is_silent else self.queue_tone(Tone.NORMAL)

    @property
    def time_tone(self) -> Tone:
        return self.queue_tone(Tone.MUTED if self.is_silent else Tone.NORMAL)

    @property
    def line_tone(self) -> Tone:
        return self.queue_tone(Tone.MUTED if self.hop.forgiven else Tone.ACCENT)

    def queue_tone(self, other: Tone) -> Tone:
        return Tone.WARN if self.hop.queue_ns else other


def is_notable(hop: Hop, share: float) -> bool:
    """Whether a hop adds much: more than a little, and a `share` of its path's round trip."""
    return hop.adds >= LITTLE and share >= _NOTABLE


@dataclass(frozen=True, slots=True)
class HopChange:
    """A hop at two moments, for the cells of its row."""

    number: int
    ttl: int
    """0: unknown."""
    was: Numbers
    now: Numbers
    host_before: str
    host_now: str

    @property
    def change(self) -> float:
        """Seconds that the median grew by, or NaN."""
        return self.now.median - self.was.median

    @property
    def moved(self) -> bool:
        """Whether another router answers."""
        return self.host_before != self.host_now
