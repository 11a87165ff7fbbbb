"""The probe of sockets: it asks for the owners of each window's flows.

An owner has names: user, unit, container and pod of a process or a cgroup.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpf.arrays import Rows
from bpf.attach import rtnetlink
from bpf.attach.interface import Interface
from bpf.errors import UsageError
from bpf.programs.program import Program
from bpf.requirements import losses
from probes.builtin import BuiltinProbe, Generation
from probes.flow.records import FLOW, FlowDirection
from probes.life import Bundle
from probes.path.records import HOPS_TABLE
from probes.reports import ProgramInfo
from probes.snapshot import Event, Item, Snapshot
from probes.sockets.holders import PROGRAMS, RING_BYTES, SOURCE, SocketEvents
from probes.sockets.names import NameFinder
from probes.sockets.owners.known import UNKNOWN_USER, Known, Process
from probes.sockets.owners.live import LiveSources
from probes.sockets.owners.resolver import Resolver
from probes.sockets.owners.rows import Description, OwnerAnswers, OwnerRows, questions_of
from probes.sockets.records import (
    OWNERS_TABLE,
    OWNERSHIP_TABLE,
    PROBE,
    SOCKET,
    SOCKETS_TABLE,
    By,
    Limit,
    Reason,
    not_asked,
    sockets_of,
)

if TYPE_CHECKING:
    from bpf.compiler import Compiled, Compiler
    from probes.config.model import ProbeConfig, Side
    from probes.hooks import Hooks


class Describer:
    """Names of owners, from a cache: each look-up happens once. For one thread at a time."""

    def __init__(self) -> None:
        self._names = NameFinder()

    def close(self) -> None:
        self._names.close()

    def __call__(self, who: Process) -> Description:
        if who.uid == UNKNOWN_USER and who.tgid:
            # No event told of the process, or it has ended.
            with suppress(OSError):
                who.uid = os.stat(f"/proc/{who.tgid}").st_uid
        found = self._names.owner(who.cgroup, who.tgid, who.start_ns)
        user = "" if who.uid == UNKNOWN_USER else self._names.user(who.uid)
        return Description(who.uid, user, found.unit, found.container, found.pod, who.cgroup)


LATE_S = 0.25
"""Most time to wait for late sources before the answer "no socket"; a new window ends it."""
MOST_WAITING = 2
"""Windows that wait for answers. If more come, the oldest gets none, and is counted."""
_QUIET_S = 10.0
"""Events of the same trouble come once in this time."""
MEMORY = RING_BYTES + (1 << 16)
"""Bytes of kernel memory that the maps take at most."""


def prepare(
    compiler: Compiler, _: Hooks, interface: Interface, __: float
) -> Callable[[], SocketsProbe]:
    """Return a function that makes the probe."""
    return partial(SocketsProbe, compiler, interface)


def _note_backlogs(flows: Rows[FLOW], sockets: Rows[SOCKET]) -> None:
    """Fill in `qdisc` and `backlog` of sockets with a verdict QUEUE: of the interface by which
    their packets leave."""
    leaving = flows[flows["direction"] == FlowDirection.EGRESS]
    of = sockets_of(leaving, sockets)
    waits = np.append(sockets["limit"] == Limit.QUEUE, False)[of]
    for name in np.unique(leaving["interface"][waits]).tolist():
        mine = of[waits & (leaving["interface"] == name)]
        with suppress(OSError):
            found = rtnetlink.backlog(socket.if_nametoindex(name))
            sockets["qdisc"][mine], sockets["backlog"][mine] = found


class SocketsProbe(BuiltinProbe[Bundle[Program]]):
    """Names the owners of each window of flows, with its number and times.

    `take` queues a window and wakes the probe's poller, so questions never delay the flow probe.
    If a flow seems to have no socket, the probe waits for `LATE_S`, or until the next window comes,
    and looks once more: then it publishes the window's tables, which never change afterwards. Any
    thread may call the methods.
    """

    name = PROBE
    function = next(iter(PROGRAMS))
    sources: Mapping[Side, Path] = {"ingress": SOURCE}

    def __init__(self, compiler: Compiler, interface: Interface) -> None:
        """Open the sources and find the open sockets; takes up to some seconds.

        Raises ProbedeckError if the kernel tells no sockets at all. The first window has an event
        for each other missing source.
        """
        super().__init__(compiler, interface, 0.0)
        self._known = Known()
        self._sources = LiveSources(compiler, interface.index)
        self._sources.begin(self._known)
        events = self._sources.events
        sources: dict[Side, str] = {"ingress": SOURCE.read_text(encoding="utf-8")}
        self._current = Generation(sources, Bundle([events.first] if events else []))
        self._resolver = Resolver(self._known, self._sources)
        self._describe = Describer()
        self._rows = OwnerRows(self._describe)
        self._urgent = False
        """Whether open sockets have no process yet."""
        self._troubles: dict[str, float] = {}
        """Times of the last events of troubles."""
        self._reported = {"skipped": 0, "lost": 0}
        self.every = 1
        """Windows of flows for one look for owners."""
        self.skipped = 0
        """Windows that got no answers so far."""
        self._arrived = threading.Condition()
        self._waiting: deque[Snapshot] = deque()
        self._hops: deque[Snapshot] = deque(maxlen=4)
        self.alarm_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def take(self, item: Item) -> None:
        """Queue a window of flows; take in a window of path probes."""
        if not isinstance(item, Snapshot):
            return
        if (item.probe, item.metric) == ("path", HOPS_TABLE):
            self._hops.append(item)
        if (item.probe, item.metric) != ("flow", ""):
            return
        with self._arrived:
            if self.alarm_fd < 0:
                return
            self._waiting.append(item)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.skipped += 1
            self._arrived.notify_all()
            os.eventfd_write(self.alarm_fd, 1)

    def export(self) -> Sequence[Item]:
        """Answer the windows that wait."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.alarm_fd)
        items: list[Item] = []
        while window := self._next():
            with self._lock:
                self.latest = self._answer(window)
                self.window = window.window
                items += [*self.latest, *self._events()]
        return items

    def _next(self) -> Snapshot | None:
        with self._arrived:
            return self._waiting.popleft() if self._waiting else None

    def _answer(self, window: Snapshot) -> tuple[Snapshot, ...]:
        began = time.thread_time_ns()  # without the wait for late sources
        if window.window % self.every:
            return self._tables(replace(window, cut=True), not_asked(window.rows), 0)
        self._sources.look(self._known, urgent=self._urgent)
        while self._hops:
            hops = self._hops.popleft()
            self._rows.floors.note_hops(hops.rows, hops.end_ns / 1e9, self._sources.home)
        questions = questions_of(window.rows)
        start_s, asked_s = window.start_ns / 1e9, time.monotonic()
        answers = self._resolver.resolve(questions, start_s)
        if len(self._resolver.late(answers)):
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._waiting), LATE_S)
            self._sources.look(self._known, urgent=self._wants_holders(answers))
            self._resolver.look_again(answers, start_s)
        self._urgent = self._wants_holders(answers)
        tables = self._rows.of(answers, asked_s)
        if (tables[0]["limit"] == Limit.QUEUE).any():
            _note_backlogs(window.rows, tables[0])
        spent_ns = time.thread_time_ns() - began
        self._resolver.spend(spent_ns / 1e9, window.seconds)
        return self._tables(window, tables, spent_ns)

    def _tables(
        self, window: Snapshot, tables: Sequence[Rows[Any]], spent_ns: int
    ) -> tuple[Snapshot, ...]:
        names = SOCKETS_TABLE, OWNERS_TABLE, OWNERSHIP_TABLE
        return tuple(
            replace(
                window,
                probe=self.name,
                generation=self.generation,
                rows=rows,
                losses={},
                occupancy=0.0,
                swap_ns=0,
                drain_ns=spent_ns,
                metric=name,
                hooks=(),
            )
            for name, rows in zip(names, tables, strict=True)
        )

    @staticmethod
    def _wants_holders(answers: OwnerAnswers) -> bool:
        """Whether some open sockets still lack a process."""
        without = np.isin(answers.by, (By.LISTENER, By.CGROUP)) | (answers.reason == Reason.UNSEEN)
        # The pass has found one process so far.
        without |= (answers.reason == Reason.SEVERAL) & (answers.holders == 1)
        return bool(without.any())

    def _events(self) -> Iterator[Event]:
        told = {name: f"no {name}: {why}" for name, why in self.missing().items()}
        *_, ownership = self.latest
        if (ownership.rows["reason"] == Reason.OTHER_NAMESPACE).any():
            told["privileges"] = losses(self.name, "other namespaces")
        for name, text in told.items():
            if text and name not in self._troubles:
                self._troubles[name] = time.monotonic()
                yield Event.now("warning", self.name, text, name)
        yield from self._counted(
            "skipped", self.skipped, "windows have no owners: answers took longer than a window"
        )
        yield from self._counted(
            "lost", self._sources.lost, "events of opened and closed sockets were lost"
        )

    def _counted(self, what: str, count: int, text: str) -> Iterator[Event]:
        now, more = time.monotonic(), count - self._reported[what]
        if more and now > self._troubles.get(what, 0.0) + _QUIET_S:
            self._troubles[what], self._reported[what] = now, count
            yield Event.now("warning", self.name, f"{more} {text}", what)

    def missing(self) -> dict[str, str]:
        """Return the cost and the cause of each missing source, by its name."""
        return self._sources.missing

    @property
    def has_ended(self) -> bool:
        return self.alarm_fd < 0

    @property
    def config(self) -> ProbeConfig:
        # Imported here: the first paint needs no pydantic.
        from probes.config import model

        source = self._current.sources["ingress"]
        side = model.DirectionConfig(
            interface=self.interface.name, source=source, function=self.function
        )
        return model.ProbeConfig(name=self.name, interval=self.interval, ingress=side)

    def programs(self) -> tuple[ProgramInfo, ...]:
        with self._lock:
            events = self._sources.events
            if events is None:
                return ()
            interface, memory = self.interface.name, events.memory()
            return tuple(
                ProgramInfo("ingress", interface, "cgroup", "link", function, number, memory)
                for function, number in events.programs.items()
            )

    def _compile(self, side: Side, source: str) -> Compiled:
        return SocketEvents.compile(self._compiler, source)

    def _parts(self, sides: Mapping[Side, Compiled]) -> Iterator[Bundle[Program]]:
        if self._sources.events is None:
            raise UsageError(self.missing()["socket events"])
        yield self._sources.events.load(sides["ingress"])

    def _direct(self, new: Generation[Bundle[Program]]) -> None:
        if self._sources.events:
            self._sources.events.become(new.parts[0])

    def _end_window(self, ended: None, started_ns: int) -> tuple[Item, ...]:
        return ()  # The flow probe ends windows.

    def close(self) -> None:
        """Close the sources; queued windows get no answers."""
        with self._lock, self._arrived:
            os.close(self.alarm_fd)
            self.alarm_fd = -1
            super().close()
            self._sources.close()
            self._describe.close()
