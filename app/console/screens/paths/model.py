"""The model of screen 2: paths to choose from, and measurements of their hops."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np

from app.console.live.paths import BIN, IDLE_NS, SECOND_NS, SERIES, LivePaths, PathView, RecentTimes
from app.console.screens.paths.hop import (
    ECHO,
    HOP,
    NUMBERS,
    PATH,
    PathKey,
    Router,
    Way,
    add_delays,
    numbers_of,
    routers_of,
    since,
    ways_of,
)
from app.console.screens.paths.spells import Spell, spells
from bpf.arrays import Array, Row, Rows
from probes.filter.hosts import address_text
from probes.path import records
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP, PathRowKind
from probes.path.traced import NO_ROUTER, Traced
from widgets.sparkline import means

MINUTE = IDLE_NS // SECOND_NS
"""Seconds of all numbers but totals."""
CELL = 2
"""Seconds of a cell of the time line. Cells begin at even seconds, so that all move together."""
_QUIET_NS = 5 * SECOND_NS
"""A flow without a probe for this long has ended."""
_FEW = 5
"""Seconds of the mean that stands for the present."""
ROUTE = (
    PathRowKind.RESPONDER,
    PathRowKind.LONGER,
    PathRowKind.SHORTER,
    PathRowKind.SILENT,
    PathRowKind.ANSWERS,
)
"""Findings that the route changed."""
_NOWHERE = np.empty(0, int)
_ARRIVED = 0
"""Number of a hop at which the destination itself answers probes."""


@dataclass(slots=True)
class Paths:
    """A view and the running traces, arranged by path."""

    view: PathView = field(default_factory=lambda: LivePaths().view())
    choices: tuple[PathKey, ...] = ()
    host: str = ""
    """Of its keys."""
    numbers: Array = field(default_factory=lambda: np.empty(0, "u1"))
    """Number of the hop of each series: a router's TTL, DESTINATION_HOP, or _ARRIVED."""
    _places: dict[PathKey, Array] = field(default_factory=dict)
    _running: dict[str, Traced] = field(default_factory=dict)
    _groups: dict[tuple[PathKey, int], Array] = field(default_factory=dict)
    _ways: dict[str, tuple[Way, ...]] = field(default_factory=dict)
    _known: tuple[object, ...] = ()
    _of: dict[int, tuple[PathKey, PathKey]] = field(default_factory=dict)
    """Each series' destination and flow."""
    _ended: Array = field(default_factory=lambda: np.empty(0, bool))
    """Series whose probes have ended, as a mask."""
    _last_minute: tuple[object, Array] = (None, np.empty(0, NUMBERS))
    _recent: RecentTimes = field(default_factory=lambda: RecentTimes(_NOWHERE))
    _summaries: dict[PathKey, np.void] = field(default_factory=dict)
    _routers: dict[PathKey, dict[int, tuple[Router, ...]]] = field(default_factory=dict)
    _changes: dict[PathKey, Array] = field(default_factory=dict)
    _marks: dict[PathKey, dict[int, list[int]]] = field(default_factory=dict)
    _spells: dict[PathRowKind, list[Spell]] = field(default_factory=dict)
    """Caches: cleared once a second and after findings."""
    _found: tuple[object, ...] = ()
    edition: int = 0
    """Incremented when the path list must be redrawn; hop rows change more often."""

    def take(self, view: PathView, traced: tuple[Traced, ...]) -> None:
        self.view = view
        self._running = {one.destination: one for one in traced}
        flows = tuple((one.destination, one.flows) for one in traced)
        known = (view.generation, view.second, flows)
        if self._known != known:
            self._known = known
            self._arrange()
        told = tuple((one.packets > 0, one.matched > 0, one.length, one.notes) for one in traced)
        found = (known, told, view.changes[-1:].tobytes(), view.series["queue_ns"].tobytes())
        if self._found != found:
            self._found = found
            self.edition += 1
            for made in (
                self._summaries, self._routers, self._changes, self._marks, self._spells
            ):  # fmt: skip
                made.clear()

    def _arrange(self) -> None:
        places: dict[PathKey, list[int]] = {}
        for one in self._running.values():
            for flow in (None, *one.flows):
                places[self._key(one.destination, flow)] = []
        series = self.view.series
        self.numbers = np.where(self.view.arrived, _ARRIVED, series["hop"])
        keys = [series[name] for name in ("source_port", "protocol", "first_ns")]
        # Flows that have ended come last.
        self._ended = self.view.now_ns - series["seen_ns"] > _QUIET_NS
        order = np.lexsort([*keys, self._ended])
        ids = series["id"].tolist()
        of = {identity: self._of.get(identity) for identity in ids}
        self._of = {
            identity: known or self._choices_of(series[place])
            for place, (identity, known) in enumerate(of.items())
        }
        for place in order.tolist():
            for choice in self._of[ids[place]]:
                places.setdefault(choice, []).append(place)
        self._places = {choice: np.array(found, int) for choice, found in places.items()}
        self._groups.clear()
        self._ways.clear()
        destinations = [choice.destination for choice in places if choice.flow is None]
        self.choices = tuple(
            chain.from_iterable(self._of_destination(name) for name in destinations)
        )

    def _key(self, destination: str, flow: TracedFlow | None = None) -> PathKey:
        return PathKey(destination, flow, host=self.host)

    def _choices_of(self, row: Row[SERIES]) -> tuple[PathKey, PathKey]:
        destination = address_text(row["destination"].tobytes(), int(row["version"]))
        protocol = int(row["protocol"])
        ports = (int(row["source_port"]), int(row["destination_port"]))
        flow = TracedFlow(protocol, *((0, 0) if protocol in ECHO else ports))
        return self._key(destination), self._key(destination, flow)

    def _of_destination(self, name: str) -> Iterable[PathKey]:
        flows = self.flows(name)
        yield self._key(name)
        if len(flows) > 1:
            yield from (self._key(name, flow) for flow in flows)

    def flows(self, destination: str) -> list[TracedFlow]:
        """Return the flows to a destination, oldest first."""
        return [
            choice.flow
            for choice in self._places
            if choice.destination == destination and choice.flow and not choice.is_way
        ]

    def ways(self, destination: str) -> tuple[Way, ...]:
        """Return the ways that the flows to a destination take."""
        if destination not in self._ways:
            places = {flow: self._places[self._key(destination, flow)]
                      for flow in self.flows(destination)}  # fmt: skip
            self._ways[destination] = ways_of(self.view, places)
        return self._ways[destination]

    def members(self, choice: PathKey) -> Sequence[TracedFlow]:
        """Return the flows of a path."""
        if choice.flow is None:
            return self.flows(choice.destination)
        ways = self.ways(choice.destination) if choice.is_way else ()
        return next((way.flows for way in ways if choice.flow == way.flows[0]), (choice.flow,))

    def _at(self, choice: PathKey) -> Array:
        """Return the places of a path's series."""
        if choice.is_way and choice not in self._places:
            flows = [self._key(choice.destination, flow) for flow in self.members(choice)]
            groups = [self._places.get(flow, _NOWHERE) for flow in flows]
            self._places[choice] = np.sort(np.concatenate(groups))
        return self._places.get(choice, _NOWHERE)

    def nearest(self, wanted: PathKey) -> PathKey | None:
        """Return `wanted` or its destination, whichever is known; otherwise None."""
        known = (choice for choice in (wanted, wanted.whole))
        return next((choice for choice in known if choice.is_way or choice in self.choices), None)

    def is_measured(self, choice: PathKey) -> bool:
        """Whether any probe or round trip of a path has come to its end."""
        return len(self._at(choice)) > 0

    def running(self, destination: str) -> Traced | None:
        """Return the trace of a destination, or None."""
        return self._running.get(destination)

    def summary(self, choice: PathKey) -> np.void:
        """Return a path as a row of dtype PATH."""
        if choice not in self._summaries:
            self._sum_up({choice, *self.choices} - self._summaries.keys())
        return self._summaries[choice]

    def _sum_up(self, choices: Iterable[PathKey]) -> None:
        # Together: one by one takes several times as long.
        ends = {choice: self._at_hop(choice, DESTINATION_HOP) for choice in choices}
        places, of = _joined(list(ends.values()))
        bins = self.view.recent(places, MINUTE)

        def total(name: str, seconds: int) -> list[float]:
            sums = bins[name][:, -seconds:].sum(axis=1)
            found: list[float] = np.bincount(of, sums, len(ends)).tolist()
            return found

        for choice, answered, lost, untimed, *times in zip(
            ends, total("answered", MINUTE), total("lost", MINUTE), total("untimed", MINUTE),
            total("rtt_ns", _FEW),
            total("answered", _FEW), total("rtt_ns", MINUTE), strict=True,
        ):  # fmt: skip
            places, running = self._at(choice), self.running(choice.destination)
            rtt_ns, count = times[:2] if times[1] else (times[2], answered)
            lost = 0 if self._has_arrived(ends[choice]) else lost
            ended = answered + untimed + lost
            row = np.zeros(1, PATH)[0]
            address = ipaddress.ip_address(choice.destination)
            row["destination"] = np.frombuffer(address.packed.ljust(16, b"\0"), "u1")
            row["version"], row["node"] = address.version, choice.host
            flows = [choice.flow] if choice.flow else self.flows(choice.destination)
            if len(flows) == 1:
                row["protocol"], row["source_port"], row["destination_port"] = flows[0]
            row["hops"] = self._length(choice) or (0 if self._is_near(choice) else np.nan)
            row["rtt"] = rtt_ns / count / 1e9 if count else np.nan
            row["loss"] = lost / ended if ended else np.nan
            row["samples"] = answered
            row["methods"] = np.bitwise_or.reduce(self.view.series["methods"][ends[choice]])
            queues = np.where(self._ended[places], 0, self.view.series["queue_ns"][places])
            if queues.any():
                most = np.argmax(queues)
                row["queue"] = queues[most] / 1e9
                row["queue_hop"] = self.numbers[places[most]] or DESTINATION_HOP
            # The view forgets series that ended long ago.
            matched = bool(running and running.matched)
            row["ended"] = self._ended[places].all() if len(places) else matched
            self._summaries[choice] = row

    def _length(self, choice: PathKey) -> int:
        """Return the number of routers on a path, as far as is known."""
        places, running = self._at(choice), self.running(choice.destination)
        numbers = self.numbers[places][self.view.series["last_ns"][places] >= 0]
        farthest = int(numbers[numbers < DESTINATION_HOP].max(initial=0))
        return running.length if running and running.length else farthest

    def _is_near(self, choice: PathKey) -> bool:
        """Whether no router stands before the destination, by the TTL of its packets."""
        running = self.running(choice.destination)
        return running is not None and NO_ROUTER in running.notes

    def _has_arrived(self, places: Array) -> bool:
        """Whether series at `places` have the destination's answers to all or some probes."""
        return len(places) > 0 and self.numbers[places[0]] == _ARRIVED

    def hops(self, choice: PathKey, cells: int) -> Rows[HOP]:
        """Return the routers of a path, then the destination, dtype HOP, with the delay that each
        adds and time lines of `cells` cells."""
        places = self._at(choice)
        answering = self.numbers[places][self.view.series["last_ns"][places] >= 0]
        routers = answering[answering < DESTINATION_HOP]
        length = int(routers.max(initial=self._length(choice) if len(places) else 0))
        numbers = [*range(1, length + 1)]
        if length or len(answering):
            numbers.append(DESTINATION_HOP)
        hops = self.hops_at([(choice, number) for number in numbers], cells)
        add_delays(hops)
        return hops

    def hops_at(self, wanted: Sequence[tuple[PathKey, int]], cells: int) -> Rows[HOP]:
        """Return hops by path and number, dtype HOP, with time lines of `cells` cells."""
        groups = {one: self._at_hop(*one) for one in wanted}
        hops = np.zeros(len(wanted), HOP)
        hops[list(NUMBERS.names or ())] = self._minute(groups)
        hops["hop"] = hops["ttl"] = [number for _, number in wanted]
        hops["is_end"] = hops["hop"] == DESTINATION_HOP
        hops["adds"] = hops["adds_queue"] = np.nan
        last_ns, seen_ns, queue_ns, cleared, methods = (
            self.view.series[name].tolist()
            for name in ("last_ns", "seen_ns", "queue_ns", "cleared", "methods")
        )
        lines = self._lines(list(groups.values()), cells)
        hop: Any
        for hop, (choice, number), (averages, lost) in zip(hops, wanted, lines, strict=True):
            places = groups[choice, number]
            # Plain numbers are faster than arrays of few series.
            at = places.tolist()
            heard = [place for place in at if last_ns[place] >= 0]
            newest = max(heard, key=seen_ns.__getitem__, default=None)
            hop["last"] = np.nan if newest is None else last_ns[newest] / 1e9
            hop["queue_ns"] = max((queue_ns[n] for n in at if not self._ended[n]), default=0)
            hop["cleared"] = bool(at) and all(cleared[place] for place in at)
            hop["methods"] = reduce(or_, (methods[place] for place in at), 0)
            if self._has_arrived(places):
                hop["sent"], lost = hop["answered"], np.zeros_like(lost)
                hop["loss"] = 0.0 if hop["sent"] else np.nan
            marked = np.zeros(len(lost), bool)
            for cell in self._marked(choice).get(number, ()):
                ago = self.view.second // CELL - cell
                if 0 <= ago < len(lost):
                    marked[-1 - ago] = True
            if hop["is_end"]:
                running = self.running(choice.destination)
                length = running.length if running else 0
                hop["ttl"] = length + 1 if length or self._is_near(choice) else -1
            hop["places"], hop["routers"] = places, self._answering(choice).get(number, ())
            hop["means"], hop["lost"], hop["marked"] = averages, lost, marked
        hops["forgiven"] = hops["cleared"] | (hops["answered"] == 0) & ~hops["is_end"]
        return hops

    def _at_hop(self, choice: PathKey, number: int) -> Array:
        if (choice, number) not in self._groups:
            places = self._at(choice)
            found = places[self.numbers[places] == number]
            if number == DESTINATION_HOP and not len(found):
                found = places[self.numbers[places] == _ARRIVED]
            self._groups[choice, number] = found
        return self._groups[choice, number]

    def _lines(self, groups: Sequence[Array], cells: int) -> list[tuple[Array, Array]]:
        """Return means in seconds and losses of each group of places, (cells,), newest last."""
        # The newest cell may be incomplete.
        cells, begun = max(0, cells), self.view.second % CELL + 1
        places, of = _joined(groups)
        bins = np.zeros((len(places), cells * CELL), BIN)
        seconds = bins.shape[1] - CELL + begun
        bins[:, :seconds] = self.view.recent(places, seconds)
        sums = np.zeros((3, len(groups), cells))
        for total, name in zip(sums, ("rtt_ns", "answered", "lost"), strict=True):
            np.add.at(total, of, bins[name].reshape(len(places), cells, CELL).sum(axis=2))
        return list(zip(means(sums[0], sums[1]) / 1e9, sums[2] > 0, strict=True))

    def _marked(self, choice: PathKey) -> dict[int, list[int]]:
        """Return, by hop, the cells in which the route changed, counted from the clock's zero."""
        if choice not in self._marks:
            changes = self.changes(choice)
            route = changes[np.isin(changes["kind"], ROUTE)]
            marks = self._marks[choice] = {}
            cells = since(route) // (CELL * SECOND_NS)
            for number, cell in zip(route["hop"].tolist(), cells.tolist(), strict=True):
                marks.setdefault(number, []).append(cell)
        return self._marks[choice]

    def _answering(self, choice: PathKey) -> dict[int, tuple[Router, ...]]:
        if choice not in self._routers:
            every, own = (
                places[self.numbers[places] != _ARRIVED]
                for key in (choice.whole, choice)
                for places in (self._places.get(key, _NOWHERE),)
            )
            self._routers[choice] = routers_of(self.view, every, own)
        return self._routers[choice]

    def _minute(self, groups: Mapping[tuple[PathKey, int], Array]) -> Array:
        key = (tuple(groups), self.view.second, self.view.generation)
        if self._last_minute[0] != key:
            series = self.view.series
            of = np.full(len(series), -1)
            for place, places in enumerate(groups.values()):
                of[places] = place
            ids = series["id"][of >= 0]
            if not np.array_equal(self._recent.ids, ids):
                self._recent = RecentTimes(ids)
            times = self._recent.of(self.view)
            self._last_minute = key, numbers_of(*times, of[of >= 0], len(groups))
        return self._last_minute[1]

    def spells(self, kind: PathRowKind) -> list[Spell]:
        """Return the queues or losses (QUEUE or LOSS) of all paths, newest first."""
        if kind not in self._spells:
            self._spells[kind] = spells(self.view, kind, self._ended)
        return self._spells[kind]

    def comparisons(self, choice: PathKey, number: int) -> Rows[records.PATH]:
        """Return the newest row of BRANCH, dtype PATH, for each two ways to the destination that
        part at hop `number` or are compared there (S3.20)."""
        rows = self.changes(choice.whole)
        rows = rows[rows["kind"] == PathRowKind.BRANCH]
        rows = rows[(rows["amount"] == number) | (rows["hop"] == number)][::-1]
        ways = np.concatenate((rows["responder"], rows["previous"]), axis=1)
        return rows[np.sort(np.unique(ways, axis=0, return_index=True)[1])]

    def changes(self, choice: PathKey) -> Rows[records.PATH]:
        """Return the findings about a path, dtype PATH, oldest first."""
        if choice in self._changes:
            return self._changes[choice]
        rows = self.view.changes
        packed = ipaddress.ip_address(choice.destination).packed
        wanted = np.frombuffer(packed.ljust(16, b"\0"), "u1")
        mask = (rows["destination"] == wanted).all(axis=1)
        mask &= rows["version"] == (4 if len(packed) == 4 else 6)
        if choice.flow is not None:
            ports = (rows["source_port"], rows["destination_port"])
            is_echo = np.isin(rows["protocol"], ECHO)
            flows = np.array([rows["protocol"], *(np.where(is_echo, 0, port) for port in ports)])
            mask &= np.isin(_codes(flows), _codes(np.array(self.members(choice)).T))
        self._changes[choice] = rows[mask]
        return self._changes[choice]


def _joined(groups: Sequence[Array]) -> tuple[Array, Array]:
    """Return the places of all groups, and the group of each, (n,)."""
    of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return np.concatenate([_NOWHERE, *groups]), of


def _codes(flows: Array) -> Array:
    """Return a number for each flow: protocol, source port and destination port, (3, n)."""
    protocol, source, destination = flows.astype("i8")
    found: Array = protocol << 32 | source << 16 | destination
    return found
