"""Paths, the routers and numbers of their hops, and flows that take the same way."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.console.live.paths import SECOND_NS, UNTIMED, PathView
from bpf.arrays import Array, Rows
from probes.filter.hosts import address_text, protocol_name
from probes.path import records
from probes.path.analysis.statistics import Ordered, group_starts, jitter
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP, Altered, MeasuredBy
from widgets.sparkline import means

ECHO = (1, 58)
"""Protocols whose echo is traced as one flow, without ports."""
LITTLE = 0.0001
"""Seconds that no operator looks for."""
NOTABLE = 0.05
"""Least share of a path's round trip that a notable hop adds; it adds more than LITTLE, too."""


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


NUMBERS = np.dtype(
    [
        *((name, "i8") for name in ("sent", "answered")),
        *((name, "f8") for name in ("loss", "median", "p95", "jitter", "least")),
    ]
)
"""Numbers of a hop in the last minute. Times are seconds, or NaN without an answer. The loss is 0
to 1, or NaN without a probe."""
HOP = np.dtype(
    [
        *((name, "i8") for name in ("hop", "ttl", "queue_ns", "methods")),
        *NUMBERS.descr,
        *((name, "f8") for name in ("last", "adds", "adds_queue")),
        *((name, "?") for name in ("is_end", "cleared", "forgiven")),
        *((name, "O") for name in ("places", "routers", "means", "lost", "marked")),
    ]
)
"""A hop of a path: a router, or the destination, which is the hop DESTINATION_HOP.

- `ttl`: TTL of packets that end here; 0: unknown
- `queue_ns`: delay of its queue
- `methods`: bit n is set if MeasuredBy(n) measured a round trip
- `last`: last round-trip time in seconds, or NaN
- `adds`: seconds of round trip that the way from the last answering hop adds, at least 0; NaN if
  this hop does not answer
- `adds_queue`: part of it by queues; the rest is the least time of the last minute
- `cleared`: only the router's reluctance to answer makes the loss
- `forgiven`: the packets were not lost
- `places` (n,): places of its series in the view
- `routers`: a tuple of Router; the router of the chosen flow comes first
- `means` in seconds, `lost`, `marked`: time lines (cells,); the route changed in marked cells
"""
PATH = np.dtype(
    [
        ("destination", "u1", (16,)),
        *((name, "u1") for name in ("version", "protocol")),
        *((name, "u2") for name in ("source_port", "destination_port")),
        *((name, "f8") for name in ("hops", "rtt", "loss", "queue")),
        *((name, "i8") for name in ("samples", "methods", "queue_hop")),
        ("ended", "?"),
        ("node", "O"),
    ]
)
"""A path, with times and shares of round trips to the destination itself.

- `hops`: number of routers; NaN: unknown
- `rtt`: mean of the last seconds, or else of the last minute, in seconds; NaN without a sample
- `loss`: share of the last minute; NaN without a sample
- `samples`: number of samples in the last minute
- `queue`, `queue_hop`: seconds of the longest queue, and its hop; 0 without a queue
- `ended`: the probes of the path have ended

The fields of the flow are 0 if the path has several flows.
"""


def numbers_of(times: Array, series: Array, hops: Array, count: int) -> Rows[NUMBERS]:
    """Return the numbers (count,) of hops, of dtype NUMBERS. `times` and `series` (n,) come from
    RecentTimes.of; `hops` (m,) is the place of the hop of each series."""
    found = np.zeros(count, NUMBERS)
    found["sent"] = np.bincount(hops[series], minlength=count)
    found["answered"] = np.bincount(hops[series[times == UNTIMED]], minlength=count)
    heard = times >= 0
    rtts, ids = times[heard], series[heard]
    hops = hops[ids]
    ordered = Ordered.of(hops, rtts)
    at = ordered.series
    found["answered"][at] += ordered.counts
    for name, fraction in (("median", 0.5), ("p95", 0.95), ("least", 0.0)):
        found[name] = np.nan
        found[name][at] = ordered.quantile(fraction) / 1e9
    starts = group_starts(ids)
    steps = jitter(rtts, starts, np.full(len(starts), -1))
    # A series weighs as much as it has answers.
    weights = np.where(steps >= 0, np.diff(starts, append=len(ids)), 0)
    shares = np.bincount(hops[starts], weights, count)
    found["jitter"] = means(np.bincount(hops[starts], weights * steps, count), shares) / 1e9
    found["loss"] = 1 - means(found["answered"], found["sent"])
    return found


def add_delays(hops: Rows[HOP]) -> None:
    """Find the delay that each hop adds, of all hops of a path in their order.

    A packet to a hop passes all hops before it, so a hop is no farther than any later one. The
    distance of a hop is the least median of this hop and all later ones. A hop adds its distance
    minus the distance of the nearest earlier hop that answers. So a slow answer, or a longer way
    back, adds nothing. A DNS server thinks before it answers, so its time is no distance. The same
    with least times in place of medians gives the part without queues.
    """
    thinks = hops["methods"] >> int(MeasuredBy.DNS) & 1 > 0
    hops["adds"], least = (
        added(np.where(thinks, np.nan, hops[name]).tolist()) for name in ("median", "least")
    )
    hops["adds_queue"] = np.maximum(0.0, hops["adds"] - least)


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


def since(rows: Rows[records.PATH]) -> Array:
    """Return when the changes of rows of dtype PATH began."""
    times: Array = np.where(rows["since_ns"] > 0, rows["since_ns"], rows["at_ns"])
    return times


_TURNS_NS = 2 * SECOND_NS
"""Routers whose last answers to a probe series are closer than this take turns."""
_ADDRESS = 16
"""Bytes of an address."""
_Routers = Mapping[int, frozenset[bytes]]
"""Routers by hop."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router that answers at a hop."""

    address: str
    share: float
    """Share of the hop's answers, over all flows to the destination."""
    last_ns: int
    labels: tuple[int, ...]
    """MPLS label stack entries (RFC 3032), outermost first."""
    tos: int
    """TOS or traffic class of the last answered probe when it was sent."""
    quoted_tos: int
    """The same when it came to the router."""
    altered: Altered
    """Other fields of that probe that were changed on the way."""


@dataclass(frozen=True, slots=True)
class Way:
    """Flows whose probes are answered by the same routers, as far as any router answers."""

    flows: tuple[TracedFlow, ...]
    """In the order of the list of flows."""
    branch: str = ""
    """The first router that tells it from another way, `hop 3 10.94.8.2`, or `no answer`."""
    is_known: bool = True
    """Whether any router answers."""


def ways_of(view: PathView, places: Mapping[TracedFlow, Array]) -> tuple[Way, ...]:
    """Return the ways to a destination, those with the first flows first.

    `places` has the places in `view.series` of each flow to the destination. Only the routers of
    the last answers count. A flow that some hops do not answer joins the first way that its other
    hops allow. Flows without an answer make one way.
    """
    alike: defaultdict[tuple[tuple[int, frozenset[bytes]], ...], list[TracedFlow]]
    alike = defaultdict(list)
    of = _routers_of(view, places)
    for flow in places:
        alike[tuple(sorted(of.get(flow, {}).items()))].append(flow)
    ways: list[tuple[dict[int, frozenset[bytes]], list[TracedFlow]]] = []
    for known, flows in sorted(alike.items(), key=lambda one: (-len(one[0]), -len(one[1]))):
        routers = dict(known)
        for way, members in ways:
            if bool(way) == bool(routers) and _fit(way, routers):
                members += flows
                for hop, found in routers.items():
                    way[hop] = way.get(hop, frozenset()) | found
                break
        else:
            ways.append((routers, list(flows)))
    order = {flow: number for number, flow in enumerate(places)}
    made = []
    for way, members in ways:
        others = [other for other, _ in ways if other is not way]
        members.sort(key=order.__getitem__)
        branch = _branch(way, others, _version(view, places)) if way or not others else "no answer"
        made.append(Way(tuple(members), branch, bool(way)))
    return tuple(sorted(made, key=lambda one: order[one.flows[0]]))


def routers_of(view: PathView, every: Array, own: Array) -> dict[int, tuple[Router, ...]]:
    """Return the routers of a destination by hop. Its series stand at places `every` (n,).

    Routers that take turns at `own` (m,), some of those places, come first.
    """
    series, known = view.series, view.responders
    belongs = np.zeros(len(series), "u1")
    belongs[every] = 1
    belongs[own] = 2
    at = np.searchsorted(series["id"], known["series"])
    kept = np.flatnonzero(belongs[at])
    rows, at = known[kept], at[kept]
    raw = rows["responder"].tobytes()
    hops: dict[int, dict[bytes, list[int]]] = {}
    for row, number in enumerate(series["hop"][at].tolist()):
        address = raw[row * _ADDRESS : (row + 1) * _ADDRESS]
        hops.setdefault(number, {}).setdefault(address, []).append(row)
    # Plain numbers are faster than arrays of few rows.
    answers, last_ns = rows["answers"].tolist(), rows["last_ns"].tolist()
    is_own = (belongs[at] == 2).tolist()
    version = int(series["version"][every[0]]) if len(every) else 0

    def at_hop(addresses: dict[bytes, list[int]]) -> tuple[Router, ...]:
        here = [row for found in addresses.values() for row in found]
        total = sum(answers[row] for row in here)
        newest = max((last_ns[row] for row in here if is_own[row]), default=0)
        routers: list[tuple[tuple[bool, int], Router]] = []
        for address, found in sorted(addresses.items()):
            turn = [row for row in found if is_own[row] and last_ns[row] > newest - _TURNS_NS]
            last = max(found, key=last_ns.__getitem__)
            labels = tuple(rows["labels"][last][: int(rows["label_count"][last])].tolist())
            share = sum(answers[row] for row in found) / total
            router = Router(
                address_text(address, version), share, last_ns[last], labels,
                int(rows["tos"][last]), int(rows["quoted_tos"][last]),
                Altered(int(rows["altered"][last])),
            )  # fmt: skip
            routers.append(((bool(turn), sum(answers[row] for row in turn)), router))
        return tuple(
            router for _, router in sorted(routers, key=lambda pair: pair[0], reverse=True)
        )

    return {number: at_hop(addresses) for number, addresses in hops.items()}


def _routers_of(
    view: PathView, places: Mapping[TracedFlow, Array]
) -> dict[TracedFlow, dict[int, frozenset[bytes]]]:
    """Return the routers that answer each flow now, by hop."""
    series, known = view.series, view.responders
    flow_of = np.full(len(series), -1)
    for number, at in enumerate(places.values()):
        flow_of[at] = number
    at = np.searchsorted(series["id"], known["series"])
    newest = np.zeros(len(series), "i8")
    np.maximum.at(newest, at, known["last_ns"])
    recent = (flow_of[at] >= 0) & (known["last_ns"] > newest[at] - _TURNS_NS)
    flows = list(places)
    found: defaultdict[TracedFlow, defaultdict[int, set[bytes]]]
    found = defaultdict(lambda: defaultdict(set))
    rows = zip(
        flow_of[at[recent]].tolist(), series["hop"][at[recent]].tolist(),
        known["responder"][recent], strict=True,
    )  # fmt: skip
    for number, hop, responder in rows:
        found[flows[number]][hop].add(responder.tobytes())
    return {
        flow: {hop: frozenset(routers) for hop, routers in hops.items()}
        for flow, hops in found.items()
    }


def _fit(way: _Routers, other: _Routers) -> bool:
    """Whether no hop contradicts: routers of equal-cost paths by packet take turns."""
    return all(way[hop] & routers for hop, routers in other.items() if hop in way)


def _branch(way: _Routers, others: Iterable[_Routers], version: int) -> str:
    apart = {
        hop
        for other in others
        for hop, routers in other.items()
        if hop in way and not way[hop] & routers
    }
    if not apart:
        return ""
    hop = min(apart)
    return f"hop {hop} {address_text(min(way[hop]), version)}"


def _version(view: PathView, places: Mapping[TracedFlow, Array]) -> int:
    first = next((at[0] for at in places.values() if len(at)), None)
    return 4 if first is None else int(view.series["version"][first])
