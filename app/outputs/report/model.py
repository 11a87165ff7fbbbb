"""A report as values: what the renderers show. `build` makes it from a tally."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.outputs.networks import Describe, RouterFacts, nothing_known
from app.outputs.path_views import label_text
from app.outputs.report.tally import DestinationTally, PathTally, RouterTally, TimeTally
from bpf.arrays import Array
from probes.filter.hosts import address_text
from probes.path.analysis.statistics import cleared, loss_interval
from probes.path.records import DESTINATION_HOP, Altered, MeasuredBy, PathRowKind, ProbeOutcome
from probes.path.traced import PathMtu, Traced

_NEVER_SENT = (ProbeOutcome.DROPPED, ProbeOutcome.BEYOND_PATH)
"""Outcomes of probes that say nothing about a hop of the path."""
_FEW = 5
"""Fewer probes without an answer tell of no hop behind the last router."""


@dataclass(frozen=True, slots=True)
class ReportedLoss:
    """Lost packets of those with a known end."""

    lost: int
    ended: int
    low: float
    """95 % limits of the share, 0 to 1."""
    high: float

    @classmethod
    def of(cls, lost: int, ended: int) -> ReportedLoss:
        low, high = loss_interval(np.array([lost]), np.array([ended]))
        return cls(lost, ended, float(low[0]), float(high[0]))

    @property
    def share(self) -> float | None:
        return self.lost / self.ended if self.ended else None


@dataclass(frozen=True, slots=True)
class ReportedTimes:
    """Round-trip times in nanoseconds; -1 if unknown."""

    last_ns: int = -1
    median_ns: int = -1
    min_ns: int = -1
    p95_ns: int = -1
    max_ns: int = -1
    jitter_ns: int = -1

    @classmethod
    def of(cls, times: TimeTally) -> ReportedTimes:
        return cls(
            times.last_ns,
            times.quantile(0.5),
            times.min_ns,
            times.quantile(0.95),
            times.max_ns,
            times.jitter_ns,
        )


@dataclass(frozen=True, slots=True)
class ReportedRouter:
    """A router that answered at a hop."""

    address: str
    facts: RouterFacts
    answered: int
    share: float
    """Part of the hop's answers, 0 to 1."""
    flows: int
    """Flows that it answered last."""
    times: ReportedTimes
    labels: tuple[str, ...]
    """MPLS label stack, outermost first: label:class:bottom:ttl each."""


@dataclass(frozen=True, slots=True)
class ReportedHop:
    """A hop of all flows to a destination."""

    hop: int
    sent: int
    loss: ReportedLoss
    cleared: bool
    """A later hop, or the flow itself, loses less: the router only answers seldom."""
    routers: tuple[ReportedRouter, ...]
    """The one with most answers first; empty: none answered."""
    beside: int
    """Answers to ICMP echo requests beside the flow, where its own probes get none."""
    is_stateful: bool
    """Behind this hop only whole packets pass: address translation or a firewall."""
    changes: tuple[str, ...]
    """Changes of probes by middleboxes right before this hop, such as `DSCP 46 to 0`."""


@dataclass(frozen=True, slots=True)
class ReportedTrips:
    """Round trips to the destination by one method: of the flows themselves, or of probes that it
    answers."""

    measured_by: MeasuredBy
    loss: ReportedLoss
    times: ReportedTimes


@dataclass(frozen=True, slots=True)
class ReportedEvent:
    """An event of the run."""

    utc_ns: int
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class OwnProbes:
    """Probes to a destination, and their answers."""

    sent: int
    answered: int
    lost: int
    cleared: int
    """Unanswered at hops that a later hop, or the flow itself, clears of loss."""
    dropped: int
    """Never sent: the queue was full."""
    beyond_path: int
    in_flight: int
    """Sent shortly before the end."""
    altered: int
    unmatched: int
    """Answers that belong to no probe."""
    finder: int
    """Echo requests that looked for hops beyond the last router that answers probes."""
    sent_bytes: int
    answered_bytes: int


@dataclass(frozen=True, slots=True)
class ReportedDestination:
    """All flows to one address."""

    address: str
    facts: RouterFacts
    flows: int
    more_flows: bool
    """Whether there were more than `flows`."""
    packets: int
    """Packets of the application."""
    own_flow: str
    """The flow that the tracer sent while no application did; empty for none."""
    hops: tuple[ReportedHop, ...]
    trips: tuple[ReportedTrips, ...]
    arrival: str
    """Evidence that the path arrives, if `trips` are empty."""
    probes: OwnProbes
    path_mtu: PathMtu | None
    """None: unknown."""
    notes: tuple[str, ...]
    events: tuple[ReportedEvent, ...]


@dataclass(frozen=True, slots=True)
class PathReport:
    """A whole trace."""

    interface: str
    start_utc_ns: int
    end_utc_ns: int
    destinations: tuple[ReportedDestination, ...]
    """In the order of the command line."""
    events: tuple[ReportedEvent, ...]
    """Events of no single destination."""
    forgotten_events: int


def build(
    tally: PathTally, traced: Iterable[Traced], describe: Describe = nothing_known,
    reasons: Mapping[str, Sequence[str]] | None = None,
) -> PathReport:  # fmt: skip
    """Return the report of a trace. `traced` are the last states of the destinations.

    `reasons` maps the address of a destination without probes to the causes.
    """
    tally.fold()
    tallies = {
        address_text(address, each.version): each for address, each in tally.destinations.items()
    }
    states = {each.destination: each for each in traced}
    told: dict[str, list[ReportedEvent]] = {address: [] for address in (*states, *tallies)}
    general: list[ReportedEvent] = []
    for event in tally.events:
        first, _, rest = event.text.partition(" ")
        # `192.0.2.1 hop 3: ...`, or `192.0.2.1: ...`.
        address = first if first in told else first.removesuffix(":")
        known, text = (told[address], rest) if address in told else (general, event.text)
        known.append(ReportedEvent(event.utc_ns, event.severity, text))
    destinations = (
        _destination(
            address,
            tallies.get(address, DestinationTally(6 if ":" in address else 4)),
            states.get(address),
            describe,
            tuple((reasons or {}).get(address, ())),
            tuple(told[address]),
        )
        for address in told
    )
    return PathReport(
        tally.interface,
        tally.start_utc_ns,
        tally.end_utc_ns,
        tuple(destinations),
        tuple(general),
        tally.forgotten_events,
    )


def _destination(
    address: str, tally: DestinationTally, state: Traced | None, describe: Describe,
    reasons: tuple[str, ...], events: tuple[ReportedEvent, ...],
) -> ReportedDestination:  # fmt: skip
    is_clear = _cleared(tally)
    hops = tuple(_hops(address, tally, state, is_clear, describe))
    return ReportedDestination(
        address,
        describe(address),
        len(tally.flows),
        tally.more_flows,
        state.packets if state else 0,
        state.own_flow if state else "",
        hops,
        tuple(_trips(address, tally)),
        _arrival(state),
        _probes(tally, state, is_clear),
        state.path_mtu if state else None,
        (*_notes(state), *reasons),
        events,
    )


def _notes(state: Traced | None) -> Iterator[str]:
    if state:
        yield from state.notes
        if state.foreign:
            yield f"another tracer on this host sent {state.foreign} probes, which count nowhere"


def _cleared(tally: DestinationTally) -> Array:
    """Whether a later hop, or the flow itself, clears each hop (HOP_COUNT,) of its loss."""
    outcomes = tally.outcomes + tally.beside
    lost = outcomes[:, ProbeOutcome.UNANSWERED]
    answered = outcomes[:, : ProbeOutcome.UNREACHABLE + 1].sum(axis=1)
    for trips in tally.ended_trips.values():
        answered[DESTINATION_HOP] += trips[0]
        lost[DESTINATION_HOP] += trips[1]
    found: Array = cleared(lost[np.newaxis], (lost + answered)[np.newaxis])[0]
    return found


def _hops(
    destination: str, tally: DestinationTally, state: Traced | None, is_clear: Array,
    describe: Describe,
) -> Iterator[ReportedHop]:  # fmt: skip
    by_hop: dict[int, list[tuple[bytes, RouterTally]]] = {}
    for (hop, address), router in tally.routers.items():
        if address_text(address, tally.version) != destination:
            by_hop.setdefault(hop, []).append((address, router))
    arrives = len(tally.routers) > sum(map(len, by_hop.values()))
    length, stateful = (state.length, state.stateful_hop) if state else (0, 0)
    for hop in range(1, max([length, *by_hop]) + 1):
        outcomes = tally.outcomes[hop] + tally.beside[hop]
        sent = int(outcomes.sum() - outcomes[[*_NEVER_SENT]].sum())
        if not sent and tally.beside[hop:].any():
            # A silent router: later ones answer requests beside the flow.
            sent = int(outcomes[ProbeOutcome.BEYOND_PATH])
        answered = int(outcomes[: ProbeOutcome.UNREACHABLE + 1].sum())
        lost = int(outcomes[ProbeOutcome.UNANSWERED])
        if not sent:
            continue
        found = sorted(by_hop.get(hop, ()), key=lambda each: -each[1].times.count)
        alone = arrives and sent < _FEW and hop > max(by_hop, default=0)
        if not found and (answered or alone):
            continue  # The destination answered, or will be found nearer.
        yield ReportedHop(
            hop,
            sent,
            ReportedLoss.of(lost, answered + lost),
            bool(is_clear[hop]),
            tuple(_router(tally, hop, *each, answered, describe) for each in found),
            int(tally.beside[hop, : ProbeOutcome.UNREACHABLE + 1].sum()),
            hop == stateful,
            tuple(_change(kind, amount) for where, kind, amount in tally.changes if where == hop),
        )


def _router(
    tally: DestinationTally, hop: int, address: bytes, router: RouterTally, answered: int,
    describe: Describe,
) -> ReportedRouter:  # fmt: skip
    text = address_text(address, tally.version)
    return ReportedRouter(
        text,
        describe(text),
        router.times.count,
        router.times.count / answered,
        sum(routers.get(hop) == address for routers in tally.flows.values()),
        ReportedTimes.of(router.times),
        tuple(map(label_text, router.labels)),
    )


def _change(kind: PathRowKind, amount: int) -> str:
    if kind is PathRowKind.ALTERED:
        return f"{str(Altered(amount).name).lower()} changed"
    sent, quoted = amount >> 8, amount & 255
    parts = ("DSCP", sent >> 2, quoted >> 2), ("ECN", sent & 3, quoted & 3)
    return ", ".join(f"{name} {old} to {new}" for name, old, new in parts if old != new)


def _trips(destination: str, tally: DestinationTally) -> Iterator[ReportedTrips]:
    for method, (answered, lost) in sorted(tally.ended_trips.items()):
        times = tally.trips.get(method, RouterTally()).times
        loss = ReportedLoss.of(int(lost), int(answered + lost))
        yield ReportedTrips(method, loss, ReportedTimes.of(times))
    # A destination that answers probes does so at every hop from its own on.
    own = [key for key in tally.routers if address_text(key[1], tally.version) == destination]
    if own and not tally.ended_trips:
        hop, router = min(own)[0], tally.routers[min(own)]
        outcomes = tally.outcomes[hop] + tally.beside[hop]
        answered, lost = router.times.count, int(outcomes[ProbeOutcome.UNANSWERED])
        loss = ReportedLoss.of(lost, answered + lost)
        yield ReportedTrips(MeasuredBy.PROBE, loss, ReportedTimes.of(router.times))


def _arrival(state: Traced | None) -> str:
    """Return the evidence that the path reaches the destination, if no round trip shows it."""
    if state and state.end:
        return f"answers an echo request at hop {state.end}"
    if state and state.heard:
        return "sends packets to this host"
    return "nothing tells whether the path arrives"


def _probes(tally: DestinationTally, state: Traced | None, is_clear: Array) -> OwnProbes:
    by_outcome = tally.outcomes.sum(axis=0)
    dropped = int(by_outcome[ProbeOutcome.DROPPED])
    unanswered = tally.outcomes[:DESTINATION_HOP, ProbeOutcome.UNANSWERED]
    spared = int(unanswered[is_clear[:DESTINATION_HOP]].sum())
    return OwnProbes(
        sent=int(by_outcome.sum()) - dropped,
        answered=int(by_outcome[: ProbeOutcome.UNREACHABLE + 1].sum()),
        lost=int(unanswered.sum()) - spared,
        cleared=spared,
        dropped=dropped,
        beyond_path=int(by_outcome[ProbeOutcome.BEYOND_PATH]),
        in_flight=int(by_outcome[ProbeOutcome.IN_FLIGHT]),
        altered=tally.altered,
        unmatched=state.unmatched if state else 0,
        finder=state.finder if state else 0,
        sent_bytes=state.sent_bytes if state else 0,
        answered_bytes=state.matched_bytes if state else 0,
    )
