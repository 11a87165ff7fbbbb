"""An action as a policy's text has it: `drop for 10m`, `limit 1kpps`, `dry mirror eth1 share 20%`.

[dry] drop | limit RATE | mirror INTERFACE [out | culprit] [for TIME] [share SHARE]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from bpf.errors import TextError
from bpf.quantities import RATES, SHARES, TIMES, quantity, shown

DRY, CULPRIT = "dry", "culprit"
FORM = "an action is drop, limit 1000pps or mirror IFACE; then out or culprit, for 10m, share 80%"
USUAL_SECONDS = 300.0
"""Longest time of an action that names none."""
USUAL_SHARE = 0.5
"""Largest share of the traffic of an action that neither names one nor a host, network or port."""
MAX_SECONDS = 86400.0
_MAX_NAME = 15
"""Characters of an interface's name (IFNAMSIZ)."""
_PPS = RATES | {f"{prefix}pps": scale for prefix, scale in (("", 1.0), ("k", 1e3), ("M", 1e6))}


class ActionKind(IntEnum):
    """The fate of the selected packets; as `enum kind` of act.c."""

    DROP = 1
    LIMIT = 2
    MIRROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


WORDS = {kind.word: kind for kind in ActionKind}


def is_action(text: str) -> bool:
    """Whether an entry of a policy's `run` is an action, and no name of an application."""
    return text.split(maxsplit=1)[:1] in [[word] for word in (DRY, *WORDS)]


@dataclass(frozen=True, slots=True)
class PacketAction:
    """An action and its limits."""

    kind: ActionKind
    rate: float = 0.0
    """Packets a second that a limit lets pass."""
    interface: str = ""
    """Name of the interface that gets the copies."""
    outgoing: bool = False
    """Whether it acts on outgoing packets, and not on incoming ones."""
    culprit: bool = False
    """Whether it acts on the packets that the finding of its policy names."""
    dry: bool = False
    """Whether it only counts the packets that it would act on."""
    seconds: float = USUAL_SECONDS
    """Longest time after which it ends."""
    share: float = 0.0
    """Largest share of the hook's packets, 0 to 1; beyond it ends. 0: the usual one."""

    @classmethod
    def parse(cls, text: str) -> PacketAction:
        """Parse an action. Raises TextError with the column."""
        words = ActionWords(text, FORM)
        dry = words.take(DRY)
        kind = WORDS.get(words.next("drop, limit or mirror"))
        if kind is None:
            raise words.wrong("is no action")
        rate, interface = 0.0, ""
        if kind is ActionKind.LIMIT:
            rate = words.amount("a rate, such as 1000pps", _PPS)
        elif kind is ActionKind.MIRROR:
            interface = words.next("the interface that gets the copies")
            if len(interface) > _MAX_NAME or "/" in interface:
                raise words.wrong("is no name of an interface")
        outgoing = words.take("out")
        culprit = not outgoing and words.take(CULPRIT)
        seconds, share = USUAL_SECONDS, 0.0
        if words.take("for"):
            seconds = words.amount("a time, such as 10m", TIMES)
            if seconds > MAX_SECONDS:
                raise words.wrong("is longer than a day")
        if words.take("share"):
            share = words.amount("a share, such as 80%", SHARES)
            if share > 1:
                raise words.wrong("is more than all traffic")
        words.end()
        return cls(kind, rate, interface, outgoing, culprit, dry, seconds, share)

    @property
    def deed(self) -> str:
        """The action in a sentence: `limits to 1000 packets/s`."""
        if self.kind is ActionKind.LIMIT:
            return f"limits to {self.rate:.10g} packets/s"
        return f"mirrors to {self.interface}" if self.interface else "drops"

    @property
    def done(self) -> str:
        """The effect on one packet, in the past."""
        return "mirrored" if self.kind is ActionKind.MIRROR else "dropped"


class ActionWords:
    """The words of an action, from the left."""

    def __init__(self, text: str, form: str) -> None:
        """`form` is the hint of a mistake."""
        self._text, self._form = text, form
        self._words = text.split()
        self._at = 0
        """Words that were taken."""

    @property
    def is_over(self) -> bool:
        return self._at == len(self._words)

    def take(self, word: str) -> bool:
        """Whether the next word is this one, which is then taken."""
        found = self._words[self._at : self._at + 1] == [word]
        self._at += found
        return found

    def next(self, wanted: str) -> str:
        """Take the next word. Raises TextError without one."""
        if self.is_over:
            raise TextError(
                f"{wanted} is missing", self._text, len(self._text) + 1, hint=self._form
            )
        self._at += 1
        return self._words[self._at - 1]

    def amount(self, wanted: str, units: dict[str, float]) -> float:
        """Take a quantity above 0."""
        word = self.next(wanted)
        try:
            value = quantity(word, units)
        except TextError as error:
            raise self.wrong(f"is not {wanted}: {error.problem}") from None
        if not value:
            raise self.wrong("is zero")
        return value

    def wrong(self, problem: str) -> TextError:
        """Return the mistake of the last word."""
        column = sum(map(len, self._words[: self._at - 1])) + self._at
        return TextError(
            f"{shown(self._words[self._at - 1])} {problem}", self._text, column, hint=self._form
        )

    def end(self) -> None:
        if self._at < len(self._words):
            self._at += 1
            raise self.wrong("does not belong to an action")


def action_of(run: Sequence[str]) -> PacketAction | None:
    """Return the action among the entries of a policy's `run`; None without one."""
    return next((PacketAction.parse(text) for text in run if is_action(text)), None)
