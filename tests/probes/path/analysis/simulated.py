"""Simulated paths, like the lab's and like wide-area networks', made from a seed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bpf.arrays import Array
from probes.path.analysis.watch import Analysis
from probes.path.events.folding import EventFolder
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.records import DESTINATION_HOP, HOP, PATH, MeasuredBy, PathRowKind, ProbeOutcome

SECOND = 1_000_000_000
START = 5_000 * SECOND
POLL = SECOND // 4
TIMEOUT = 3 * SECOND
DESTINATION = "10.94.6.2"

Times = Callable[[Array, np.random.Generator], Array]
"""Round-trip times in ns (n,) of probes sent at seconds (n,); NaN: no answer."""
Routers = Callable[[Array, np.random.Generator], Array]
"""The number (n,) of the router that answers."""


def raw(text: str) -> bytes:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return socket.inet_pton(family, text).ljust(16, b"\0")


def router(number: int) -> bytes:
    """The address of a router."""
    return raw(f"10.94.{number // 256}.{number % 256}")


def idle(level_us: float = 20.0, spread_us: float = 5.0, outliers: float = 0.002) -> Times:
    """As over veth: quiet, now and then 2 ms."""

    def times(seconds: Array, rng: np.random.Generator) -> Array:
        made: Array = level_us * 1e3 + rng.normal(0, spread_us / 2, len(seconds)) * 1e3
        made = np.maximum(made, level_us * 500)
        made[rng.random(len(seconds)) < outliers] += 2e6
        return made

    return times


def wide_area(level_ms: float = 50.0, jitter_ms: float = 1.0, drift_ms: float = 2.0) -> Times:
    """Jitter with a long tail, and a slow drift of the level."""

    def times(seconds: Array, rng: np.random.Generator) -> Array:
        drift = drift_ms * np.sin(seconds / 120 * 2 * np.pi)
        return (level_ms + drift + rng.gamma(2.0, jitter_ms / 2, len(seconds))) * 1e6

    return times


def sawtooth(seconds: Array, begin: float = 0, end: float = 1e9) -> Array:
    """Queueing delay, ns, of a TCP in a bottleneck of 20 Mbit/s and 200 ms."""
    into = seconds - begin
    fill = np.minimum(into / 0.6, 1.0) * 200
    tooth = 90 + (into - 0.8) % 6 / 6 * 110
    delay = np.where(into < 0.8, fill, tooth)
    return np.where((into < 0) | (seconds > end), 0.0, delay * 1e6)


def plus(times: Times, more: Callable[[Array], Array], noise_ms: float = 0.3) -> Times:
    """Times with a delay of the moment added; where there is any, it comes in whole packets."""

    def added(seconds: Array, rng: np.random.Generator) -> Array:
        delay = more(seconds)
        noise = np.where(delay > 0, rng.uniform(0, 2 * noise_ms, len(seconds)) * 1e6, 0)
        return times(seconds, rng) + delay + noise

    return added


def answering(times: Times, share: float) -> Times:
    """Of which only a share is answered."""

    def some(seconds: Array, rng: np.random.Generator) -> Array:
        return np.where(rng.random(len(seconds)) < share, times(seconds, rng), np.nan)

    return some


def unanswered(times: Times, begin: float, end: float = 1e9) -> Times:
    """Not answered between two moments."""

    def some(seconds: Array, rng: np.random.Generator) -> Array:
        dark = (seconds >= begin) & (seconds < end)
        return np.where(dark, np.nan, times(seconds, rng))

    return some


def after(moment: float, first: int, then: int) -> Routers:
    return lambda seconds, rng: np.where(seconds < moment, first, then)


def in_turn(*numbers: int) -> Routers:
    return lambda seconds, rng: rng.choice(np.array(numbers), len(seconds))


@dataclass
class Hop:
    times: Times = field(default_factory=idle)
    routers: Routers | int = 0
    """0: the router has the hop's number."""


@dataclass
class Flow:
    """A flow, and the probes that go with it."""

    hops: list[Hop]
    port: int = 40000
    destination: str = DESTINATION
    rate: float = 100.0
    """Probes per second and hop."""
    begin: float = 0.0
    end: float = 10.0
    pause: tuple[float, float] = (0.0, 0.0)
    """Nothing is sent in between."""
    end_to_end: Hop | None = None
    """Round trips of the flow itself."""

    def rows(self, rng: np.random.Generator) -> Array:
        """dtype HOP (n,), without sequence numbers."""
        made = [self._rows_of(number, hop, rng) for number, hop in enumerate(self.hops, 1)]
        if self.end_to_end:
            own = self._rows_of(DESTINATION_HOP, self.end_to_end, rng)
            own["measured_by"] = MeasuredBy.ICMP_ECHO
            answered = own["outcome"] == ProbeOutcome.ANSWERED
            own["responder"][answered] = own["destination"][answered]
            made.append(own)
        return np.concatenate(made, dtype=HOP)

    def _rows_of(self, number: int, hop: Hop, rng: np.random.Generator) -> Array:
        count = int((self.end - self.begin) * self.rate)
        steps = (
            np.arange(count)
            + number % DESTINATION_HOP / (len(self.hops) + 1)
            + rng.uniform(-0.02, 0.02, count)
        )
        seconds = self.begin + steps / self.rate
        seconds = seconds[(seconds < self.pause[0]) | (seconds >= self.pause[1])]
        rtts = hop.times(seconds, rng)
        numbers: Array = np.full(len(seconds), hop.routers or number)
        if callable(hop.routers):
            numbers = hop.routers(seconds, rng)
        made = np.zeros(len(seconds), HOP)
        made["version"] = 6 if ":" in self.destination else 4
        made["destination"] = np.frombuffer(raw(self.destination), "u1")
        made["source"] = np.frombuffer(raw("10.94.0.1"), "u1")
        made["source_port"], made["destination_port"], made["protocol"] = self.port, 5201, 6
        made["hop"] = number
        made["sent_ns"] = START + (seconds * SECOND).astype("i8")
        answered = ~np.isnan(rtts)
        made["outcome"] = np.where(answered, ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED)
        made["received_ns"][answered] = made["sent_ns"][answered] + rtts[answered].astype("i8")
        each, at = np.unique(numbers, return_inverse=True)
        addresses = np.array([np.frombuffer(router(int(one)), "u1") for one in each])
        made["responder"][answered] = addresses[at[answered]] if answered.any() else 0
        return made


def path(count: int = 6, times: Times | None = None) -> list[Hop]:
    """Hops in their usual state."""
    return [Hop(times or idle(18.0 + 2 * number)) for number in range(count)]


def queue_at(
    hops: list[Hop], number: int, delay: Callable[[Array], Array], noise_ms: float = 0.3
) -> list[Hop]:
    """A delay at a hop: for all from there on."""
    return [
        replace(hop, times=plus(hop.times, delay, noise_ms)) if at >= number else hop
        for at, hop in enumerate(hops, 1)
    ]


def probes(*flows: Flow, seed: int = 1) -> Array:
    """Rows of dtype HOP of all flows, in order of their ends, numbered in order of sending."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([flow.rows(rng) for flow in flows], dtype=HOP)
    rows = rows[np.argsort(rows["sent_ns"], kind="stable")]
    for destination in np.unique(rows["destination"], axis=0):
        mine = (rows["destination"] == destination).all(axis=1)
        rows["sequence"][mine] = np.arange(1, mine.sum() + 1)
    return rows[np.argsort(ends(rows), kind="stable")]


def ends(rows: Array) -> Array:
    """When the poller knows what became of each."""
    return np.where(rows["received_ns"] > 0, rows["received_ns"], rows["sent_ns"] + TIMEOUT)


class Timeline:
    """Rows of dtype HOP by their ends."""

    def __init__(self, rows: Array) -> None:
        at = ends(rows)
        self._rows, self._order = rows, np.argsort(at, kind="stable")
        self._at = at[self._order]
        self._longest = (at - rows["sent_ns"]).max(initial=0)

    def between(self, after_ns: int, until_ns: int) -> Array:
        """Rows that end after a moment and until another one, in the order of all rows."""
        first, last = np.searchsorted(self._at, (after_ns, until_ns), "right")
        found: Array = self._rows[np.sort(self._order[first:last])]
        return found

    def overdue(self, since_ns: int, now_ns: int) -> Array:
        """Rows that were sent before `since_ns`, and have not ended."""
        rows = self.between(now_ns, since_ns + self._longest)
        found: Array = rows[rows["sent_ns"] < since_ns]
        return found


def polls(rows: Array, seconds: float | None = None) -> Iterable[tuple[Array, int]]:
    """Rows as four polls a second bring them, in no order, each with the time of its poll."""
    rng = np.random.default_rng(2)
    timeline = Timeline(rows)
    last = START + int(seconds * SECOND) if seconds else int(ends(rows).max()) + SECOND + POLL
    for now_ns in range(START + POLL, last + 1, POLL):
        mine = timeline.between(now_ns - POLL, now_ns)
        yield mine[rng.permutation(len(mine))], now_ns


def judge(lengths: FlowLengths, to: bytes, overdue: Array, rows: Array, now_ns: int) -> Array:
    """As PathExtent: mark the rows of a poll to `to` beyond the path; some others are overdue."""
    address = np.frombuffer(to, "u1")
    mine = np.flatnonzero((rows["destination"] == address).all(axis=1))
    overdue = overdue[(overdue["destination"] == address).all(axis=1)]
    shortened = lengths.take(rows[mine], overdue, 0, now_ns)
    lost = mine[rows["outcome"][mine] == ProbeOutcome.UNANSWERED]
    rows["outcome"][lost[lengths.beyond(rows[lost])]] = ProbeOutcome.BEYOND_PATH
    return shortened


def findings(every: Array, seconds: float | None = None) -> Iterator[tuple[Array, int]]:
    """Findings, dtype PATH, of rows of dtype HOP as `polls` brings them, each with its poll."""
    analysis = Analysis()
    # Only unanswered probes may be beyond the path.
    judged = every if (every["outcome"] == ProbeOutcome.UNANSWERED).any() else every[:0]
    lengths = {
        to: FlowLengths(to, TIMEOUT) for to in {row.tobytes() for row in judged["destination"]}
    }
    timeline = Timeline(every)
    for rows, now_ns in polls(every, seconds):
        shortened = [rows[:0]]
        if lengths:
            overdue = timeline.overdue(now_ns - SECOND // 2, now_ns)
            shortened += [judge(each, to, overdue, rows, now_ns) for to, each in lengths.items()]
        yield analysis.add(rows, now_ns, np.concatenate(shortened, dtype=HOP)), now_ns


def analysed(every: Array, seconds: float | None = None) -> Array:
    """All findings."""
    found = [rows for rows, _ in findings(every, seconds)]
    return np.concatenate([np.empty(0, PATH), *found], dtype=PATH)


def story(*flows: Flow, seed: int = 1, seconds: float | None = None) -> list[tuple[float, str]]:
    """Events about flows: seconds and text of each."""
    folder = EventFolder()
    return [
        ((now_ns - START) / SECOND, event.text)
        for rows, now_ns in findings(probes(*flows, seed=seed), seconds)
        for event in folder.add(rows, now_ns)
    ]


def said(rows: Array) -> list[tuple[str, str]]:
    """Severity and text of each event of some rows of dtype PATH."""
    return [event[:2] for event in EventFolder().add(rows, START, final=True)]


def told(*flows: Flow, seed: int = 1, seconds: float | None = None) -> Array:
    """Findings about flows: rows of dtype PATH."""
    return analysed(probes(*flows, seed=seed), seconds)


def of(rows: Array, *kinds: PathRowKind) -> Array:
    """The rows of some kinds."""
    chosen: Array = rows[np.isin(rows["kind"], kinds)]
    return chosen


def events(rows: Array) -> Array:
    """All but summaries."""
    chosen: Array = rows[rows["kind"] != PathRowKind.SUMMARY]
    return chosen


def at(row: Array, name: str = "at_ns") -> float:
    """A time of a row in seconds of the simulation."""
    return (int(row[name]) - START) / SECOND


def summary_of(rows: Array, hop: int, port: int = 40000) -> Array:
    """Summaries of one hop of a flow."""
    mine = of(rows, PathRowKind.SUMMARY)
    chosen: Array = mine[(mine["hop"] == hop) & (mine["source_port"] == port)]
    return chosen
