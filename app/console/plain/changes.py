"""Sentences about the changes from one frame to the next."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from app.console.live.state import Frame
from app.console.plain.tables import busiest
from app.console.screens.overview.model import rates
from app.console.screens.overview.trouble import Trouble
from app.events.folding import EventGroup, fold
from bpf.quantities import age, bit_rate, clock, counted

_MOST = 5
"""Most lines of a kind at a time."""
_TRAFFIC_S = 10.0
_FACTOR = 2.0
"""A larger change of traffic, or of a group of events, gets a line at once."""
_LITTLE = 10_000.0
"""Bits per second; a change below it is no news."""
_SECONDS = 2
"""Cells of the rates."""


@dataclass(slots=True)
class FrameChanges:
    """Compares frames with the lines that it has returned before."""

    _troubles: dict[Hashable, tuple[str, float]] = field(default_factory=dict)
    """Text and time of the begin of each present trouble, by key."""
    _times: dict[tuple[str, str], int] = field(default_factory=dict)
    """Times of each group of events in its last line."""
    _open: set[tuple[str, str]] = field(default_factory=set)
    """Groups of events whose last line says that they go on."""
    _traffic: tuple[float, float, float] = (-math.inf, 0.0, 0.0)
    """Time, and rates in and out, of the last line of traffic."""

    def lines(self, frame: Frame, troubles: Sequence[Trouble], now: float) -> list[str]:
        """Return the lines for a frame; `now` is `time.monotonic()`.

        `troubles` are the frame's, without its events.
        """
        found = self._of_events(frame, {one.events for one in troubles})
        before, present = self._troubles, {one.key: one for one in troubles}
        began = [f"began: {one.timeless}" for key, one in present.items() if key not in before]
        over = [
            f"over after {age(now - since)}: {text}"
            for key, (text, since) in before.items()
            if key not in present
        ]
        # The text at the beginning names a trouble that is over.
        self._troubles = {key: before.get(key, (one.text, now)) for key, one in present.items()}
        few = (*_few(began, "troubles"), *_few(over, "troubles"))
        return [*few, *found, *self._of_traffic(frame, now)]

    def _of_events(self, frame: Frame, told: Collection[tuple[str, str]]) -> list[str]:
        lines = []
        for one in reversed(fold(frame.events)):
            before = self._times.get(one.key, 0)
            if before and one.key in self._open and not one.is_open:
                lines.append(f"over: {_of_event(one)}")
            elif one.times >= max(1, _FACTOR * before) and one.key not in told:
                lines.append(_of_event(one))
            else:
                continue
            self._times[one.key] = one.times
            (self._open.add if one.is_open else self._open.discard)(one.key)
        return _few(lines, "events")

    def _of_traffic(self, frame: Frame, now: float) -> list[str]:
        if not len(frame.pulses.traffic):
            return []
        came, left = (rates(frame.pulses.traffic, way, _SECONDS).bits for way in ("in", "out"))
        at, *before = self._traffic
        same = not (_differ(before[0], came) or _differ(before[1], left))
        if same and (now - at < _TRAFFIC_S or (came, left) == tuple(before)):
            return []
        self._traffic = now, came, left
        return [traffic_line(frame)]


def traffic_line(frame: Frame) -> str:
    """Return the present rates, and the busiest conversation."""
    pulses = frame.pulses
    if not len(pulses.traffic):
        return "no traffic measured yet"
    text = f"in {bit_rate(rates(pulses.traffic, 'in', _SECONDS).bits)}"
    if not pulses.both_ways:
        return text
    text += f", out {bit_rate(rates(pulses.traffic, 'out', _SECONDS).bits)}"
    top = busiest(frame.flows, "conversations")
    text += f", {counted(top.count, 'conversation')}"
    return f"{text}; most: {top.lines[0].split(',')[0]}" if top.lines else text


def _of_event(one: EventGroup) -> str:
    times = f", {one.times} times" if one.times > 1 else ""
    severity = "" if one.severity == "info" else f"{one.severity}: "
    return f"{clock(one.last_ns)} {severity}{one.source}: {one.newest.text}{times}"


def _few(lines: list[str], noun: str) -> list[str]:
    left_out = len(lines) - _MOST
    return [*lines[:_MOST], f"and {left_out} more {noun}: type now"] if left_out > 0 else lines


def _differ(before: float, now: float) -> bool:
    low, high = sorted((before, now))
    return high > _FACTOR * low and high - low > _LITTLE
