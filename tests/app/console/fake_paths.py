"""Made-up paths: probes of every hop of some flows, a second at a time."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bpf.arrays import Array
from probes.path.options import TracedFlow
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOPS_TABLE,
    PATH,
    PATHS_TABLE,
    TRACE,
    TRACES_TABLE,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
)
from probes.snapshot import Loss, LossReason, Snapshot

SECOND_NS = 10**9
FLOW = TracedFlow(6, 40001, 443)
SOURCE = (10, 94, 0, 1)


@dataclass(frozen=True)
class FakeHop:
    """Behaviour of a hop."""

    rtt: float
    """Milliseconds."""
    routers: tuple[str, ...]
    """Routers that answer in turn; empty: no answers."""
    loss: float = 0.0
    """Share of its answers that are missing, spread evenly."""
    cleared: bool = False
    labels: tuple[int, ...] = ()
    noise: float = 0.02
    """Of the round-trip time."""


@dataclass
class FakePath:
    """One flow's way."""

    hops: Sequence[FakeHop]
    destination: str = "10.94.6.2"
    flow: TracedFlow = FLOW
    rate: int = 20
    """Probes a second for each hop."""
    version: int = 4
    end: FakeHop | None = None
    """Round trips of the flow itself to the destination, which it names as the router."""
    method: MeasuredBy = MeasuredBy.TCP_ACK
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def key(self, rows: Array) -> None:
        """Say in `rows`, of dtype HOP or PATH, which flow it is."""
        rows["destination"] = packed(self.destination)
        rows["source"][:, :4] = SOURCE
        rows["protocol"], rows["source_port"], rows["destination_port"] = self.flow
        rows["version"] = self.version

    def second(self, start_ns: int) -> Array:
        """Rows of dtype HOP of all probes sent in the second from `start_ns` on."""
        rows = [self._hop(number, hop, start_ns) for number, hop in enumerate(self.hops, 1)]
        if self.end is not None:
            rows.append(self._hop(DESTINATION_HOP, self.end, start_ns))
            rows[-1]["measured_by"] = self.method
        # Without a dtype the ports would come out in this machine's byte order.
        return np.concatenate(rows, dtype=HOP)

    def _hop(self, number: int, hop: FakeHop, start_ns: int) -> Array:
        rows = np.zeros(self.rate, HOP)
        self.key(rows)
        index = np.arange(self.rate)
        rows["hop"] = number
        rows["sent_ns"] = start_ns + index * (SECOND_NS // self.rate)
        rtt = hop.rtt * 1e6 * (1 + hop.noise * self._random.standard_normal(self.rate))
        rows["received_ns"] = rows["sent_ns"] + np.maximum(rtt, 1000).astype("i8")
        if hop.routers:
            rows["responder"] = np.array([packed(r) for r in hop.routers])[index % len(hop.routers)]
        rows["label_count"] = len(hop.labels)
        rows["labels"][:, : len(hop.labels)] = hop.labels
        lost = np.floor((index + 1) * hop.loss) > np.floor(index * hop.loss)
        if not hop.routers:
            lost[:] = True
        rows["outcome"] = np.where(lost, ProbeOutcome.UNANSWERED, ProbeOutcome.ANSWERED)
        rows["received_ns"][lost] = 0
        rows["responder"][lost] = 0
        return rows

    def summaries(self, at_ns: int) -> Array:
        """A SUMMARY of each hop."""
        known = dict(enumerate(self.hops, 1))
        if self.end is not None:
            known[DESTINATION_HOP] = self.end
        rows = np.zeros(len(known), PATH)
        self.key(rows)
        rows["hop"] = list(known)
        rows["kind"], rows["at_ns"] = PathRowKind.SUMMARY, at_ns
        rows["cleared"] = [hop.cleared for hop in known.values()]
        return rows

    def own(self, since_ns: int, probes: int = 10, size: int = 28, answer: int = 56) -> Array:
        """A row of own traffic, dtype TRACE (1,): as many answers as probes."""
        rows = np.zeros(1, TRACE)
        rows["since_ns"] = since_ns
        rows["destination"], rows["version"] = packed(self.destination), self.version
        rows["probes"] = rows["answers"] = probes
        rows["probe_bytes"], rows["answer_bytes"] = probes * size, probes * answer
        return rows

    def change(self, kind: PathRowKind, hop: int, at_ns: int, **values: object) -> Array:
        """One row of dtype PATH (1,)."""
        rows = np.zeros(1, PATH)
        self.key(rows)
        rows["hop"], rows["kind"], rows["at_ns"] = hop, kind, at_ns
        for name, value in values.items():
            rows[name] = packed(value) if isinstance(value, str) else value
        return rows

    def with_hop(self, number: int, **values: object) -> None:
        """From now on a hop does something else."""
        hops = list(self.hops)
        hops[number - 1] = replace(hops[number - 1], **values)  # type: ignore[arg-type]
        self.hops = hops


def packed(address: str) -> Array:
    """An address as rows hold it: u1 (16,)."""
    return np.frombuffer(ipaddress.ip_address(address).packed.ljust(16, b"\0"), "u1")


def table(rows: Array, end_ns: int, window: int = 1, lost: int = 0) -> Snapshot:
    """A window's table of the path probe."""
    return Snapshot(
        probe="path",
        interface="eth0",
        window=window,
        generation=1,
        start_ns=end_ns - SECOND_NS,
        end_ns=end_ns,
        end_utc_ns=time.time_ns(),
        rows=rows,
        losses={LossReason.OVERRUN: Loss(lost)} if lost else {},
        occupancy=0.0,
        swap_ns=0,
        drain_ns=100_000,
        metric={HOP: HOPS_TABLE, PATH: PATHS_TABLE, TRACE: TRACES_TABLE}[rows.dtype],
    )


LAB = (
    FakeHop(0.21, ("10.94.0.254",), noise=0.1),
    FakeHop(1.4, ("10.94.1.2",), noise=0.1),
    FakeHop(5.2, ("10.94.2.2", "10.94.7.2"), labels=(16004 << 12 | 0x100 | 1,)),
    FakeHop(0.0, ()),
    FakeHop(15.1, ("10.94.4.2",), loss=0.85, cleared=True),
    FakeHop(17.3, ("10.94.5.2",)),
)
"""A balanced third hop, a silent fourth, a fifth that answers seldom."""
