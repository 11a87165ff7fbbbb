"""One sentence about something that is wrong, the kinds of them, and those about outputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from probes.output_control import SOURCE, OutputState, OutputStatus
from widgets.format import age, counted, si
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


def output_troubles(outputs: Iterable[OutputStatus], utc_ns: int) -> Iterator[Trouble]:
    """Yield a sentence for each output that fails at `utc_ns`; it leads to the list of outputs."""
    for one in outputs:
        if one.state is not OutputState.FAILING:
            continue
        lasting = f"for {age(max(0, utc_ns - one.since_utc_ns) / 1e9)}"
        clauses = [f"{_records(one.lost)} undelivered", lasting] if one.lost else [lasting]
        if one.queued:
            clauses.append(f"{_records(one.queued)} waiting")
        tone = Tone.BAD if one.lost else Tone.WARN
        text = f"Output {one.name} fails: {one.reason}"
        about = SOURCE, one.name
        yield Trouble(
            Kind.UNDELIVERED, one.lost, text, tone, "", None, tuple(clauses), about, about,
            lasting, "output.list",
        )  # fmt: skip


def _records(count: int) -> str:
    return counted(count, "record") if count < 1000 else f"{si(count)} records"
