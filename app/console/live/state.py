"""The present of the shown hosts: states that probes' threads fill, from which frames are made.

A console has a list of hosts. Without a fleet, the list has one host, without a name.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from app.console.host_names import Names, NameSource
from app.console.live.flows import Focus, LiveFlows, salt_of
from app.console.live.frames import MAX_EVENTS, Frame, Merger, MonitorView, newest_first
from app.console.live.overview_feed import FLOW, LivePulses
from app.console.live.owners import LiveOwners
from app.console.live.paths import LivePaths
from app.fleet.planes import ChosenPlane, Planes
from bpf.errors import UsageError
from probes.control_plane import ControlPlane
from probes.flow.kinds import INTERFACES, REPEATED
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE
from probes.monitor.state import PROBE as MONITOR
from probes.names.learned import learned
from probes.snapshot import (
    REMOVED,
    Event,
    Item,
    Loss,
    Losses,
    LossReason,
    Snapshot,
    add_losses,
    loss_noun,
    loss_subject,
    loss_words,
    lost_of,
)
from probes.sockets.records import OWNERSHIP_TABLE
from probes.sockets.records import PROBE as SOCKETS

_T = TypeVar("_T")
_PATIENCE_S = 2.0
"""Longest wait for the answers of several hosts: a slow host keeps its last answer."""
_TOGETHER_S = 0.2
"""Windows of several hosts that arrive within this time are one update of the screen."""
_OWNERS_WITHIN = 0.1
"""Seconds in which owners usually follow their flows."""
_RANKS = {FLOW: 3, MONITOR: 2, "path": 1}
"""The status strip shows the window of the probe with the highest rank."""
_WINDOWS = 1200
"""Windows that are kept."""


class LiveMonitor:
    """Keeps windows of the monitor. The probe's thread calls `add`, any thread calls `view`."""

    def __init__(self) -> None:
        self._tables = {
            name: deque[Snapshot](maxlen=_WINDOWS)
            for name in (METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE)
        }
        self._view: MonitorView | None = None
        """The present view; None since the last table."""
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._view = None
            table = self._tables[snapshot.metric]
            if table and snapshot.window < table[-1].window:
                # The monitor restarted, and counts from one.
                table.clear()
            table.append(snapshot)

    def view(self) -> MonitorView:
        """Return the present view; the same object until the next table."""
        with self._lock:
            if self._view is None:
                self._view = MonitorView(*(tuple(table) for table in self._tables.values()))
            return self._view


@dataclass(slots=True)
class LiveState:
    """The present. Any thread calls `take`; screens read frames."""

    arrival: Callable[[Snapshot], float] = lambda _: time.monotonic()
    """Returns the arrival of a window, `time.monotonic()`."""
    last: Snapshot | None = None
    """The last window of the probe with the highest rank, without rows."""
    last_at: float = 0.0
    """Arrival of `last`, `time.monotonic()`: its own times may be another host's."""
    losses: dict[LossReason, Loss] = field(default_factory=dict)
    """Losses since the start of the run."""
    _flows: LiveFlows = field(default_factory=LiveFlows)
    _paths: LivePaths = field(default_factory=LivePaths)
    _monitor: LiveMonitor = field(default_factory=LiveMonitor)
    _owners: LiveOwners = field(default_factory=LiveOwners)
    _pulses: LivePulses = field(default_factory=LivePulses)
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    _newest_first: tuple[Event, ...] | None = ()
    """The events, as frames share them; None after another event."""
    _metrics: dict[tuple[str, str, str], Snapshot] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def focus_flows(self, focus: Focus) -> None:
        """Set which flows come first if the table cannot hold every flow."""
        self._flows.focus = focus

    def begin(self, losses: Losses | None) -> None:
        """Add the windows until the first frame at once; with losses, in the middle of a run."""
        self.lost_until_now(losses or {})
        self._flows.begin(late=losses is not None)

    def lost_until_now(self, losses: Losses) -> None:
        """Set the losses since the start of the run."""
        self.losses = dict(losses)

    def take(self, item: Snapshot | Event) -> None:
        """Add a published window or event."""
        if isinstance(item, Event):
            if (item.source, item.text) == (SOCKETS, REMOVED):
                self._owners.clear()
            with self._lock:
                self._log(item)
            return
        came_at = self.arrival(item)
        self._pulses.add(item, came_at)
        if not item.is_metric:
            views: dict[str, LiveFlows | LivePaths | LiveMonitor | LiveOwners] = {
                FLOW: self._flows,
                "path": self._paths,
                MONITOR: self._monitor,
                SOCKETS: self._owners,
            }
            view = views.get(item.probe)
            if view is not None and item.metric not in (REPEATED, INTERFACES):
                view.add(item)
        with self._lock:
            if item.is_metric:
                self._metrics[item.probe, item.side, item.metric] = item
            if self.last is None or _rank(item) >= _rank(self.last):
                # Views keep the rows: frames must not keep them twice.
                self.last = replace(item, rows=item.rows[:0].copy())
                self.last_at = came_at
            add_losses(self.losses, item.losses)
            if item.lost.packets:
                lost = loss_noun(item.probe)
                text = f"{lost} lost in window {item.window}: {loss_words(item.losses)}"
                event = Event(
                    item.end_utc_ns, "warning", item.probe, text, loss_subject(item.side),
                    value=item.lost.packets, unit=lost,
                )  # fmt: skip
                self._log(event)

    def shown_after(self, item: Snapshot | Event) -> float:
        """Return the seconds until screens should show an item; infinite if another one follows.

        The owners of a window come right after its flows: one update of the screen shows both.
        """
        if isinstance(item, Event) or item.probe not in (FLOW, SOCKETS):
            return 0.0
        if item.probe == SOCKETS:
            return 0.0 if item.metric == OWNERSHIP_TABLE else math.inf
        return _OWNERS_WITHIN if self._owners.view() else 0.0

    def _log(self, event: Event) -> None:
        self._events.append(event)
        self._newest_first = None

    def frame(self) -> Frame:
        """Return the present frame."""
        with self._lock:
            if self._newest_first is None:
                self._newest_first = tuple(reversed(self._events))
            return Frame(
                self._flows.view(), self._paths.view(), self._newest_first,
                tuple(self._metrics.values()), self._monitor.view(), self.last, self.last_at,
                lost_of(self.losses).packets, self._pulses.view(), self._owners.view(),
            )  # fmt: skip


def _rank(snapshot: Snapshot) -> int:
    return 0 if snapshot.is_metric else _RANKS.get(snapshot.probe, 0)


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

    def listen(self, names: Names, show: Callable[[float], None]) -> None:
        """Keep the items of the hosts, learn their `names`, and then call `show` with the seconds
        until screens should show the item; infinite if another one follows."""

        def hear(host: str, item: Item) -> None:
            if (state := self._states.get(host)) is not None:
                state.take(item)
            if isinstance(item, Snapshot) and item.probe == "names":
                for address, name, source, life_s in learned(item):
                    names.learn(address, name, NameSource(source), life_s)
            after = max(each.shown_after(item) for each in self._states.values())
            merges = self._merges and not math.isinf(after)
            show(max(after, _TOGETHER_S) if merges else after)

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

    def frame(self) -> Frame:
        """Return the present frame; without the hosts that are lost, if several are chosen."""
        frames = {name: state.frame() for name, state in self._states.items()}
        about_fleet = frames.pop("") if len(frames) > 1 else None
        own = about_fleet.events if about_fleet is not None else ()
        if len(frames) == 1:
            (frame,) = frames.values()
            return replace(frame, events=newest_first(own, frame.events)) if own else frame
        return self._merger.frame(frames, self.planes.states(), self.planes.current, own)
