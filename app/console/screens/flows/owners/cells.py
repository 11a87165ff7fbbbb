"""The owner and the socket of a row, for its cells and for sentences about it."""

from __future__ import annotations

from typing import Any

from app.tape.named_state import StateValues
from probes.sockets.records import OWNER_TEXTS, By, Limit, Owned, Reason
from widgets.tones import Tone

_REASONS, _BY, _LIMITS = tuple(Reason), tuple(By), tuple(Limit)
_CALM = (
    Limit.UNKNOWN, Limit.IDLE, Limit.APPLICATION, Limit.PACED, Limit.BANDWIDTH, Limit.SENDER,
)  # fmt: skip
"""Limits that are nobody's trouble."""


class RowOwner:
    """The owner and the socket of a row; texts are empty, and numbers 0 or NaN, if unknown."""

    __slots__ = ("owner", "reason", "socket")

    def __init__(self, owned: Owned, place: int) -> None:
        """`place` is the row's place in the sockets; -1: none."""
        self.socket: Any = owned.sockets[place] if place >= 0 else None
        """Of dtype LIVE_SOCKET; None if no socket is known for the row."""
        at = owned.owner_of_socket(place)
        self.owner: Any = owned.owners[at] if at < len(owned.owners) else None
        """Of dtype OWNER; None if nobody owns the row, or the owner is unknown."""
        self.reason = None if self.socket is None else _REASONS[self.socket["reason"]]
        """None if the row was not asked for yet."""

    def text(self, column: str) -> str:
        """The text of a column of OWNER_TEXTS."""
        if self.owner is None:
            return ""
        found: bytes = self.owner[OWNER_TEXTS[column]]
        return found.decode(errors="replace")

    @property
    def name(self) -> str:
        """Name of the process; else of its pod, container or unit."""
        return next(filter(None, map(self.text, ("process", "pod", "container", "unit"))), "")

    @property
    def place(self) -> str:
        """The pod, container or unit of the process: the first that is known."""
        return next(filter(None, map(self.text, ("pod", "container", "unit"))), "")

    @property
    def states(self) -> StateValues:
        """Values of named states."""
        names = ("process", "user", "unit", "container", "pod")
        return {
            **{f"flow.{name}": self.text(name) for name in names},
            "flow.pid": self.pid,
            "flow.limit": self.limited.label,
        }

    @property
    def process(self) -> str:
        if self.owner is not None:
            others = int(self.socket["holders"]) - 1
            name = self.text("process") or f"({self.name})"
            return f"{name}+{others}" if others > 0 else name
        if self.reason in (None, Reason.OWNED):
            return ""
        return f"({self.reason.label})"

    @property
    def pid(self) -> str:
        return str(self.owner["tgid"] or "") if self.owner is not None else ""

    @property
    def by(self) -> By:
        return _BY[self.socket["by"]] if self.owner is not None else By.NONE

    @property
    def limited(self) -> Limit:
        return _LIMITS[self.socket["limit"]] if self.socket is not None else Limit.UNKNOWN

    @property
    def limit_tone(self) -> Tone:
        """Tone of the limit: trouble of somebody else stands out."""
        return Tone.MUTED if self.limited in _CALM else Tone.WARN
