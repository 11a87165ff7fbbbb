"""The hosts that the console shows: their control planes, and the present of each.

A console has a list of hosts. Without a fleet, the list has one host, without a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from app.console.live.flows import Focus, salt_of
from app.console.live.state import Frame, HostFrame, LiveState
from app.fleet.planes import ChosenPlane, Planes
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from probes.snapshot import Event, Item, Snapshot

_T = TypeVar("_T")
_CLOCK_STEP_NS = 20_000_000
"""Changes of a clock that merged frames follow."""
_PATIENCE_S = 2.0
"""Longest wait for the answers of several hosts: a slow host keeps its last answer."""
_TOGETHER_S = 0.2
"""Windows of several hosts that arrive within this time are one update of the screen."""


class ShownHosts:
    """The shown hosts. One host has its own frames; the frames of several are merged."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.planes = plane.hosts if isinstance(plane, ChosenPlane) else Planes({"": plane})
        self._states: dict[str, LiveState] = {}
        """By name; without a name, the events about the fleet. Replaced, not changed."""
        self._shifts: dict[str, int] = {}
        """`shift_ns` of each host: small changes would make its flows look new."""
        self._last: tuple[object, Frame | None] = (None, None)
        """The parts of the last merged frame, and that frame."""
        self.choose()

    def choose(self) -> None:
        """Begin anew with the chosen hosts; of several, those that were there keep their past."""
        before, names = self._states, ("", *self.planes.chosen)
        kept: Mapping[str, LiveState | None] = {"": before.get("")}
        kept = before if self.several and self._merges else kept
        self._states = {name: kept.get(name) or LiveState() for name in names}

    # The control planes

    @property
    def several(self) -> bool:
        """Whether the frames are merged, and rows have their host."""
        return len(self.planes.chosen) > 1

    @property
    def current(self) -> str:
        """The host under the cursor of several hosts; empty for the only one."""
        return self.planes.current if self.several else ""

    def plane(self, host: str) -> ControlPlane:
        """Return the control plane of a host; without a name, that of the whole console.

        Raises UsageError if the host is not chosen any more.
        """
        if (plane := self.planes.by_name.get(host) if host else self._plane) is None:
            raise UsageError(f"{host} is not chosen any more", hint="m on screen 7 chooses it")
        return plane

    def ask(self, call: Callable[[ControlPlane], _T], known: Mapping[str, _T]) -> dict[str, _T]:
        """Return the answer of every host that is there, by host; a single host has no name.

        A host that does not answer keeps its answer in `known`. It takes up to a few seconds.
        Raises ProbedeckError if a single host does not answer.
        """
        if not self.several:
            return {"": call(self._plane)}
        there = [one.name for one in self.planes.states() if one.state.counts]
        reports = self.planes.ask(call, there, _PATIENCE_S)
        answers = {one.host: one.answer for one in reports if one.error is None}
        return {name: answers[name] if name in answers else known[name]
                for name in there if name in answers or name in known}  # fmt: skip

    # The present

    @property
    def _merges(self) -> bool:
        """Whether there are states of several hosts; the next choice may be made already."""
        return len(self._states) > 2

    def listen(self, listener: Callable[[Item], None]) -> None:
        """Keep the items of the hosts, and then call `listener` with each."""

        def hear(host: str, item: Item) -> None:
            if (state := self._states.get(host)) is not None:
                state.take(item)
            listener(item)

        self.planes.listen(hear)

    @property
    def last_at(self) -> float:
        """Arrival of the last window, `time.monotonic()`."""
        return max(state.last_at for state in self._states.values())

    @property
    def last(self) -> Snapshot | None:
        """The last window of any host."""
        return max(self._states.values(), key=lambda state: state.last_at).last

    def focus_flows(self, focus: Focus) -> None:
        """Set which flows come first if a table cannot hold every flow."""
        for host, state in self._states.items():
            salt = np.uint64(salt_of(host) if self._merges else 0)
            state.focus_flows(replace(focus, ids=focus.ids ^ salt))

    def shown_after(self, item: Snapshot | Event) -> float:
        """Return the seconds until screens should show an item; infinite if another one follows."""
        after = max(state.shown_after(item) for state in self._states.values())
        return max(after, _TOGETHER_S) if self._merges and not math.isinf(after) else after

    def frame(self) -> Frame:
        """Return the present frame; without the hosts that are lost, if several are chosen."""
        frames = {name: state.frame() for name, state in self._states.items()}
        about_fleet = frames.pop("") if len(frames) > 1 else None
        own = about_fleet.events if about_fleet is not None else ()
        if len(frames) == 1:
            (frame,) = frames.values()
            return replace(frame, events=_newest_first(own, frame.events)) if own else frame
        # Imported here: a single host is merged with nothing.
        from app.console.live.merged import events_of, merged

        counts = {one.name: one.state.counts for one in self.planes.states()}
        parts = [self._part(name, frame) for name, frame in frames.items() if counts[name]]
        missing = tuple(name for name in frames if not counts[name])
        # The last events of a missing host tell why it is missing.
        own = _newest_first(own, *(events_of(frames[name].events, name) for name in missing))
        made_of = missing, self.planes.current, own, *(
            (part.host, of.flows, of.events, of.pulses, of.owners, of.paths, of.monitor, of.at)
            for part in parts for of in (part.frame,)
        )  # fmt: skip
        if self._last[0] == made_of and self._last[1] is not None:
            return self._last[1]
        frame = merged(parts, missing, self.planes.current, own)
        self._last = made_of, frame
        return frame

    def _part(self, host: str, frame: Frame) -> HostFrame:
        if (last := frame.last) is None:
            return HostFrame(host, frame)
        now = last.end_utc_ns - last.end_ns
        if abs(now - self._shifts.setdefault(host, now)) > _CLOCK_STEP_NS:
            self._shifts[host] = now
        return HostFrame(host, frame, self._shifts[host])


def _newest_first(*events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(sorted(sum(events, ()), key=lambda event: event.utc_ns, reverse=True))
