"""DNS as a reader sees it (S2.19): who asks how much of whom, and what comes back.

The amplification is the bytes of responses against those of queries. Where responses come to a host
that did not ask, somebody may have asked in its name; on a host's own interface its queries are not
seen either, as they go out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probes.flow.filter import protocol_name
from probes.primitive.applications.top import (
    ApplicationView,
    Array,
    Cell,
    TopTable,
    addresses,
    clock,
    counted,
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
    """What is a finding where there is more of it than THRESHOLD."""

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
    """Exchanges added up, all of shape (n,)."""

    packets: Mapping[str, Array]
    """By direction, `queries` and `responses`."""
    bytes: Mapping[str, Array]
    largest: Array

    @classmethod
    def of(cls, values: Array, groups_: Array, count: int) -> _Sums:
        """Of `struct exchange` (m,), of which each belongs to one of `count` groups."""
        packets, size = (
            {d: np.bincount(groups_, values[d][unit], count) for d in ("queries", "responses")}
            for unit in ("packets", "bytes")
        )
        most = np.zeros(count, "u8")
        np.maximum.at(most, groups_, values["largest"])
        return cls(packets, size, most)

    def top(self, most: int) -> Array:
        """Those with the most packets."""
        return largest(self.packets["queries"] + self.packets["responses"], most)

    def columns(self, at: Array, seconds: float) -> tuple[list[Cell], ...]:
        """The _MEASURES of some."""
        queries, responses = (self.packets[d][at] for d in ("queries", "responses"))
        asked, answered = (self.bytes[d][at] for d in ("queries", "responses"))
        return (
            (queries / seconds).tolist(),
            (responses / seconds).tolist(),
            (answered / np.maximum(responses, 1)).tolist(),
            self.largest[at].tolist(),
            [_ratio(*each) for each in zip(answered.tolist(), asked.tolist(), strict=True)],
        )


def _peers(key: Array, of: Array, count: int) -> Array:
    """How many others each of `count` hosts has, by the rows' host numbers `of`."""
    first, _ = groups(np.column_stack([key["client_address"], key["server_address"]]))
    return np.bincount(of[first], minlength=count)


def _hosts(end: str, window: Snapshot, most: int) -> TopTable:
    """By client, or by server."""
    key = window.rows["key"]
    first, of = groups(key[f"{end}_address"])
    sums = _Sums.of(window.rows["value"], of, len(first))
    top = sums.top(most)
    columns = (
        addresses(key[f"{end}_address"][first[top]]),
        _peers(key, of, len(first))[top].tolist(),
        *sums.columns(top, window.seconds),
    )
    names = (end, f"{_PEERS[end]}s", *_MEASURES)
    return TopTable(f"DNS by {end}", names, tuple(zip(*columns, strict=True)))


def _flows(window: Snapshot, most: int) -> TopTable:
    key, value = window.rows["key"], window.rows["value"]
    sums = _Sums.of(value, np.arange(len(key)), len(key))
    top = sums.top(most)
    # A direction that there was nothing of has no first time.
    starts = [value[d]["first_ns"][top] for d in ("queries", "responses")]
    first = np.minimum(*(np.where(each, each, np.iinfo("u8").max) for each in starts))
    last = np.maximum(*(value[d]["last_ns"][top] for d in ("queries", "responses")))
    columns = (
        addresses(key["client_address"][top]),
        addresses(key["server_address"][top]),
        [protocol_name(number) for number in key["protocol"][top].tolist()],
        *sums.columns(top, window.seconds),
        clock(window, first),
        clock(window, last),
    )
    names = ("client", "server", "protocol", *_MEASURES, "first", "last")
    return TopTable("DNS flows", names, tuple(zip(*columns, strict=True)))


def _tables(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[TopTable, ...]:
    window = metric(snapshots, "flows")
    if window is None:
        return ()
    return (*(_hosts(end, window, most) for end in _PEERS), _flows(window, most))


def _findings(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[str, ...]:
    window = metric(snapshots, "flows")
    if window is None:
        return ()
    least = "at least " if is_incomplete(snapshots) else ""
    found = [
        line for alarm in _ALARMS for line in _lines(alarm, window, define["THRESHOLD"], least)
    ]
    return tuple(text for _, text in sorted(found, reverse=True)[:most])


def _lines(
    alarm: _Alarm, window: Snapshot, threshold: int, least: str
) -> Iterator[tuple[float, str]]:
    """What is above the threshold: rates, and lines about them."""
    packets = window.rows["value"][alarm.direction]["packets"]
    if packets.sum() <= threshold * window.seconds:
        return
    there = window.rows[packets > 0]
    key = there["key"]
    first, of = groups(key[f"{alarm.end}_address"])
    sums = _Sums.of(there["value"], of, len(first))
    rates = sums.packets[alarm.direction] / window.seconds
    above = np.flatnonzero(rates > threshold)
    if not len(above):
        return
    peers = _peers(key, of, len(first))
    names = addresses(key[f"{alarm.end}_address"][first[above]])
    for name, n in zip(names, above.tolist(), strict=True):
        text = (
            f"{name} {alarm.verb} {least}{rates[n]:.0f} DNS {alarm.direction}/s "
            f"{alarm.preposition} {counted(int(peers[n]), _PEERS[alarm.end])}"
        )
        if alarm.direction == "responses":
            text += f", {_words(sums.bytes['responses'][n], sums.bytes['queries'][n])}"
        yield float(rates[n]), text


def _ratio(answered: float, asked: float) -> Cell:
    """The amplification; there is none where nothing was asked."""
    return answered / asked if asked else "no query"


def _words(answered: float, asked: float) -> str:
    if not asked:
        return "and no query was seen"
    times = answered / asked
    return f"{times:.{0 if times >= 10 else 1}f} times the bytes of the queries"


VIEW = ApplicationView(_tables, _findings)
