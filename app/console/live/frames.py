"""Frames: everything that screens show, at a moment; and one frame of those of several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from app.console.live.flows import CELLS, LIVE, MAX_FLOWS, LiveView, places_of, salt_of
from app.console.live.overview_feed import TRAFFIC, Pulses
from app.console.live.owners import LIVE_SOCKET, OwnerView
from app.console.live.paths import LivePaths, PathView
from app.fleet.host_state import HostState
from bpf.arrays import Array, Rows
from probes.snapshot import Event, HostEvent, Snapshot
from probes.sockets.records import OWNER, OWNERSHIP

MAX_EVENTS = 2000
_CLOCK_STEP_NS = 20_000_000
"""Changes of a clock that merged frames follow."""


@dataclass(frozen=True, slots=True, eq=False)
class MonitorView:
    """Tables of the monitor until a moment, oldest window first."""

    metrics: tuple[Snapshot, ...] = ()
    policies: tuple[Snapshot, ...] = ()
    triggers: tuple[Snapshot, ...] = ()
    """Only of windows with transitions."""

    @property
    def now_utc_ns(self) -> int:
        """End of the last window by the clock of the measuring host; 0 before the first."""
        last = (table[-1].end_utc_ns for table in (self.metrics, self.policies) if table)
        return max(last, default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Everything that screens show, at a moment; immutable, so a pause keeps one."""

    flows: LiveView
    paths: PathView
    events: tuple[Event, ...]
    """Newest first."""
    metrics: tuple[Snapshot, ...] = ()
    """The last table of each metric of each probe."""
    monitor: MonitorView = field(default_factory=MonitorView)
    last: Snapshot | None = None
    """The window that ends at the moment, without its rows; None before the first."""
    at: float = 0.0
    """Arrival of `last`, `time.monotonic()`."""
    lost: int = 0
    """Packets, and results of probes, lost until the moment."""
    pulses: Pulses = field(default_factory=Pulses)
    owners: OwnerView = field(default_factory=OwnerView)
    parts: tuple[HostFrame, ...] = ()
    """The frames of several hosts that this one is made of; empty for one host."""
    missing: tuple[str, ...] = ()
    """Hosts that were chosen and that this frame lacks."""

    @property
    def utc_ns(self) -> int:
        """End of the window by the clock of the measuring host; 0 before the first window."""
        return self.last.end_utc_ns if self.last is not None else 0

    @property
    def hosts(self) -> tuple[HostFrame, ...]:
        """The frame of each host; a single host has an empty name."""
        return self.parts or (HostFrame("", self),)

    def of(self, host: str) -> Frame | None:
        """Return the part of a host, or None; without a name, the frame itself."""
        parts = (part.frame for part in self.parts if part.host == host)
        return next(parts, None) if host else self


@dataclass(frozen=True, slots=True, eq=False)
class HostFrame:
    """The frame of one host of a fleet."""

    host: str
    frame: Frame
    shift_ns: int = 0
    """From its CLOCK_MONOTONIC to UTC, by the clock here: the hub corrects the times of items."""


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
        own = newest_first(own, *(events_of(frames[name].events, name) for name in missing))
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


def newest_first(*events: tuple[Event, ...]) -> tuple[Event, ...]:
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
    ordered = merge(own, *every, key=attrgetter("utc_ns"), reverse=True)
    newest = max(parts, key=lambda part: part.frame.at)
    shown = next((part.frame for part in parts if part.host == current), parts[0].frame)
    return Frame(
        _flows(parts), shown.paths, tuple(islice(ordered, MAX_EVENTS)), shown.metrics,
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
