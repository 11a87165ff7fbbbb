"""The tables that can be written: their columns, and their rows from snapshots and events.

`schema` is the first column of every row: `flows/1` changes its number when a column changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from app.outputs.encoders import Record
from probes.flow.filter import address_text
from probes.flow.records import Array, Direction
from probes.snapshot import Event, LossReason, Snapshot

Value = str | int | float | None
Row = Sequence[Value]
DIRECTIONS = {Direction.INGRESS: "in", Direction.EGRESS: "out"}
_PART = 8192
"""Rows that are turned into Python's values at a time."""


@dataclass(frozen=True, slots=True)
class View:
    """One table."""

    name: str
    version: int
    columns: tuple[tuple[str, str], ...]
    """Name and meaning of each column after `schema`."""
    rows: Callable[[Snapshot | Event], Iterator[Row]]
    """What an item adds to the table, values in the order of `columns`."""

    @property
    def schema(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def header(self) -> tuple[str, ...]:
        return ("schema", *(name for name, _ in self.columns))

    def records(self, item: Snapshot | Event, *, nested: bool) -> Iterator[Record]:
        """What an item adds to the table, `schema` first."""
        header = self.header
        for row in self.rows(item):
            record = (self.schema, *row)
            yield dict(zip(header, record, strict=True)) if nested else record


def iso(utc_ns: int) -> str:
    """UTC nanoseconds as ISO 8601, `2026-01-31T12:00:00.123456789Z`."""
    return f"{np.datetime64(utc_ns, 'ns')}Z"


def _iso_all(utc_ns: Array) -> list[str]:
    # The kernel's ticks are few, and making their text is slow.
    moments, at = np.unique(utc_ns, return_inverse=True)
    texts = np.array([f"{text}Z" for text in np.datetime_as_string(moments.astype("M8[ns]"))])
    result: list[str] = texts[at].tolist()
    return result


def _addresses(raw: Array, versions: list[int]) -> Iterator[str]:
    """Text of addresses (n, 16) u1."""
    packed = np.ascontiguousarray(raw).view("V16").ravel().tolist()
    return map(address_text, packed, versions)


def _has_flows(item: Snapshot) -> bool:
    return item.probe == "flow" and not item.metric


def counted(item: Snapshot) -> tuple[int, int] | None:
    """Packets and bytes in the rows of the flow probe; None for a metric, which may be anything."""
    if not _has_flows(item):
        return None
    return int(item.rows["packets"].sum()), int(item.rows["bytes"].sum())


def _flow_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not isinstance(item, Snapshot) or not _has_flows(item):
        return
    start, end = iso(item.start_utc_ns), iso(item.end_utc_ns)
    to_utc = item.end_utc_ns - item.end_ns
    # Column by column, three times faster than row by row; in parts, as a row of Python's own
    # values takes a kilobyte.
    for at in range(0, len(item.rows), _PART):
        rows = item.rows[at : at + _PART]
        versions = rows["version"].tolist()
        yield from zip(
            repeat(item.window),
            repeat(start),
            repeat(end),
            repeat(item.interface),
            map(DIRECTIONS.__getitem__, rows["direction"].tolist()),
            versions,
            rows["protocol"].tolist(),
            _addresses(rows["source"], versions),
            rows["source_port"].tolist(),
            _addresses(rows["destination"], versions),
            rows["destination_port"].tolist(),
            rows["packets"].tolist(),
            rows["bytes"].tolist(),
            rows["tcp_flags"].tolist(),
            _iso_all(rows["first_ns"] + to_utc),
            _iso_all(rows["last_ns"] + to_utc),
            strict=False,  # `repeat` has no end
        )


def _window_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not isinstance(item, Snapshot):
        return
    packets, size = counted(item) or (None, None)
    reasons = [item.losses.get(reason) for reason in LossReason]
    yield (
        item.window, iso(item.start_utc_ns), iso(item.end_utc_ns), item.start_ns, item.end_ns,
        item.interface, item.probe, item.side, item.metric, item.generation, len(item.rows),
        packets, size,
        *(loss.packets if loss else 0 for loss in reasons),
        round(item.occupancy, 4), item.swap_ns // 1000, item.drain_ns // 1000,
    )  # fmt: skip


def _event_rows(item: Snapshot | Event) -> Iterator[Row]:
    if isinstance(item, Event):
        yield iso(item.utc_ns), item.severity, item.source, item.text


FLOWS = View(
    "flows",
    1,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("start", "UTC, ISO 8601: the window's start"),
        ("end", "UTC: the window's end, the next one's start"),
        ("interface", "where it was seen"),
        ("direction", "in or out, seen from this host"),
        ("ip_version", "4 or 6"),
        ("protocol", "IANA protocol number"),
        ("source", "address"),
        ("source_port", "0 where the protocol has none, and in later fragments"),
        ("destination", "address"),
        ("destination_port", "of ICMP: type * 256 + code"),
        ("packets", "in this window"),
        ("bytes", "in this window, of frames without FCS"),
        ("tcp_flags", "all flags seen in this window, by OR; 0 unless TCP"),
        ("first", "UTC: first packet in this window, exact to a kernel tick"),
        ("last", "UTC: last packet in this window, exact to a kernel tick"),
    ),
    _flow_rows,
)
WINDOWS = View(
    "windows",
    2,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("start", "UTC, ISO 8601: the window's start"),
        ("end", "UTC: the window's end, the next one's start"),
        ("start_monotonic_ns", "CLOCK_MONOTONIC"),
        ("end_monotonic_ns", "CLOCK_MONOTONIC"),
        ("interface", "what is watched"),
        ("probe", "what measured it"),
        ("side", "ingress or egress, of a metric; empty for a built-in probe, which sees both"),
        ("metric", "the metric, each has a row; empty for a built-in probe"),
        ("generation", "number of the program, from 1: one more at each reconfiguration"),
        ("rows", "rows of the table"),
        ("packets", "sum over the rows of the flow probe; empty for metrics"),
        ("bytes", "sum over the rows of the flow probe; empty for metrics"),
        ("not_ip", "packets that are not IP, and so in no flow"),
        ("malformed", "packets lost to a header that can't be parsed"),
        ("filtered", "packets that were not to be captured"),
        ("table_full", "packets lost because no room was left"),
        ("occupancy", "of the fullest table at the end, 0 to 1"),
        ("swap_us", "microseconds from the swap to the end of the grace period"),
        ("drain_us", "microseconds from there until the rows were there"),
    ),
    _window_rows,
)
EVENTS = View(
    "events",
    1,
    (
        ("time", "UTC, ISO 8601"),
        ("severity", "info, warning or error"),
        ("source", "what it is about"),
        ("text", "what happened"),
    ),
    _event_rows,
)
VIEWS = {view.name: view for view in (FLOWS, WINDOWS, EVENTS)}
