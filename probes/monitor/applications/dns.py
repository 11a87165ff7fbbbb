"""View of DNS (S2.19): clients, servers, queries and responses.

The amplification is the ratio of the bytes of responses to the bytes of queries. If a host gets
responses without having asked, somebody may have asked in its name. On a host's own interface its
queries go out, and so are not seen either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.quantities import counted
from probes.filter.hosts import protocol_name
from probes.monitor.applications.top_table import (
    ApplicationView,
    Cell,
    Macros,
    TopTable,
    Window,
    addresses,
    clock,
    groups,
    is_incomplete,
    largest,
    metric,
)
from probes.snapshot import Snapshot

_PEERS = {"client": "server", "server": "client"}
_MEASURES = ("queries/s", "responses/s", "bytes/response", "largest", "amplification")


@dataclass(frozen=True, slots=True)
class _Alarm:
    """A finding if there are more than THRESHOLD."""

    end: str
    direction: str
    verb: str
    preposition: str


_ALARMS = (
    _Alarm("client", "responses", "gets", "from"),
    _Alarm("server", "queries", "gets", "from"),
    _Alarm("client", "queries", "sends", "to"),
)


@dataclass(frozen=True, slots=True)
class _Sums:
    packets: Mapping[str, Array]
    """By direction, `queries` and `responses`."""
    bytes: Mapping[str, Array]
    largest: Array

    @classmethod
    def of(cls, values: Array, groups_: Array, count: int) -> _Sums:
        """Sums of `struct exchange` (m,) by group; `groups_` (m,) are below `count`."""
        packets, size = (
            {d: np.bincount(groups_, values[d][unit], count) for d in ("queries", "responses")}
            for unit in ("packets", "bytes")
        )
        most = np.zeros(count, "u8")
        np.maximum.at(most, groups_, values["largest"])
        return cls(packets, size, most)

    def top(self, most: int) -> Array:
        return largest(self.packets["queries"] + self.packets["responses"], most)

    def columns(self, at: Array, seconds: float) -> tuple[list[Cell], ...]:
        queries, responses = (self.packets[d][at] for d in ("queries", "responses"))
        asked, answered = (self.bytes[d][at] for d in ("queries", "responses"))
        return (
            (queries / seconds).tolist(),
            (responses / seconds).tolist(),
            (answered / np.maximum(responses, 1)).tolist(),
            self.largest[at].tolist(),
            [
                a / q if q else "no query"
                for a, q in zip(answered.tolist(), asked.tolist(), strict=True)
            ],
        )


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Clients or servers of a window."""

    end: str
    rows: Array
    """Rows of the metric, (m,)."""
    first: Array
    """One row of each host, (n,)."""
    of: Array
    """Host of each row, (m,)."""
    sums: _Sums

    @classmethod
    def at(cls, end: str, rows: Array) -> _Hosts:
        """The hosts at one end of each exchange."""
        first, of = groups(rows["key"][end])
        return cls(end, rows, first, of, _Sums.of(rows["value"], of, len(first)))

    def names(self, hosts: Array) -> list[str]:
        return addresses(self.rows["key"][self.end][self.first[hosts]])

    def peers(self, hosts: Array, there: Array) -> list[int]:
        """Number of peers of some hosts, in the rows `there`, bool (m,)."""
        wanted = np.zeros(len(self.first), bool)
        wanted[hosts] = True
        rows = np.flatnonzero(wanted[self.of] & there)
        key = self.rows["key"][rows]
        first, _ = groups(np.column_stack([key["client"], key["server"]]))
        counts = np.bincount(self.of[rows[first]], minlength=len(wanted))
        result: list[int] = counts[hosts].tolist()
        return result


def _table(hosts: _Hosts, seconds: float, most: int) -> TopTable:
    top = hosts.sums.top(most)
    columns = (
        hosts.names(top),
        hosts.peers(top, np.ones(len(hosts.rows), bool)),
        *hosts.sums.columns(top, seconds),
    )
    names = (hosts.end, f"{_PEERS[hosts.end]}s", *_MEASURES)
    return TopTable(f"DNS by {hosts.end}", names, tuple(zip(*columns, strict=True)))


def _flows(window: Snapshot, most: int) -> TopTable:
    key, value = window.rows["key"], window.rows["value"]
    sums = _Sums.of(value, np.arange(len(key)), len(key))
    top = sums.top(most)
    # A direction without packets has no first time.
    starts = [value[d]["first"][top] for d in ("queries", "responses")]
    first = np.minimum(*(np.where(each, each, np.iinfo("u8").max) for each in starts))
    last = np.maximum(*(value[d]["last"][top] for d in ("queries", "responses")))
    columns = (
        addresses(key["client"][top]),
        addresses(key["server"][top]),
        [protocol_name(number) for number in key["protocol"][top].tolist()],
        *sums.columns(top, window.seconds),
        clock(window, first),
        clock(window, last),
    )
    names = ("client", "server", "protocol", *_MEASURES, "first", "last")
    return TopTable("DNS flows", names, tuple(zip(*columns, strict=True)))


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    window = metric(snapshots, "flows")
    if window is None:
        return ()
    by_host = (_table(_Hosts.at(end, window.rows), window.seconds, most) for end in _PEERS)
    return (*by_host, _flows(window, most))


def _findings(define: Macros, snapshots: Window, most: int) -> tuple[str, ...]:
    window = metric(snapshots, "flows")
    if window is None:
        return ()
    limit = define["THRESHOLD"] * window.seconds
    values = window.rows["value"]
    # Most windows stay below the limit in all: no need to add up by host.
    alarms = [a for a in _ALARMS if values[a.direction]["packets"].sum() > limit]
    hosts = {end: _Hosts.at(end, window.rows) for end in {alarm.end for alarm in alarms}}
    least = "at least " if is_incomplete(snapshots) else ""
    found: list[tuple[int, str]] = []
    for alarm in alarms:
        found += _lines(alarm, hosts[alarm.end], limit, window.seconds, least, most)
    return tuple(text for _, text in sorted(found, reverse=True)[:most])


def _lines(
    alarm: _Alarm, hosts: _Hosts, limit: float, seconds: float, least: str, most: int
) -> Iterator[tuple[int, str]]:
    packets = hosts.sums.packets[alarm.direction]
    above = np.flatnonzero(packets > limit)
    top = above[largest(packets[above], most)]
    peers = hosts.peers(top, hosts.rows["value"][alarm.direction]["packets"] > 0)
    for name, n, others in zip(hosts.names(top), top.tolist(), peers, strict=True):
        text = (
            f"{name} {alarm.verb} {least}{packets[n] / seconds:.0f} DNS {alarm.direction}/s "
            f"{alarm.preposition} {counted(others, _PEERS[alarm.end])}"
        )
        if alarm.direction == "responses":
            text += f", {_times(hosts.sums.bytes['responses'][n], hosts.sums.bytes['queries'][n])}"
        yield int(packets[n]), text


def _times(answered: float, asked: float) -> str:
    if not asked:
        return "and no query was seen"
    times = answered / asked
    return f"{times:.{0 if times >= 10 else 1}f} times the bytes of its queries"


VIEW = ApplicationView(_tables, _findings)
