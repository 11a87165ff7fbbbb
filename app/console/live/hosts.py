"""The hosts that the console shows: their control planes, and the present of each.

A console has a list of hosts. Without a fleet, the list has one host, without a name. The frames of
several hosts are merged to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from app.console.live.flows import CELLS, LIVE, MAX_FLOWS, Focus, LiveView, places_of, salt_of
from app.console.live.overview_feed import TRAFFIC, Pulses
from app.console.live.owners import LIVE_SOCKET, OwnerView
from app.console.live.paths import LivePaths
from app.console.live.state import MAX_EVENTS, Frame, HostFrame, LiveState
from app.fleet.host_state import HostState
from app.fleet.planes import ChosenPlane, Planes
from bpf.arrays import Array, Rows
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from probes.snapshot import Event, HostEvent, Item, Snapshot
from probes.sockets.records import OWNER, OWNERSHIP

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
        self._merger = Merger()
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
        return self._merger.frame(frames, self.planes.states(), self.planes.current, own)


class Merger:
    """Merges the frames of several hosts; the same frame until a part changes."""

    def __init__(self) -> None:
        self._shifts: dict[str, int] = {}
        """`shift_ns` of each host: small changes would make its flows look new."""
        self._last: tuple[object, Frame | None] = (None, None)
        """The parts of the last merged frame, and that frame."""

    def frame(
        self, frames: Mapping[str, Frame], states: Iterable[HostState], current: str,
        own: tuple[Event, ...] = (),
    ) -> Frame:  # fmt: skip
        """Merge frames by host, without those that are lost; see `merged`.

        `states` has the state of each of the hosts, `own` the events about the fleet.
        """
        counts = {one.name: one.state.counts for one in states}
        parts = [self._part(name, frame) for name, frame in frames.items() if counts[name]]
        missing = tuple(name for name in frames if not counts[name])
        # The last events of a missing host tell why it is missing.
        own = _newest_first(own, *(events_of(frames[name].events, name) for name in missing))
        made_of = missing, current, own, *(
            (part.host, of.flows, of.events, of.pulses, of.owners, of.paths, of.monitor, of.at)
            for part in parts for of in (part.frame,)
        )  # fmt: skip
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


def _newest_first(*events: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(sorted(sum(events, ()), key=lambda event: event.utc_ns, reverse=True))


_SECOND_NS = 1_000_000_000
_NO_PATHS = LivePaths().view()


def merged(
    parts: Sequence[HostFrame], missing: Iterable[str], current: str, own: Sequence[Event] = ()
) -> Frame:
    """Merge frames of several hosts; the result has its times in UTC.

    Programs, paths and the monitor come from the host `current`, else from the first host.
    `own` are further events, newest first: about the fleet, and of missing hosts.
    """
    if not parts:
        return Frame(
            LiveView(np.empty(0, LIVE), 0, 0), _NO_PATHS, tuple(own), missing=tuple(missing)
        )
    every = [events_of(part.frame.events, part.host) for part in parts]
    newest_first = merge(own, *every, key=attrgetter("utc_ns"), reverse=True)
    newest = max(parts, key=lambda part: part.frame.at)
    shown = next((part.frame for part in parts if part.host == current), parts[0].frame)
    return Frame(
        _flows(parts), shown.paths, tuple(islice(newest_first, MAX_EVENTS)), shown.metrics,
        shown.monitor,
        newest.frame.last, newest.frame.at, sum(part.frame.lost for part in parts), _pulses(parts),
        _owners(parts),
        tuple(parts), tuple(missing),
    )  # fmt: skip


def _flows(parts: Sequence[HostFrame]) -> LiveView:
    views = [part.frame.flows for part in parts]
    sizes = [len(view.rows) for view in views]
    rows = np.concatenate([view.rows for view in views])
    node_of = np.repeat(np.arange(len(parts), dtype="u2"), sizes)
    # Hosts count CLOCK_MONOTONIC from their boots.
    shifts = [part.shift_ns for part in parts]
    rows["id"] ^= np.array([salt_of(part.host) for part in parts], "u8")[node_of]
    for name in ("first_ns", "last_ns"):
        rows[name] += np.array(shifts)[node_of]
    seconds = np.max([view.seconds for view in views], axis=0)
    for node, view in enumerate(views):
        # A sum over hosts needs cells of one length.
        had = np.array(view.seconds)
        longer = np.divide(seconds, had, out=np.ones(CELLS), where=had > 0).astype("f4")
        if (longer != 1).any():
            rows["history"][node_of == node] *= longer
    left_out = sum(view.left_out for view in views)
    order = np.argsort(rows["id"])
    if len(rows) > MAX_FLOWS:
        left_out += len(rows) - MAX_FLOWS
        largest = np.argpartition(rows["bit_rate"], len(rows) - MAX_FLOWS)[-MAX_FLOWS:]
        order = largest[np.argsort(rows["id"][largest])]
    known = [view.now_ns + shift for view, shift in zip(views, shifts, strict=True) if view.now_ns]
    cut = [view.cut_ns + shift for view, shift in zip(views, shifts, strict=True) if view.cut_ns]
    return LiveView(
        rows.take(order), max(known, default=0), left_out, 0, tuple(seconds.tolist()),
        max(cut, default=0), tuple(map(any, zip(*(view.cut_cells for view in views), strict=True))),
        any(view.cut_rates for view in views), max(view.lacks for view in views),
        tuple(part.host for part in parts), node_of[order],
    )  # fmt: skip


@lru_cache(maxsize=64)
def events_of(events: tuple[Event, ...], host: str) -> tuple[HostEvent, ...]:
    """Return the events of a host of several; the same objects until the next event."""
    return tuple(
        HostEvent(
            one.utc_ns, one.severity, one.source, one.text, one.subject, one.phase,
            one.value, one.unit, host,
        )
        for one in events
    )  # fmt: skip


def _owners(parts: Sequence[HostFrame]) -> OwnerView:
    views = [part.frame.owners for part in parts]
    if not any(views):
        return OwnerView()
    sockets, owners, number = [], [], 1
    for view in views:
        # Each host numbers its owners from one.
        theirs, mine = view.sockets.copy(), view.owners.copy()
        at, known = places_of(theirs["owner"], mine["number"])
        theirs["owner"] = np.where(known, at + number, 0)
        mine["number"] = np.arange(number, number + len(mine))
        number += len(mine)
        sockets.append(theirs)
        owners.append(mine)
    every = np.concatenate([view.ownership for view in views], dtype=OWNERSHIP)
    reasons, of = np.unique(every["reason"], return_inverse=True)
    ownership = np.zeros(len(reasons), OWNERSHIP)
    ownership["reason"] = reasons
    for name in ("flows", "packets", "bytes"):
        np.add.at(ownership[name], of, every[name])
    return OwnerView(
        np.concatenate(sockets, dtype=LIVE_SOCKET), np.concatenate(owners, dtype=OWNER), ownership,
        max(view.now_ns for view in views), tuple(map(len, sockets)),
        max(view.cut_ns for view in views),
    )  # fmt: skip


def _pulses(parts: Sequence[HostFrame]) -> Pulses:
    pulses = [part.frame.pulses for part in parts]
    probes = {
        (name := f"{one.name} of {part.host}"): replace(one, name=name)
        for part in parts
        for one in part.frame.pulses.probes.values()
    }
    shifts = [part.shift_ns for part in parts]
    flows = _traffic(list(zip((one.flows for one in pulses), shifts, strict=True)))
    monitor = _traffic(list(zip((one.monitor for one in pulses), shifts, strict=True)))
    return Pulses(probes, flows, monitor)


def _traffic(tables: Sequence[tuple[Array, int]]) -> Rows[TRAFFIC]:
    """Sum up windows of dtype TRAFFIC of several hosts in cells as long as the longest window.

    Each table comes with the nanoseconds from its clock to UTC here. The last cell is one that all
    hosts have reached.
    """
    tables = [(rows, shift) for rows, shift in tables if len(rows)]
    if not tables:
        return np.empty(0, TRAFFIC)
    longest = max(float(rows["seconds"][-10:].max()) for rows, _ in tables)
    cell_ns = max(1, round(longest)) * _SECOND_NS
    ends = [(rows["end_ns"] + shift - 1) // cell_ns for rows, shift in tables]
    last, first = min(int(end[-1]) for end in ends), min(int(end[0]) for end in ends)
    if last < first:
        return np.empty(0, TRAFFIC)
    found = np.zeros(last - first + 1, TRAFFIC)
    found["seconds"] = cell_ns / _SECOND_NS
    found["end_ns"] = (np.arange(first, last + 1) + 1) * cell_ns
    for (rows, _), end in zip(tables, ends, strict=True):
        kept = end <= last
        at = end[kept] - first
        had = np.bincount(at, rows["seconds"][kept], len(found))
        scale: Any = np.divide(cell_ns / _SECOND_NS, had, out=np.zeros(len(had)), where=had > 0)
        for name in TRAFFIC.names or ():
            if name not in ("end_ns", "seconds"):
                sums = np.bincount(at, rows[name][kept], len(found))
                exact = name == "lost"
                found[name] += np.round(sums if exact else sums * scale).astype("u8")
    return found
