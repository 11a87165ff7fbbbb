"""One sentence about something that is wrong, and the kinds of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

from widgets.tones import Tone


class Kind(IntEnum):
    """Kinds of trouble, the largest first."""

    ENDED = 0
    LOSES = 1
    LOSS = 2
    OVERLOAD = 3
    QUEUE = 4
    SILENT = 5
    UNDELIVERED = 6
    ERROR = 7
    FIRES = 8
    WARNING = 9
    LIMITED = 10
    STRAIN = 11
    PAST = 12


@dataclass(frozen=True, slots=True)
class Trouble:
    """One sentence, and the row of another screen that it is about, or a command."""

    kind: int
    """One of Kind."""
    size: float
    """Size within its kind."""
    text: str
    tone: Tone
    screen: str
    row: Hashable | None
    """Key of the row, for the screen's `point_at`."""
    clauses: tuple[str, ...] = ()
    """Further parts of the sentence, the most important first: shown if there is room."""
    about: Hashable = None
    """Subject, if the row does not identify it; the numbers may change, the subject stays."""
    events: tuple[str, str] = ("", "")
    """Source and subject of events that this sentence replaces."""
    lasting: str = ""
    """The clause about the time since its beginning."""
    command: str = ""
    """The command to which it leads if no screen has a row about it."""

    @property
    def key(self) -> Hashable:
        """Identity of the sentence from one frame to the next."""
        return self.kind, self.row if self.about is None else self.about

    def sentence(self, cells: int) -> str:
        """Return the text, and the clauses for which `cells` characters have room."""
        text = self.text
        for clause in self.clauses:
            if len(text) + 2 + len(clause) <= cells:
                text += f", {clause}"
        return text

    @property
    def timeless(self) -> str:
        """The whole sentence without the time since its beginning."""
        return ", ".join((self.text, *(one for one in self.clauses if one != self.lasting)))

    @property
    def is_present(self) -> bool:
        """Whether it goes on."""
        return self.kind != Kind.PAST
