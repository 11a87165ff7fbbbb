"""The connections to all hosts of a fleet, in one thread with one event loop.

A connection is retried without end, and knows the state of its host.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self

from app.api import connection_events, wire
from app.api.address import Access, trusted
from app.api.models import ControllerStatus, check_stream, parsed
from app.fleet.connection import Connection
from app.fleet.host_state import HostPhase, HostState, is_off
from app.fleet.hosts import FleetHost
from app.fleet.tally import ClockOffset, Tally
from bpf.errors import ProbedeckError, UsageError, wait_after
from bpf.quantities import age, duration
from probes.flow.probe import FlowProbe
from probes.monitor.state import PROBE as MONITOR
from probes.poller import Listeners
from probes.snapshot import Event, Item, Snapshot

_REFUSED_WAIT_S = 60.0
_STATUS_S = 30.0
"""Time between two requests for the status, which measure the clock too."""
_SAMPLES = 3
"""Requests in a row: the fastest answer bounds the offset of the clock best."""
_QUIET_S = 5.0
"""A longer silence makes a host slow: a controller sends a sign of life every 2 s."""
_LATE_S = 2.0
"""A window that comes so long after its end makes a host slow."""
_SLOW_S = 15.0
"""A host stays slow for so long after the last late or missing window."""
_MAX_ROWS = 16 << 20
"""Most bytes of a table; a larger one is skipped and counted."""


class HostLink:
    """Follows one host. `run` is for the loop of the hub, `state` for any thread."""

    def __init__(
        self, host: FleetHost, access: Access, tls: ssl.SSLContext | None, top: int,
        publish: Callable[[str, Item], None],
    ) -> None:  # fmt: skip
        self._host, self._access, self._tls, self._top = host, access, tls, top
        self._publish_item = publish
        self.status: ControllerStatus | None = None
        """The last answer; None before the first."""
        self._phase = HostPhase.CONNECTING, time.time_ns(), ""
        """State, since when, and why: one value, as other threads read it."""
        self._tally = Tally()
        self._clock = ClockOffset()
        self._clock_is_off = False
        self._shift_ns = 0
        """Subtracted from the host's times; 0 if the clocks agree within the error."""
        self._stale = asyncio.Event()
        """Set: the status has changed."""
        self._generation = 0
        """The flow probe's, to which the status belongs."""
        self._heard_at = 0.0
        """Monotonic seconds of the last part of the stream; 0: no stream."""
        self._slow_until, self._slow_reason = 0.0, ""
        self._said_lost = False

    @property
    def state(self) -> HostState:
        phase, since, reason = self._phase
        offset, error = self._clock.at(time.monotonic())
        status, tally = self.status, self._tally
        return HostState(
            self._host.name, self._host.labels, self._host.remote.url, phase, since, reason,
            status.version if status else "", ",".join(tally.interfaces),
            status.read_only if status else "", tally.packets_s, tally.bits_s, tally.flows,
            dict(tally.losses), tally.behind, offset, error, tally.lag_s, tally.received_s,
            tally.active,
        )  # fmt: skip

    async def run(self, delay: float) -> None:
        """Follow the host until the task is cancelled; begin after `delay` seconds."""
        await asyncio.sleep(delay)
        failures = 0
        while True:
            phase = HostPhase.LOST
            try:
                await self._follow()
                why = "the controller ended the stream"
            except (UsageError, wire.MalformedError) as error:
                phase, why = HostPhase.REFUSED, str(error)
            except ProbedeckError as error:
                why = str(error)
            except Exception as error:
                # A bug here or in a listener: make it visible.
                phase, why = HostPhase.REFUSED, f"{type(error).__name__}: {error}"
            failures = 1 if self._heard_at else failures + 1
            self._end(phase, why)
            wait = _REFUSED_WAIT_S if phase is HostPhase.REFUSED else wait_after(failures)
            # Hosts that were lost at once must not come back at once.
            await asyncio.sleep(wait * random.uniform(0.5, 1))

    def tick(self, now: float, seconds: float) -> None:
        """Update rates and the state, `seconds` after the last call; `now` is monotonic."""
        if not self._heard_at:
            return
        self._tally.tick(seconds)
        silent = now - self._heard_at
        if silent > _QUIET_S:
            self._enter(HostPhase.SLOW, f"silent for {age(silent)}")
        elif now < self._slow_until:
            self._enter(HostPhase.SLOW, self._slow_reason)
        else:
            self._enter(HostPhase.UP)

    async def _follow(self) -> None:
        """Follow the stream until it ends. Raises ProbedeckError."""
        async with Connection.open(self._access, self._tls) as asked:
            for _ in range(_SAMPLES):
                await self._ask(asked)
        self._look_at_clock()
        async with Connection.open(self._access, self._tls) as stream:
            check_stream(await stream.request(f"stream?top={self._top}"), self._access.url)
            asking = asyncio.create_task(self._keep_asking())
            try:
                decoder = wire.Decoder(_MAX_ROWS)
                async for part in stream.parts():
                    self._hear(part)
                    for record in decoder.feed(part):
                        self._take(record)
            finally:
                asking.cancel()

    async def _keep_asking(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_STATUS_S * random.uniform(0.75, 1.25)):
                    await self._stale.wait()
            except TimeoutError:
                pass
            self._stale.clear()
            try:
                async with Connection.open(self._access, self._tls) as asked:
                    await self._ask(asked)
                self._look_at_clock()
            except ProbedeckError as error:
                # The stream decides whether the host is lost.
                self._be_slow(f"no status: {error}")

    async def _ask(self, asked: Connection) -> None:
        """Ask for the status, and measure the clock."""
        sent_ns = time.time_ns()
        answer = await asked.get("status")
        received_ns = time.time_ns()
        self.status = status = parsed(ControllerStatus, answer, self._access.url)
        if status.utc_ns:  # older controllers do not send it
            self._clock.add(sent_ns, status.utc_ns, received_ns, time.monotonic())

    def _look_at_clock(self) -> None:
        offset, error = self._clock.at(time.monotonic())
        if math.isnan(offset):
            return
        self._shift_ns = round(offset * 1e9) if abs(offset) > error else 0
        if (off := is_off(offset, error)) is not self._clock_is_off:
            self._clock_is_off = off
            side = "ahead of" if offset > 0 else "behind"
            by = f"{duration(abs(offset))} {side} the clock here (within {duration(error)})"
            text = f"its clock is {by}; times are corrected"
            words = text if off else "its clock agrees with the clock here again"
            severity, phase = ("warning", "begin") if off else ("info", "end")
            self._publish(Event.now(severity, self._access.url, words, "clock", phase))

    def _hear(self, part: bytes) -> None:
        if not self._heard_at:
            self._enter(HostPhase.UP)
            if self._said_lost:
                self._said_lost = False
                self._publish(connection_events.again(self._access.url))
        self._heard_at = time.monotonic()
        self._tally.received += len(part)

    def _take(self, record: wire.WireRecord) -> None:
        if isinstance(record, wire.Lost):
            self._tally.behind += sum(record.windows.values())
            for event in connection_events.missed(self._access.url, record):
                self._be_slow(event.text)
                self._publish(event)
        elif isinstance(record, Event):
            self._publish(replace(record, utc_ns=record.utc_ns - self._shift_ns))
        else:
            if self._shift_ns:
                record = replace(record, end_utc_ns=record.end_utc_ns - self._shift_ns)
            self._count(record)
            self._publish(record)

    def _count(self, table: Snapshot) -> None:
        self._tally.add(table)
        if table.probe in (FlowProbe.name, MONITOR):
            self._tally.lag_s = lag = (time.time_ns() - table.end_utc_ns) / 1e9
            if lag > _LATE_S:
                self._be_slow(f"windows come {duration(lag)} after their end")
        if table.probe == FlowProbe.name and table.generation != self._generation:
            self._generation = table.generation
            self._stale.set()

    def _publish(self, item: Item) -> None:
        self._publish_item(self._host.name, item)

    def _be_slow(self, reason: str) -> None:
        self._slow_until, self._slow_reason = time.monotonic() + _SLOW_S, reason

    def _end(self, phase: HostPhase, why: str) -> None:
        self._heard_at = self._slow_until = 0.0
        self._tally.silence()
        self._enter(phase, why)
        if not self._said_lost:
            self._said_lost = True
            self._publish(connection_events.lost(self._access.url, why))

    def _enter(self, phase: HostPhase, why: str = "") -> None:
        before, since, _ = self._phase
        self._phase = phase, since if phase is before else time.time_ns(), why


TOP = 500
"""Flows of a window that a host sends, the largest ones; `Snapshot.rest` counts the others."""
_TICK_S = 1.0
_CONNECTS_S = 500.0
"""Hosts that are connected to per second at the start."""
_RESOLVERS = 32
"""Threads that resolve names. More than one: a name server may not answer."""


class Hub(Listeners[[str, Item]]):
    """Follows the controllers of a fleet.

    Each host connects, streams and is retried on its own: none waits for another. The hub keeps
    the state of each host, and no windows. Times of items are by the clock here: where a host's
    clock is off by more than the error of the measurement, the hub subtracts the offset. Listeners
    get each item with the name of its host, in the hub's thread. They must not wait.
    """

    def __init__(self, hosts: Sequence[FleetHost], *, top: int = TOP) -> None:
        """Raises UsageError for an impossible address, token or certificate of a host."""
        self.hosts = tuple(hosts)
        contexts: dict[str, ssl.SSLContext] = {}
        self._links: dict[str, HostLink] = {}
        for host in hosts:
            try:
                access = Access.of(host.remote)
                if access.tls and access.authorities not in contexts:
                    contexts[access.authorities] = trusted(access.authorities)
            except UsageError as error:
                raise UsageError(f"host {host.name}: {error.message}", hint=error.hint) from None
            tls = contexts[access.authorities] if access.tls else None
            self._links[host.name] = HostLink(host, access, tls, top, self.publish)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def states(self) -> tuple[HostState, ...]:
        """Return the state of each host now, in the order of `hosts`; from any thread."""
        return tuple(link.state for link in self._links.values())

    def state(self, name: str) -> HostState:
        """Return the state of one host. Raises KeyError for an unknown name."""
        return self._links[name].state

    def status(self, name: str) -> ControllerStatus | None:
        """Return the last status of a host, None before its first answer. Raises KeyError."""
        return self._links[name].status

    def start(self) -> None:
        """Connect to every host; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End every connection; the hosts go on measuring."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._follow())

    async def _follow(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS, "resolve"))
        spread = len(self._links) / _CONNECTS_S
        tasks = [
            self._loop.create_task(link.run(random.uniform(0, spread)))
            for link in self._links.values()
        ]
        tasks.append(self._loop.create_task(self._tick()))
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for link in self._links.values():
                link.tick(now, now - before)
            before = now
