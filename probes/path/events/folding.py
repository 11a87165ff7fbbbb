"""Events of path tracing: what several flows tell is one event, and a flood of them is cut."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bpf.arrays import Row, Rows
from bpf.quantities import duration
from probes.path.analysis.branches import is_different
from probes.path.events.words import address_of, describe, flows_text, place_text
from probes.path.records import PATH, PathRowKind

_SAME_NS = 5_000_000_000
"""The same finding about more flows within this time is the same event."""
_FLOOD = 3
"""Up to so many events of one topic at one hop are published ..."""
_FLOOD_NS = 60_000_000_000
"""... in this time. Later ones are counted, and one event in this time has their number."""
_NAMED = 3
"""Up to so many flows are named."""
_SILENT = (PathRowKind.SUMMARY, PathRowKind.RESPONDER)
"""Kinds of rows that are no event, like a BRANCH of the same times. A ROUTE or ALIAS follows a
RESPONDER."""
_AT_ONCE = frozenset(
    {
        PathRowKind.ROUTE,
        PathRowKind.ROUTE_AMOUNTS,
        PathRowKind.ALIAS,
        PathRowKind.LOSS,
        PathRowKind.LOSS_OVER,
        PathRowKind.LOOP,
        PathRowKind.LOOP_OVER,
        PathRowKind.FLAP,
        PathRowKind.FLAP_OVER,
        PathRowKind.BRANCH,
        PathRowKind.MARKING,
        PathRowKind.ALTERED,
    }
)
"""Kinds of rows that are about all flows already."""
_TOPICS = {
    PathRowKind.BALANCED: "sharing of flows",
    PathRowKind.BALANCED_PACKETS: "balancing of packets",
    PathRowKind.LONGER: "change of length",
    PathRowKind.SHORTER: "change of length",
    PathRowKind.SILENT: "silence",
    PathRowKind.ANSWERS: "silence",
    PathRowKind.SHIFT: "change of the round-trip time",
    PathRowKind.QUEUE: "queue",
    PathRowKind.QUEUE_OVER: "queue",
    PathRowKind.GAP: "pause",
    PathRowKind.ROUTE: "change of the route",
    PathRowKind.ROUTE_AMOUNTS: "change of the route",
    PathRowKind.ALIAS: "change of the address",
    PathRowKind.LOSS: "loss",
    PathRowKind.LOSS_OVER: "loss",
    PathRowKind.LOOP: "routing loop",
    PathRowKind.LOOP_OVER: "routing loop",
    PathRowKind.FLAP: "flap",
    PathRowKind.FLAP_OVER: "flap",
    PathRowKind.BRANCH: "comparison of branches",
    PathRowKind.MARKING: "change of the marking",
    PathRowKind.ALTERED: "change by a middlebox",
}

_PHASES = {
    PathRowKind.SILENT: "begin",
    PathRowKind.ANSWERS: "end",
    PathRowKind.QUEUE: "begin",
    PathRowKind.QUEUE_OVER: "end",
    PathRowKind.LOSS: "begin",
    PathRowKind.LOSS_OVER: "end",
    PathRowKind.LOOP: "begin",
    PathRowKind.LOOP_OVER: "end",
    PathRowKind.FLAP: "begin",
    PathRowKind.FLAP_OVER: "end",
}
_LENGTHS = (
    PathRowKind.ROUTE,
    PathRowKind.ROUTE_AMOUNTS,
    PathRowKind.LONGER,
    PathRowKind.SHORTER,
)
"""Kinds whose `amount` is a change of length."""


class PathEvent(NamedTuple):
    """An event of path tracing, without its time: the fields of `probes.snapshot.Event`."""

    severity: str
    text: str
    subject: str
    """`10.94.6.2 hop 4 queue`."""
    phase: str = ""
    value: float | None = None
    unit: str = ""


_Key = tuple[bytes, int, int, bool]
"""Destination, kind, hop, and whether the amount is positive."""


@dataclass(slots=True, eq=False)
class _Finding:
    """Rows of one event."""

    row: Row[PATH]
    since_ns: int
    """When the first of them came."""
    flows: dict[str, None] = field(default_factory=dict)
    told: bool = False


@dataclass(slots=True, eq=False)
class _Place:
    """Events of one topic at one hop."""

    told_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_FLOOD))
    """Times of the last published events."""
    hidden: int = 0
    hidden_ns: int = 0
    """When the first hidden event came."""
    last: Any = None
    """Row of the last hidden event, or of a later published one."""
    is_open: bool = False
    """Whether the last published event is the begin of something that lasts."""
    flows: str = ""
    """The flows that this begin named: its end names the same."""


class EventFolder:
    """Turns rows of dtype PATH into events. If an event may concern several flows, it waits for
    their names until the poll after its first row."""

    def __init__(self) -> None:
        self._findings: dict[_Key, _Finding] = {}
        self._places: dict[tuple[bytes, int, str], _Place] = {}

    def add(self, rows: Rows[PATH], now_ns: int, *, final: bool = False) -> list[PathEvent]:
        """Take in the rows (n,) of a poll and return the events.
        With `final`, no rows follow."""
        told = []
        alike = (rows["kind"] == PathRowKind.BRANCH) & ~is_different(rows)
        shown = rows[~np.isin(rows["kind"], _SILENT) & (rows["folded"] == 0) & ~alike]
        for row in shown:
            if row["kind"] in _AT_ONCE:
                told += self._tell(row, flows_text(row), now_ns)
            elif row["kind"] != PathRowKind.BALANCED:
                self._take(row, now_ns)
        told += self._shared(shown[shown["kind"] == PathRowKind.BALANCED], now_ns)
        for key, finding in list(self._findings.items()):
            if not finding.told and (final or finding.since_ns < now_ns):
                finding.told = True
                told += self._tell(finding.row, _names(finding), now_ns)
            if now_ns - finding.since_ns > _SAME_NS:
                del self._findings[key]
        return told + self._hidden(now_ns, final=final)

    def _take(self, row: Row[PATH], now_ns: int) -> None:
        kind, amount_ns = PathRowKind(int(row["kind"])), int(row["amount_ns"])
        key = row["destination"].tobytes(), kind, int(row["hop"]), amount_ns > 0
        finding = self._findings.setdefault(key, _Finding(row, now_ns))
        finding.flows[flows_text(row)] = None
        if abs(amount_ns) > abs(int(finding.row["amount_ns"])) and not finding.told:
            # One of the flows may know the side of a queue.
            row["side"] = row["side"] or finding.row["side"]
            finding.row = row
        finding.row["side"] = finding.row["side"] or row["side"]

    def _shared(self, rows: Rows[PATH], now_ns: int) -> list[PathEvent]:
        """One event for the routers that share the flows at a hop."""
        groups: dict[tuple[bytes, int], list[Any]] = {}
        for row in rows:
            groups.setdefault((row["destination"].tobytes(), int(row["hop"])), []).append(row)
        told = []
        for group in groups.values():
            text = _sharing(group)
            told += self._limited(group[0], "info", text, now_ns)
        return told

    def _tell(self, row: Row[PATH], flows: str, now_ns: int) -> list[PathEvent]:
        place, phase = self._place(row), _PHASES.get(PathRowKind(int(row["kind"])))
        if phase == "end" and place.is_open:
            flows = place.flows
        elif phase == "begin" and not place.is_open:
            place.flows = flows
        return self._limited(row, *describe(row, flows), now_ns)

    def _place(self, row: Row[PATH]) -> _Place:
        topic = _TOPICS[PathRowKind(int(row["kind"]))]
        return self._places.setdefault(
            (row["destination"].tobytes(), int(row["hop"]), topic), _Place()
        )

    def _limited(self, row: Row[PATH], severity: str, text: str, now_ns: int) -> list[PathEvent]:
        """The event, unless there were too many of its kind."""
        kind = PathRowKind(int(row["kind"]))
        topic, phase, place = _TOPICS[kind], _PHASES.get(kind, ""), self._place(row)
        flood = len(place.told_ns) == _FLOOD and now_ns - place.told_ns[0] < _FLOOD_NS
        # The end of a published begin is published, too: readers wait for it. No change of length
        # is hidden.
        shown = (place.is_open and phase == "end") or (kind in _LENGTHS and row["amount"])
        if (flood or place.hidden) and not shown:
            place.hidden_ns = place.hidden_ns or now_ns
            place.hidden += 1
            place.last = row
            return []
        place.told_ns.append(now_ns)
        place.last, place.is_open = row, phase == "begin"
        value, unit = _amount(kind, row)
        return [PathEvent(severity, text, f"{place_text(row)} {topic}", phase, value, unit)]

    def _hidden(self, now_ns: int, *, final: bool) -> list[PathEvent]:
        told = []
        for key, place in list(self._places.items()):
            if place.hidden and (final or now_ns - place.hidden_ns >= _FLOOD_NS):
                severity, where = describe(place.last)[0], place_text(place.last)
                seconds = (now_ns - place.hidden_ns) / 1e9
                times = "time" if place.hidden == 1 else "times"
                text = f"{where}: {key[-1]} {place.hidden} more {times} in {duration(seconds)}"
                phase = _PHASES.get(PathRowKind(int(place.last["kind"])), "")
                told.append(PathEvent(severity, text, f"{where} {key[-1]}", phase))
                place.hidden = place.hidden_ns = 0
                place.is_open = phase == "begin"
                place.told_ns.append(now_ns)
            elif not place.hidden and now_ns - place.told_ns[-1] > _FLOOD_NS:
                del self._places[key]
        return told


def _amount(kind: PathRowKind, row: Row[PATH]) -> tuple[float | None, str]:
    """The size of a queue, of a pause, or of a loss; None for other kinds."""
    if kind in (PathRowKind.LOSS, PathRowKind.LOSS_OVER):
        return 100 * int(row["lost"]) / max(1, int(row["lost"]) + int(row["answered"])), "%"
    if kind in (PathRowKind.QUEUE, PathRowKind.QUEUE_OVER, PathRowKind.SHIFT, PathRowKind.GAP):
        return abs(int(row["amount_ns"])) / 1e6, "ms"
    return None, ""


def _names(finding: _Finding) -> str:
    """The flows of an event."""
    flows = list(finding.flows)
    if len(flows) > _NAMED:
        return f"{len(flows)} flows"
    return flows[0] if len(flows) == 1 else f"{', '.join(flows[:-1])} and {flows[-1]}"


def _sharing(rows: list[Any]) -> str:
    """`10.33.5.2 hop 3: 37 flows share 2 routers: 19 by 10.33.2.2, 18 by 10.33.12.2`."""
    by = ", ".join(f"{row['flows']} by {address_of(row, 'responder')}" for row in rows)
    count = sum(int(row["flows"]) for row in rows)
    return f"{place_text(rows[0])}: {count} flows share {len(rows)} routers: {by}"
