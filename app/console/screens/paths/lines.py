"""A path, a hop, or a hop at two moments, for the cells of its row."""

from __future__ import annotations

from dataclasses import dataclass

from app.console.screens.paths.model import Hop, Summary
from app.console.screens.paths.numbers import Numbers
from widgets.table.rows import Pieces
from widgets.tones import Tone


@dataclass(frozen=True, slots=True)
class PathLine:
    """A path, for the cells of its row."""

    title: str
    summary: Summary
    state: tuple[str, Tone]
    tone: Tone
    """Of most cells."""
    name_tone: Tone


@dataclass(frozen=True, slots=True)
class HopLine:
    """A hop, for the cells of its row."""

    hop: Hop
    host: str
    line: Pieces
    """Its time line."""
    destination: str = ""
    """Name of the path's destination, in a table of several paths."""

    @property
    def address(self) -> str:
        """Of the first router; empty if none answered."""
        return self.hop.routers[0].address if self.hop.routers else ""

    @property
    def is_silent(self) -> bool:
        """Whether no router answered in the last minute."""
        return not self.hop.numbers.answered

    @property
    def time_tone(self) -> Tone:
        return self.queue_tone(Tone.MUTED if self.is_silent else Tone.NORMAL)

    @property
    def line_tone(self) -> Tone:
        return self.queue_tone(Tone.MUTED if self.hop.forgiven else Tone.ACCENT)

    def queue_tone(self, other: Tone) -> Tone:
        return Tone.WARN if self.hop.queue_ns else other


@dataclass(frozen=True, slots=True)
class HopChange:
    """A hop at two moments, for the cells of its row."""

    number: int
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
