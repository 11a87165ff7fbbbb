"""A capture as a policy's text has it: `capture 10s`, `capture 30s culprit`.

capture [TIME] [culprit]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bpf.quantities import TIMES
from probes.monitor.actions.action import CULPRIT, ActionWords, is_action

CAPTURE = "capture"
USUAL_SECONDS = 10.0
"""Seconds before its end that a capture has, unless the caller names others."""
MOST_SECONDS = 3600.0
_FORM = "a capture is capture 10s or capture 10s culprit"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The packets that a policy has written to a file when it becomes active."""

    seconds: float = USUAL_SECONDS
    """Before that."""
    culprit: bool = False
    """Whether it has only the packets that the finding of its policy names."""

    @classmethod
    def parse(cls, text: str) -> CaptureRequest:
        """Parse a capture. Raises TextError with the column."""
        words, seconds = ActionWords(text, _FORM), USUAL_SECONDS
        words.next(CAPTURE)
        culprit = words.take(CULPRIT)
        if not culprit and not words.is_over:
            seconds = words.amount("a time, such as 10s", TIMES)
            if seconds > MOST_SECONDS:
                raise words.wrong("is longer than an hour")
            culprit = words.take(CULPRIT)
        words.end()
        return cls(seconds, culprit)


def is_capture(text: str) -> bool:
    """Whether an entry of a policy's `run` is a capture."""
    return text.split(maxsplit=1)[:1] == [CAPTURE]


def is_of_packets(text: str) -> bool:
    """Whether an entry of a policy's `run` is an action or a capture, and no name."""
    return is_action(text) or is_capture(text)


def capture_of(run: Sequence[str]) -> CaptureRequest | None:
    """Return the capture among the entries of a policy's `run`; None without one."""
    return next((CaptureRequest.parse(text) for text in run if is_capture(text)), None)
