"""A ControlPlane over the API of another host's controller."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Mapping
from typing import Self

from app.api import connection_events, wire
from app.api.address import Remote
from app.api.client import Client, RemoteOutputs, RemoteSegment
from app.api.models import ControllerStatus, PathObject
from bpf.errors import ProbedeckError, UsageError, wait_after
from probes.config.options import values_of
from probes.control.budget import SOURCE as BUDGET
from probes.control_plane import Listener
from probes.output_control import OutputControl
from probes.path.options import PathOptions
from probes.reports import BudgetUse
from probes.segment.options import SegmentControl
from probes.snapshot import Event, History, HookStatus, Snapshot

_SILENCE_S = 10.0
"""Longest silence: the controller sends a sign of life every 2 s."""
_LATE_S = 2.0
"""Least delay of a slow link."""
_ROWS = 100
"""Flows of a window for a screen on a slow link: more than it has lines."""


class RemotePlane(Client):
    """A ControlPlane by calls of another host's API; somebody else reads its stream: `take`."""

    def __init__(self, remote: Remote) -> None:
        """Raises UsageError for an impossible address or token; nothing is asked yet."""
        super().__init__(remote)
        self.history = History()
        self.read_only = ""
        """Why changes are refused, as of the last status."""
        self.unwritten: Mapping[str, int] = {}
        """Rows that the controller could not write, by table, as of its last status."""
        self.late_by = 0.0
        """Of several hosts always 0: their hub reports its connections."""
        self.outputs: OutputControl = RemoteOutputs(self._http)
        self.segment: SegmentControl = RemoteSegment(self._http)
        self._hooks: tuple[HookStatus, ...] = ()
        self._budget = BudgetUse()
        self.interval = 1.0
        self.capture = ""
        self._generation = 0
        """The flow probe's, to which `interval` and `capture` belong."""
        self._listeners: tuple[Listener, ...] = ()
        self._failure: ProbedeckError | None = None

    def listen(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)

    def publish(self, item: Snapshot | Event) -> None:
        """Keep a snapshot in the history, and tell the listeners; only on this side."""
        if isinstance(item, Snapshot):
            self.history.append(item)
        for listener in self._listeners:
            listener(item)

    def unconfined(self) -> str:
        return ""  # the controller itself decides which sources it accepts

    def hook_status(self) -> tuple[HookStatus, ...]:
        return self._hooks

    def budget(self) -> BudgetUse:
        """As of the last status: each step is an event, and events of the budget renew it."""
        return self._budget

    def failure(self) -> ProbedeckError | None:
        return self._failure

    @property
    def path_options(self) -> PathOptions:
        return self._http.ask(PathObject, "GET", "path-options")

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        self._http.answer("PUT", "path-options", json=values_of(options))

    def learn(self) -> None:
        """Ask for the status. Raises ProbedeckError."""
        self.apply(self.status())

    def apply(self, status: ControllerStatus) -> None:
        """Keep what a status says of the controller."""
        self.read_only, self._hooks = status.read_only, status.hooks
        self.unwritten = status.unwritten
        self.interval, self.capture = status.interval, status.capture
        self._budget = status.budget

    def take(self, record: wire.WireRecord) -> None:
        """Publish a record of the stream; ask for the status if it tells of another one."""
        if isinstance(record, wire.Lost):
            for event in connection_events.missed(self.url, record):
                self.publish(event)
            return
        if isinstance(record, Snapshot):
            attached = (each for each in record.hooks if each.mode != "monitor")
            newest = {(each.interface, each.hook): each for each in (*self._hooks, *attached)}
            self._hooks = tuple(newest.values())
            if record.probe == "flow" and record.generation != self._generation:
                self.learn()
                self._generation = record.generation
        elif record.source == BUDGET:
            # A step changes the length of windows, too.
            self.learn()
        self.publish(record)


class RemoteController(RemotePlane):
    """Follows the snapshots and events of a controller, and forwards calls to it.

    A lost connection is retried without end. Records published meanwhile are missing, and an event
    reports that. An unreadable record ends the connection: see `failure`.
    """

    def __init__(self, remote: Remote, *, screen: bool = False, few: bool = False) -> None:
        """A `screen` needs no whole windows that come late: they have the largest flows only, as
        many as it has lines, and very late ones are missing. `few`: all windows are so small.
        Raises ProbedeckError if no controller answers, or if it refuses the token."""
        super().__init__(remote)
        self._query = {"behind": _ROWS} if screen else {}
        self._query |= {"top": _ROWS} if few else {}
        self._packed = screen and not remote.url.startswith("unix:")
        self._is_lost = False
        self._connected: socket.socket | None = None
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="remote", daemon=True)
        try:
            self.learn()
        except ProbedeckError:
            super().close()
            raise
        self._thread.start()
        # From now on no record is missed.
        self._first.wait()

    def close(self) -> None:
        """End the connection; the probes go on running."""
        self._stopping.set()
        if (connected := self._connected) is not None:
            # This wakes the reading thread.
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        # The thread may wait for a host that does not answer.
        self._thread.join(2)
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._read()
                why = "the controller ended it"
            except (UsageError, wire.MalformedError) as error:
                # A retry would fail the same way.
                self._end(error)
            except ProbedeckError as error:
                why = str(error)
            except Exception as error:
                # A bug here or in a listener: make it visible.
                self._end(ProbedeckError(f"{self.url}: {type(error).__name__}: {error}"))
            finally:
                self._connected, self.late_by = None, 0.0
                self._first.set()
            if self._failure or self._stopping.is_set():
                return
            failures = failures + 1 if self._is_lost else 1
            if not self._is_lost:
                self._is_lost = True
                self.publish(connection_events.lost(self.url, why))
            self._stopping.wait(wait_after(failures))

    def _read(self) -> None:
        decoder = wire.Decoder()
        # Seconds from the end of the last window to its arrival, by the clocks of both hosts; the
        # least of this connection; and the arrival of the first bytes of an incomplete record.
        delay, least, begun = 0.0, math.inf, math.inf
        with self.stream(_SILENCE_S, packed=self._packed, **self._query) as response:
            network = response.extensions["network_stream"]
            self._connected = network.get_extra_info("socket")
            if self._stopping.is_set():
                return
            for part in response.iter_bytes():
                now = time.monotonic()
                if self._is_lost:
                    self.learn()
                    self._is_lost = False
                    self.publish(connection_events.again(self.url))
                self._first.set()
                for record in decoder.feed(part):
                    begun = math.inf
                    if isinstance(record, Snapshot):
                        delay = now - record.end_ns / 1e9
                        least = min(delay, least)
                    self.take(record)
                begun = min(begun, now) if decoder.pending else math.inf
                late = max(delay - least, now - begun)
                self.late_by = late if late > _LATE_S else 0.0

    def _end(self, error: ProbedeckError) -> None:
        self._failure = error
        self.publish(Event.now("error", self.url, str(error)))
