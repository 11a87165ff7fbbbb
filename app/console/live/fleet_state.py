"""The present of the chosen hosts of a fleet: a LiveState a host, merged into one frame."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from app.console.live.flows import Focus, salt_of
from app.console.live.merged import events_of, merged
from app.console.live.state import Frame, HostFrame, LiveState
from app.fleet.plane import ChosenHosts
from probes.snapshot import Event, Snapshot

_CLOCK_STEP_NS = 20_000_000
"""Changes of a clock that merged frames follow."""
_TOGETHER_S = 0.2
"""Windows of several hosts that arrive within this time are one update of the screen."""


@dataclass(slots=True)
class FleetState:
    """As LiveState. A single chosen host has its own frames; those of several are merged."""

    hosts: ChosenHosts
    _states: dict[str, LiveState] = field(default_factory=dict)
    """By name; replaced, not changed."""
    _own: LiveState = field(default_factory=LiveState)
    """Events about the fleet."""
    _shifts: dict[str, int] = field(default_factory=dict)
    """`shift_ns` of each host: small changes would make its flows look new."""
    _last: tuple[object, Frame | None] = (None, None)
    """The last merged frame, and what it was made of."""

    def __post_init__(self) -> None:
        self.choose()

    def choose(self) -> None:
        """Begin anew with the chosen hosts; of several, those that were there keep their past."""
        several = len(self.hosts.chosen) > 1 and len(self._states) > 1
        before = self._states if several else {}
        self._states = {name: before.get(name) or LiveState() for name in self.hosts.chosen}

    @property
    def last_at(self) -> float:
        """Arrival of the last window, `time.monotonic()`."""
        return max(state.last_at for state in self._states.values())

    @property
    def last(self) -> Snapshot | None:
        """The last window of any host."""
        return max(self._states.values(), key=lambda state: state.last_at).last

    def focus_flows(self, focus: Focus) -> None:
        for host, state in self._states.items():
            several = len(self._states) > 1
            own = replace(focus, ids=focus.ids ^ np.uint64(salt_of(host))) if several else focus
            state.focus_flows(own)

    def take_of(self, host: str, item: Snapshot | Event) -> None:
        """Add an item of a host; with an empty name, an event about the fleet."""
        state = self._states.get(host) if host else self._own
        if state is not None:
            state.take(item)

    def take(self, item: Snapshot | Event) -> None:
        """Do nothing: `take_of` has the item already."""

    def shown_after(self, item: Snapshot | Event) -> float:
        """Return the seconds until screens should show an item; infinite if another one follows."""
        after = max(state.shown_after(item) for state in self._states.values())
        return after if len(self._states) == 1 or math.isinf(after) else max(after, _TOGETHER_S)

    def frame(self) -> Frame:
        """Return the present frame; without the hosts that are lost, if several are chosen."""
        states = {one.name: one for one in self.hosts.states()}
        own = self._own.frame().events
        if len(self._states) == 1:
            (frame,) = (state.frame() for state in self._states.values())
            return replace(frame, events=_newest_first(own, frame.events)) if own else frame
        parts = [
            self._part(name, state.frame())
            for name, state in self._states.items()
            if states[name].state.counts
        ]
        missing = tuple(name for name in self._states if not states[name].state.counts)
        # The last events of a missing host tell why it is missing.
        own = _newest_first(
            own, *(events_of(self._states[name].frame().events, name) for name in missing)
        )
        current = self.hosts.current
        made_of = (missing, current, own, *(_identity(part) for part in parts))
        if self._last[0] == made_of and self._last[1] is not None:
            return self._last[1]
        frame = merged(parts, missing, current, own)
        self._last = made_of, frame
        return frame

    def _part(self, host: str, frame: Frame) -> HostFrame:
        if (last := frame.last) is None:
            return HostFrame(host, frame)
        now = last.end_utc_ns - last.end_ns
        if abs(now - self._shifts.setdefault(host, now)) > _CLOCK_STEP_NS:
            self._shifts[host] = now
        return HostFrame(host, frame, self._shifts[host])


def _identity(part: HostFrame) -> tuple[object, ...]:
    frame = part.frame
    return (
        part.host, frame.flows, frame.events, frame.pulses, frame.owners, frame.paths,
        frame.monitor, frame.at,
    )  # fmt: skip


def _newest_first(*events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(sorted(sum(events, ()), key=lambda event: event.utc_ns, reverse=True))
