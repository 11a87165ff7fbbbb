"""Outputs as front ends see them: their state, and how one is added or removed.

The module loads no numpy: the command line and the settings import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from bpf.errors import UsageError

SOURCE = "output"
"""Source of the events about outputs; their subject is the output's name."""


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """A wanted output: its URL, which may hold credentials, and further options."""

    url: str = field(repr=False)
    """`ipfix://collector:4739?transport=tcp`."""
    name: str = ""
    """Empty: the URL's option `name`, or else its scheme, numbered if that is taken."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


class OutputState(StrEnum):
    STARTING = "starting"
    DELIVERING = "delivering"
    FAILING = "failing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """An output of a run. Every record of it is delivered, undelivered or queued."""

    name: str
    url: str
    """Without credentials."""
    state: OutputState
    reason: str
    """Why it fails, or ended; empty while it delivers."""
    since_utc_ns: int
    """Start of this state."""
    queued: int
    """Records that wait."""
    queued_bytes: int
    delivered: int
    """Records."""
    undelivered: Mapping[str, int]
    """Records that the receiver never gets, by reason: `queue full`, `refused`, `ended`."""
    retries: int
    """Deliveries that were tried again."""

    @property
    def lost(self) -> int:
        """Records that the receiver never gets."""
        return sum(self.undelivered.values())

    def __str__(self) -> str:
        """Return the summary at the end of a run."""
        why = ", ".join(f"{count} {reason}" for reason, count in self.undelivered.items())
        lost = f"{self.lost} undelivered" + (f" ({why})" if why else "")
        return f"output {self.name}: {self.delivered} records delivered, {lost}"


class OutputControl(Protocol):
    """The outputs of a controller. Any thread may call a method."""

    def status(self) -> tuple[OutputStatus, ...]:
        """Return all outputs, oldest first, with those that ended."""

    def add(self, config: OutputConfig) -> OutputStatus:
        """Start an output. Raises UsageError for a mistake in `config`, or if its name is taken."""

    def remove(self, name: str) -> OutputStatus:
        """End an output, after some seconds for the records that wait.

        Raises UsageError if it is unknown.
        """

    def close(self) -> None:
        """End every output."""


class NoOutputs:
    """The `OutputControl` of a controller that delivers nothing."""

    def status(self) -> tuple[OutputStatus, ...]:
        return ()

    def add(self, config: OutputConfig) -> OutputStatus:
        raise UsageError("this controller has no outputs")

    def remove(self, name: str) -> OutputStatus:
        raise UsageError(f"no output {name!r}")

    def close(self) -> None:
        """Nothing runs."""
