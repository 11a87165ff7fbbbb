"""A path, its summary, and one of its hops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.console.screens.paths.numbers import Numbers
from app.console.screens.paths.ways import Router
from probes.filter.network import protocol_name
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP, Array, MeasuredBy

ECHO = (1, 58)
"""Protocols whose echo is traced as one flow, without ports."""


@dataclass(frozen=True, slots=True)
class PathKey:
    """A path: all flows to a destination, one of them, or those that take the same way."""

    destination: str
    flow: TracedFlow | None = None
    is_way: bool = False
    """Whether it has all flows that take the same way as `flow`, the first of them."""
    host: str = ""
    """The host of the fleet that traces it; empty unless several hosts are shown."""

    @property
    def whole(self) -> PathKey:
        """The path of all flows to its destination."""
        return PathKey(self.destination, host=self.host)


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """A hop of a path: a router, or the destination, which has the number DESTINATION_HOP."""

    number: int
    ttl: int
    """TTL of packets that end here; 0: unknown."""
    places: Array
    """Places of its series in the view."""
    numbers: Numbers
    last: float
    """The last round-trip time in seconds, or NaN."""
    routers: tuple[Router, ...]
    """The router of the chosen flow comes first."""
    cleared: bool
    """Whether the loss is only the router's reluctance to answer."""
    queue_ns: int
    means: NDArray[np.float64]
    """Seconds, (cells,); NaN without an answer."""
    lost: NDArray[np.bool_]
    marked: NDArray[np.bool_]
    """Cells in which the route changed, (cells,)."""
    methods: int
    """Bit n: a round trip was measured by MeasuredBy(n)."""
    adds: float = math.nan
    """Seconds of round trip that the way from the last answering hop to this one adds: at least 0;
    NaN if this hop does not answer, or for a hop outside of its path."""
    adds_queue: float = math.nan
    """Part of it by queues: the rest is the least time of the last minute."""

    @property
    def is_end(self) -> bool:
        """Whether it is the destination."""
        return self.number == DESTINATION_HOP

    @property
    def forgiven(self) -> bool:
        """Whether the loss is no loss of packets."""
        return self.cleared or not (self.numbers.answered or self.is_end)


def with_added(hops: Sequence[Hop]) -> list[Hop]:
    """Return all hops of a path, in their order, with the delay that each adds.

    A packet to a hop passes all hops before it, so a hop is no farther than any later one. The
    distance of a hop is the least median of this hop and all later ones. A hop adds its distance
    minus the distance of the nearest earlier hop that answers. So a slow answer, or a longer way
    back, adds nothing. A DNS server thinks before it answers, so its time is no distance. The same
    with least times in place of medians gives the part without queues.
    """
    medians, leasts = (
        added(
            [
                math.nan if hop.methods >> MeasuredBy.DNS & 1 else getattr(hop.numbers, name)
                for hop in hops
            ]
        )
        for name in ("median", "least")
    )
    return [
        replace(hop, adds=adds, adds_queue=max(0.0, adds - least) if adds == adds else math.nan)
        for hop, adds, least in zip(hops, medians, leasts, strict=True)
    ]


def added(times: Sequence[float]) -> list[float]:
    """Return the delay that each hop adds, in the unit of `times`; NaN without a time."""
    distances: list[float] = []
    nearest = math.inf
    for time in reversed(times):
        nearest = min(nearest, time) if time == time else nearest
        distances.insert(0, nearest if time == time else math.nan)
    added = []
    before = 0.0
    for distance in distances:
        added.append(distance - before)
        before = distance if distance == distance else before
    return added


@dataclass(frozen=True, slots=True)
class Summary:
    """A path in a line; times and shares of round trips to the destination itself."""

    length: int
    """Number of routers, or 0 if unknown."""
    rtt: float
    """Mean of the last seconds, or else of the last minute, in seconds; NaN without a sample."""
    loss: float
    """Of the last minute, 0 to 1; NaN without a sample."""
    samples: int
    """Round trips of the last minute."""
    methods: int
    """Bit n: a round trip was measured by MeasuredBy(n)."""
    queue: tuple[int, int]
    """Hop with the longest queue, and its delay in ns; 0, 0 without a queue."""
    ended: bool
    """Whether the probes have ended."""


def hop_text(number: int) -> str:
    """Return `hop 4`, or `destination`."""
    return "destination" if number == DESTINATION_HOP else f"hop {number}"


def methods_text(methods: int) -> str:
    """Return ways of measuring from a mask: `ack, timestamp`."""
    known = (each.label.removeprefix("tcp ") for each in MeasuredBy if methods >> each & 1)
    return ", ".join(known)


def mark_text(tos: int) -> str:
    """Return a TOS or traffic class in words: `DSCP 46`, `DSCP 0 ECT(0)`."""
    ecn = ("", " ECT(1)", " ECT(0)", " CE")[tos & 3]
    return f"DSCP {tos >> 2}{ecn}"


def flow_text(flow: TracedFlow) -> str:
    """Return a flow in words: `tcp 40001 to 443`, `icmp echo`."""
    name = protocol_name(flow.protocol)
    if flow.protocol in ECHO:
        return f"{name} echo"
    return f"{name} {flow.source_port} to {flow.destination_port}"


def since(rows: Array) -> Array:
    """Return when the changes of rows of dtype PATH began."""
    times: Array = np.where(rows["since_ns"] > 0, rows["since_ns"], rows["at_ns"])
    return times
