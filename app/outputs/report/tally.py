"""Sums over a whole trace, from its windows: the input of a report, bounded in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from app.outputs.view import is_table
from bpf.arrays import Array, Rows
from probes.filter.hosts import address_text
from probes.path.records import (
    DESTINATION_HOP,
    FLOW_KEY,
    HOP,
    HOP_COUNT,
    HOPS_TABLE,
    PATHS_TABLE,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
    no_rows,
)
from probes.path.records import HOP as HOP_ROW
from probes.snapshot import Event, Item, Snapshot

_SHIFT = 14
"""Bits that a float32 loses: nine of its mantissa stay, so a time is exact to 0.1 %."""


class TimeTally:
    """Count, extremes, jitter and a histogram of round-trip times."""

    def __init__(self) -> None:
        self.count = 0
        self.min_ns = self.max_ns = self.last_ns = -1
        self._last_sent_ns = 0
        self._differences = 0.0
        self._pairs = 0
        self._bins = np.empty(0, "u4")
        """Upper bits of the times as float32, ascending."""
        self._counts = np.empty(0, "i8")

    def add(self, rtts_ns: Array, sent_ns: Array, flows: Array) -> None:
        """Add times (n,), n > 0, of packets sent at `sent_ns` (n,) by `flows` (n,).

        They are ordered by flow, and by time of sending within each.
        """
        self.count += len(rtts_ns)
        least = int(rtts_ns.min())
        self.min_ns = least if self.min_ns < 0 else min(self.min_ns, least)
        self.max_ns = max(self.max_ns, int(rtts_ns.max()))
        newest = int(sent_ns.argmax())
        if sent_ns[newest] >= self._last_sent_ns:
            self._last_sent_ns, self.last_ns = int(sent_ns[newest]), int(rtts_ns[newest])
        together = flows[1:] == flows[:-1]
        self._differences += float(np.abs(np.diff(rtts_ns))[together].sum())
        self._pairs += int(together.sum())
        bins, at = np.unique(
            np.concatenate([self._bins, rtts_ns.astype("f4").view("u4") >> np.uint32(_SHIFT)]),
            return_inverse=True,
        )
        weights = np.concatenate([self._counts, np.ones(len(rtts_ns), "i8")])
        self._bins, self._counts = bins, np.zeros(len(bins), "i8")
        np.add.at(self._counts, at.ravel(), weights)

    @property
    def jitter_ns(self) -> int:
        """Mean difference of consecutive times of a flow; -1 without a pair."""
        return round(self._differences / self._pairs) if self._pairs else -1

    def quantile(self, fraction: float) -> int:
        """Return the quantile by nearest rank, exact to 0.1 %; -1 without a time."""
        if not self.count:
            return -1
        rank = max(1, int(np.ceil(self.count * fraction)))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle = (self._bins[place] << np.uint32(_SHIFT)) | np.uint32(1 << (_SHIFT - 1))
        value = round(float(np.array(middle, "u4").view("f4")))
        return min(max(value, self.min_ns), self.max_ns)


MAX_FLOWS = 4096
"""Flows of a destination whose routers are kept; further ones are only counted."""
MAX_EVENTS = 500
"""Events that are kept: the newest."""
_ROWS = 1 << 17
"""Rows that are added together: one by one, small windows cost a hundred times as much."""
_FLOW_BYTES = np.dtype(list(FLOW_KEY)).itemsize
_CHANGES = (PathRowKind.MARKING, PathRowKind.ALTERED)


@dataclass(slots=True)
class RouterTally:
    """Answers of one router at one hop, or of the destination by one method."""

    times: TimeTally = field(default_factory=TimeTally)
    labels: tuple[int, ...] = ()
    """MPLS label stack entries of the last answer that had any."""


@dataclass(slots=True)
class DestinationTally:
    """Probes to one destination, and round trips of its flows."""

    version: int
    outcomes: Array = field(default_factory=lambda: np.zeros((HOP_COUNT, len(ProbeOutcome)), "i8"))
    """By hop."""
    beside: Array = field(default_factory=lambda: np.zeros((HOP_COUNT, len(ProbeOutcome)), "i8"))
    """The same of requests beside the flow."""
    routers: dict[tuple[int, bytes], RouterTally] = field(default_factory=dict)
    """By hop and address."""
    trips: dict[MeasuredBy, RouterTally] = field(default_factory=dict)
    ended_trips: dict[MeasuredBy, Array] = field(default_factory=dict)
    """Answered and lost packets of the flows, i8 (2,). Some answers have no time."""
    altered: int = 0
    """Answered probes that a middlebox had changed."""
    changes: dict[tuple[int, PathRowKind, int], None] = field(default_factory=dict)
    """Hop, kind and `amount` of rows of dtype PATH."""
    flows: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    """The last router of each hop that answered, by flow."""
    more_flows: bool = False
    """Whether there were more than MAX_FLOWS flows."""

    def note_flow(self, flow: bytes) -> None:
        if len(self.flows) < MAX_FLOWS:
            self.flows.setdefault(flow, {})
        elif flow not in self.flows:
            self.more_flows = True


class PathTally:
    """Adds up windows of path tracing."""

    def __init__(self) -> None:
        self.interface = ""
        self.start_utc_ns = self.end_utc_ns = 0
        self.destinations: dict[bytes, DestinationTally] = {}
        """By address, 16 bytes."""
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.forgotten_events = 0
        self._pending: list[Array] = []

    def add(self, item: Item) -> None:
        if isinstance(item, Event):
            if item.severity == "info" and item.source != "path":
                return  # such as how a program was attached
            self.forgotten_events += len(self.events) == MAX_EVENTS
            self.events.append(item)
        elif is_table(item, "path", HOPS_TABLE):
            self._note(item)
            self._pending.append(item.rows)
            if sum(map(len, self._pending)) >= _ROWS:
                self.fold()
        elif is_table(item, "path", PATHS_TABLE):
            for row in item.rows[np.isin(item.rows["kind"], _CHANGES)]:
                change = int(row["hop"]), PathRowKind(int(row["kind"])), int(row["amount"])
                self._of(row["destination"].tobytes(), int(row["version"])).changes[change] = None

    def fold(self) -> None:
        """Add the rows that wait."""
        rows = np.concatenate([no_rows(HOP_ROW), *self._pending], dtype=HOP_ROW)
        self._pending.clear()
        self._count(rows)
        # The flow of an overrun probe is unknown.
        rows = rows[rows["outcome"] != ProbeOutcome.OVERRUN]
        first = np.unique(_numbers(_bytes(rows)[:, :_FLOW_BYTES]), return_index=True)[1]
        for flow in rows[first]:
            key = flow.tobytes()[:_FLOW_BYTES]
            self._of(flow["destination"].tobytes(), int(flow["version"])).note_flow(key)
        timed = rows["received_ns"] > 0
        answers = rows[timed & (rows["outcome"] <= ProbeOutcome.UNREACHABLE)]
        groups = _numbers(_keys(answers, "destination", "responder", "hop", "measured_by"))
        flows = _numbers(_bytes(answers)[:, :_FLOW_BYTES])
        order = np.lexsort((answers["sent_ns"], flows, groups))
        answers, groups, flows = answers[order], groups[order], flows[order]
        rtts = np.maximum(answers["received_ns"] - answers["sent_ns"], 0)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        for start, end in pairwise([*starts, len(answers)]):
            here = slice(start, end)
            self._add(answers[here], rtts[here], flows[here])

    def addresses(self) -> list[str]:
        """Return the destinations and all routers that answered."""
        self.fold()
        found = {
            address_text(address, tally.version): None
            for destination, tally in self.destinations.items()
            for address in (destination, *(router for _, router in tally.routers))
        }
        return list(found)

    def _note(self, item: Snapshot) -> None:
        self.interface = item.interface
        self.start_utc_ns = self.start_utc_ns or item.start_utc_ns
        self.end_utc_ns = item.end_utc_ns

    def _of(self, destination: bytes, version: int) -> DestinationTally:
        return self.destinations.setdefault(destination, DestinationTally(version))

    def _count(self, rows: Rows[HOP]) -> None:
        """Count the outcomes."""
        numbers = _numbers(_keys(rows, "destination", "hop", "measured_by", "outcome"))
        _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
        for row, count in zip(rows[first], counts.tolist(), strict=True):
            tally = self._of(row["destination"].tobytes(), int(row["version"]))
            method = MeasuredBy(int(row["measured_by"]))
            if row["hop"] != DESTINATION_HOP:
                of_probes = method is MeasuredBy.PROBE
                (tally.outcomes if of_probes else tally.beside)[row["hop"], row["outcome"]] += count
            elif row["outcome"] <= ProbeOutcome.UNANSWERED:
                ended = tally.ended_trips.setdefault(method, np.zeros(2, "i8"))
                ended[int(row["outcome"] == ProbeOutcome.UNANSWERED)] += count

    def _add(self, answers: Rows[HOP], rtts_ns: Array, flows: Array) -> None:
        """Add answers of one router at one hop, ordered by flow and by time of sending."""
        first = answers[0]
        tally = self._of(first["destination"].tobytes(), int(first["version"]))
        method = MeasuredBy(int(first["measured_by"]))
        hop, address = int(first["hop"]), first["responder"].tobytes()
        if hop != DESTINATION_HOP:
            router = tally.routers.setdefault((hop, address), RouterTally())
        else:
            router = tally.trips.setdefault(method, RouterTally())
        tally.altered += int((answers["altered"] != 0).sum())
        router.times.add(rtts_ns, answers["sent_ns"], flows)
        labelled = answers[answers["label_count"] > 0]
        if len(labelled):
            last = labelled[labelled["sent_ns"].argmax()]
            router.labels = tuple(last["labels"][: last["label_count"]].tolist())
        ends = np.flatnonzero(np.diff(flows, append=-1))
        for flow in _bytes(answers[ends])[:, :_FLOW_BYTES]:
            if (routers := tally.flows.get(flow.tobytes())) is not None:
                routers[hop] = address


def _bytes(rows: Array) -> Array:
    """The bytes u1 (n, size) of rows (n,) or (n, k)."""
    whole = np.ascontiguousarray(rows)
    size = whole.itemsize * (whole.shape[1] if whole.ndim > 1 else 1)
    return whole.view("u1").reshape(len(whole), size)


def _keys(rows: Array, *columns: str) -> Array:
    """The bytes u1 (n, size) of some columns."""
    return np.concatenate([_bytes(rows[column]) for column in columns], axis=1)


def _numbers(keys: Array) -> Array:
    """A number i8 (n,) for each key u1 (n, size): equal keys have equal numbers."""
    packed = np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel()
    result: Array = np.unique(packed, return_inverse=True)[1].ravel()
    return result
