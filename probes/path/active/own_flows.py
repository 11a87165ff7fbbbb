"""Flows of the tracer's own, to destinations to which no application sends.

One thread sends their packets at an even pace, so that each may cause a probe. A flow pauses while
packets of applications go to its destination, and goes on a second after the last one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bpf.arrays import Array, Rows
from bpf.attach.interface import Interface
from probes.path.active.echo import FAMILY
from probes.path.active.own_sockets import OwnSocket, open_own
from probes.path.options import OwnFlow, OwnProtocol
from probes.path.records import DESTINATION_HOP, HOP, ProbeOutcome, no_rows
from probes.path.slots import ECHO_PORTS, Destination

_RATES = {OwnProtocol.ICMP: 20.0, OwnProtocol.UDP: 20.0, OwnProtocol.TCP: 10.0}
"""Packets a second. Servers take many SYNs for an attack."""
_QUIET_NS = 1_000_000_000
"""Time without a packet of an application until the flow goes on."""
_RETRY_NS = 1_000_000_000
"""Time between two tries to open a flow's sockets."""
_MOST_SAMPLES = 65536


class OwnTarget(Protocol):
    """The traced destination of a flow."""

    def application_packets(self) -> int:
        """Return the number of packets that applications sent so far."""

    def take_own(self, protocol: int, source_port: int, destination_port: int) -> None:
        """Tell the kernel which flow is the tracer's own, before its first packet."""


@dataclass(slots=True)
class _Sample:
    number: int
    sent_ns: int
    received_ns: int = 0


class _Flow:
    """The flow to one destination. The calls come from one thread at a time."""

    def __init__(
        self,
        destination: Destination,
        wanted: OwnFlow,
        target: OwnTarget,
        open_: Callable[[], OwnSocket],
    ) -> None:
        self.destination, self.wanted = destination, wanted
        self.failure = ""
        """Why packets cannot be sent; empty if they can."""
        self.next_ns = time.monotonic_ns()
        self._target, self._open = target, open_
        self._socket: OwnSocket | None = None
        self._interval_ns = round(1e9 / _RATES[wanted.protocol])
        self._packets = target.application_packets()
        self._application_ns = self.next_ns
        """When a packet of an application was seen last, or tracing began."""
        self._waiting: dict[int, _Sample] = {}
        self._finished: list[tuple[_Sample, ProbeOutcome]] = []
        self._sent = 0
        self._answered = False

    def step(self, now_ns: int, timeout_ns: int) -> None:
        """Take the answers, and send a packet if one is due."""
        self._take_answers(now_ns - timeout_ns)
        if now_ns < self.next_ns:
            return
        # A late thread sends no burst.
        self.next_ns += self._interval_ns
        if self.next_ns <= now_ns:
            self.next_ns = now_ns + self._interval_ns
        packets = self._target.application_packets()
        if packets != self._packets:
            self._packets, self._application_ns = packets, now_ns
        if now_ns - self._application_ns < _QUIET_NS:
            return
        try:
            self._send()
            self.failure = ""
        except BlockingIOError:
            return
        except OSError as error:
            self.failure = str(error.strerror)
            self.next_ns = now_ns + _RETRY_NS

    def rows(self, *, final: bool = False) -> Rows[HOP]:
        """Rows of dtype HOP of the finished packets."""
        if final:
            self._finished += ((each, ProbeOutcome.IN_FLIGHT) for each in self._waiting.values())
            self._waiting.clear()
        opened, finished = self._socket, self._finished
        if opened is None or not finished:
            return no_rows(HOP)
        self._finished = []
        version = self.destination.version
        rows = np.zeros(len(finished), HOP)
        echo = self.wanted.protocol is OwnProtocol.ICMP
        source = socket.inet_pton(FAMILY[version], opened.source).ljust(16, b"\0")
        rows["destination"] = np.frombuffer(self.destination.address, "u1")
        rows["source"] = np.frombuffer(source, "u1")
        rows["source_port"] = opened.source_port
        rows["destination_port"] = ECHO_PORTS[version] if echo else opened.destination_port
        rows["protocol"], rows["version"] = opened.protocol, version
        rows["hop"] = DESTINATION_HOP
        rows["packet_bytes"] = opened.packet_bytes
        rows["measured_by"], rows["whole"] = opened.measured_by, 1
        rows["outcome"] = [outcome for _, outcome in finished]
        rows["sent_ns"] = [sample.sent_ns for sample, _ in finished]
        rows["received_ns"] = [sample.received_ns for sample, _ in finished]
        rows["sequence"] = np.arange(self._sent, self._sent + len(finished))
        self._sent += len(finished)
        answered = rows["outcome"] == ProbeOutcome.ANSWERED
        rows["responder"][answered] = np.frombuffer(self.destination.address, "u1")
        return rows

    def close(self) -> None:
        if self._socket:
            self._socket.close()

    def _send(self) -> None:
        opened = self._socket
        if opened is None or opened.is_stale:
            self.close()
            self._waiting.clear()
            opened = self._socket = self._open()
            self._target.take_own(opened.protocol, opened.source_port, opened.destination_port)
            return  # The first packet is the next one: see `stamp_times`.
        number, sent_ns = opened.send()
        self._waiting[number] = _Sample(number, sent_ns)

    def _take_answers(self, oldest_ns: int) -> None:
        opened = self._socket
        if opened is None:
            return
        for number, received_ns in opened.answers():
            sample = self._waiting.pop(number, None)
            if sample and received_ns >= sample.sent_ns:
                sample.received_ns = received_ns
                self._finish(sample, ProbeOutcome.ANSWERED)
                self._answered = True
        for number, sample in list(self._waiting.items()):
            if sample.sent_ns >= oldest_ns:
                break
            del self._waiting[number]
            # A destination that never answered may drop such packets on purpose.
            if opened.tells_loss and self._answered:
                self._finish(sample, ProbeOutcome.UNANSWERED)

    def _finish(self, sample: _Sample, outcome: ProbeOutcome) -> None:
        if len(self._finished) < _MOST_SAMPLES:
            self._finished.append((sample, outcome))


class OwnFlows:
    """The flows to all destinations, and the thread that sends them."""

    def __init__(self, interface: Interface, timeout_ns: int, key: int) -> None:
        """Open nothing and start no thread until the first flow. `key` is the secret of marks."""
        self._interface, self._timeout_ns, self._key = interface, timeout_ns, key
        self._flows: dict[bytes, _Flow] = {}
        self._told: dict[bytes, str] = {}
        """Failures by destination, as of the last events."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, destination: Destination, wanted: OwnFlow, target: OwnTarget) -> None:
        """Send a flow to a destination, unless there is one."""
        with self._condition:
            if self._closed or destination.address in self._flows:
                return

            def open_() -> OwnSocket:
                return open_own(wanted, destination, self._interface, self._key, self._timeout_ns)

            self._flows[destination.address] = _Flow(destination, wanted, target, open_)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="own flows", daemon=True)
                self._thread.start()
            self._condition.notify()

    def wanted(self, destination: Destination) -> OwnFlow | None:
        """Return the flow to a destination; None without a flow."""
        flow = self._flows.get(destination.address)
        return flow.wanted if flow else None

    def stop(self, destination: Destination) -> Array:
        """Stop the flow to a destination, if there is one. Returns its last rows of dtype HOP."""
        with self._condition:
            flow = self._flows.pop(destination.address, None)
            self._told.pop(destination.address, None)
            if flow is None:
                return no_rows(HOP)
            flow.close()
            return flow.rows(final=True)

    def rows(self) -> Rows[HOP]:
        """Rows of dtype HOP of the packets that were answered or timed out."""
        with self._condition:
            parts = [flow.rows() for flow in self._flows.values()]
        return np.concatenate([no_rows(HOP), *parts], dtype=HOP)

    def events(self) -> list[tuple[str, str]]:
        """Return severity and text of each new failure."""
        with self._condition:
            failures = {
                address: flow.failure for address, flow in self._flows.items() if flow.failure
            }
            new = [address for address in failures if self._told.get(address) != failures[address]]
            self._told = failures
            return [
                (
                    "warning",
                    f"cannot send {self._flows[address].wanted.protocol} packets to"
                    f" {self._flows[address].destination.text}: {failures[address]}",
                )
                for address in new
            ]

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread:
            self._thread.join()
        for flow in self._flows.values():
            flow.close()
        self._flows.clear()

    def _run(self) -> None:
        with self._condition:
            while not self._closed:
                now = time.monotonic_ns()
                for flow in self._flows.values():
                    flow.step(now, self._timeout_ns)
                next_ns = min((flow.next_ns for flow in self._flows.values()), default=None)
                late = None if next_ns is None else (next_ns - time.monotonic_ns()) / 1e9
                self._condition.wait(late if late is None else max(late, 0.001))
