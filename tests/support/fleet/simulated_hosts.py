"""Controllers of many hosts in one process: recorded streams, sent again over real sockets.

Each host listens on a port of the loopback, and answers what a hub asks: the status and the
stream. Its windows are those of a recording, with the times of now by its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter

from app.api import wire
from app.api.address import Remote
from app.api.models import ControllerStatus
from app.fleet.hosts import FleetHost
from probes.flow.records import FLOW
from probes.monitor.records import METRIC, POLICY
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, PROBE, PolicyState
from probes.snapshot import HookStatus, Rest, Snapshot

INTERVAL_S = 1.0
_HOOKS = (HookStatus("eth0", "xdp", "native"), HookStatus("eth0", "tc egress", "tcx"))
_STATUS = TypeAdapter(ControllerStatus)
Recording = Sequence[Sequence[Snapshot]]
"""Tables of each window, in their order."""


def made(flows: int = 500, others: int = 9500, windows: int = 8, seed: int = 1) -> Recording:
    """Return a recording of a busy server: windows of the largest `flows`, of the monitor and of
    its policies, one of them active."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(flows, FLOW)
    rows["source"][:, :4] = rng.integers(1, 255, (flows, 4))
    rows["destination"][:, :4] = 10, 0, 0, 1
    rows["source_port"], rows["destination_port"] = rng.integers(1024, 65536, flows), 443
    rows["protocol"], rows["version"] = 6, 4
    found = []
    for _ in range(windows):
        rows = rows.copy()
        rows["packets"] = rng.integers(10, 1000, flows)
        rows["bytes"] = rows["packets"] * 900
        policies = np.zeros(4, POLICY)
        policies["policy"] = [b"flood", b"scan", b"burst", b"dns"]
        policies["state"] = PolicyState.ARMED
        policies["state"][0] = PolicyState.ACTIVE
        rest = (Rest("ingress", others, others * 2, others * 200),) if others else ()
        flow = Snapshot("flow", "eth0", 1, 1, 0, 1, 1, rows, {}, 0.1, 0, 0, hooks=_HOOKS, rest=rest)
        monitor = replace(flow, probe=PROBE, hooks=(), rest=())
        found.append([
            flow,
            replace(monitor, metric=METRICS_TABLE, rows=np.zeros(1, METRIC)),
            replace(monitor, metric=POLICIES_TABLE, rows=policies),
        ])  # fmt: skip
    return found


class SimulatedHost:
    """One controller. Its attributes may be changed while it runs."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.name = name
        self.port = 0
        self.offset_s = 0.0
        """Its clock is ahead by so much."""
        self.is_mute = False
        """It takes connections and requests, and answers nothing more."""
        self.refusal = b""
        """Answer to every request, in place of its own."""
        self._recording = recording
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._streams: set[asyncio.StreamWriter] = set()

    @property
    def fleet_host(self) -> FleetHost:
        return FleetHost(self.name, Remote(f"http://127.0.0.1:{self.port}"))

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End as a killed process does: nobody listens, and every connection is reset."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def send(self, record: bytes) -> None:
        """Send a record, or junk, on every stream."""
        for writer in self._streams:
            _send(writer, record)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    await self._answer(head.split(b" ", 2)[1], writer)
        finally:
            self._writers.discard(writer)
            self._streams.discard(writer)
            writer.transport.abort()

    async def _answer(self, target: bytes, writer: asyncio.StreamWriter) -> None:
        if self.is_mute:
            return
        if self.refusal:
            writer.write(self.refusal)
        elif target.startswith(b"/v1/status"):
            status = ControllerStatus("9.9", "", "", {}, hooks=_HOOKS, utc_ns=self._utc_ns())
            body = _STATUS.dump_json(status)
            writer.write(_head("application/json", f"content-length: {len(body)}") + body)
        else:
            writer.write(_head(wire.MEDIA_TYPE, "transfer-encoding: chunked"))
            await self._stream(writer)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        _send(writer, wire.ALIVE)
        self._streams.add(writer)
        # Hosts are not in step.
        await asyncio.sleep(random.uniform(0, INTERVAL_S))
        loop, number = asyncio.get_running_loop(), 0
        at = loop.time()
        while True:
            if not self.is_mute:
                number += 1
                for table in self._recording[number % len(self._recording)]:
                    _send(writer, wire.encode(self._now(table, number)))
                # A slow reader holds up its own stream only.
                await writer.drain()
            at = max(at + INTERVAL_S, loop.time())
            await asyncio.sleep(at - loop.time())

    def _now(self, table: Snapshot, number: int) -> Snapshot:
        end_ns = time.monotonic_ns()
        start_ns = end_ns - round(INTERVAL_S * 1e9)
        utc_ns = self._utc_ns()
        return replace(table, window=number, start_ns=start_ns, end_ns=end_ns, end_utc_ns=utc_ns)

    def _utc_ns(self) -> int:
        return time.time_ns() + round(self.offset_s * 1e9)


class Simulator:
    """Runs hosts in a thread of its own, until its context is left."""

    def __init__(self, count: int, recording: Recording | None = None) -> None:
        recording = recording or made()
        self.hosts = [SimulatedHost(f"sim-{number}", recording) for number in range(count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hosts", daemon=True)

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a coroutine function of a host, such as its `stop`, and wait for its end."""
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def __enter__(self) -> Self:
        self._thread.start()
        for host in self.hosts:
            self.run(host.start)
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            self.run(host.stop)
        self.run(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refusal(status: str, **problem: Any) -> bytes:
    """Return an answer that refuses a request, as the API writes it."""
    body = json.dumps(problem).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _head(media_type: str, length: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\n{length}\r\n\r\n".encode()


def _send(writer: asyncio.StreamWriter, record: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(record), record))
