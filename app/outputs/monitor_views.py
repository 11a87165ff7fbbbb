"""The tables of the monitor: its metrics, its policies, and their transitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

from app.outputs.view import OutputView, Row, is_table, iso, iso_all, where
from probes.monitor import state
from probes.monitor.records import Array
from probes.snapshot import Event, Snapshot

_PARTS = ("tcp", "udp", "icmp")
_UNITS = ("packets", "bytes")
_FLOWS = ("flows", "flows_low", "flows_high")
_SIDES = ("value", "low", "high", "threshold")
_STATES = {int(each): each.label for each in state.PolicyState}


def _measured(rows: Array) -> tuple[list[Any], ...]:
    """Columns of METRIC rows, with what is neither TCP nor UDP nor ICMP before the flows."""
    return (
        *(rows[unit].tolist() for unit in _UNITS),
        *(rows[f"{part}_{unit}"].tolist() for part in _PARTS for unit in _UNITS),
        *(
            (rows[unit] - sum(rows[f"{part}_{unit}"] for part in _PARTS)).tolist()
            for unit in _UNITS
        ),
        *(rows[name].round(1).tolist() for name in _FLOWS),
    )


def _metric_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not is_table(item, state.PROBE, state.METRICS_TABLE):
        return
    yield from zip(
        repeat(item.window),
        repeat(iso(item.start_utc_ns)),
        repeat(iso(item.end_utc_ns)),
        repeat(item.interface),
        *_measured(item.rows),
        strict=False,  # `repeat` has no end
    )


def _policy_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not is_table(item, state.PROBE, state.POLICIES_TABLE):
        return
    rows = item.rows
    yield from zip(
        repeat(item.window),
        repeat(iso(item.start_utc_ns)),
        repeat(iso(item.end_utc_ns)),
        repeat(item.interface),
        _texts(rows["policy"]),
        map(_STATES.__getitem__, rows["state"].tolist()),
        iso_all(rows["since_ns"] + (item.end_utc_ns - item.end_ns)),
        *(where(np.isfinite(rows[name]), rows[name].round(6)) for name in _SIDES),
        rows["holds"].astype(bool).tolist(),
        rows["certain"].astype(bool).tolist(),
        rows["selected"].tolist(),
        strict=False,  # `repeat` has no end
    )


def _trigger_rows(item: Snapshot | Event) -> Iterator[Row]:
    if not is_table(item, state.PROBE, state.TRIGGERS_TABLE):
        return
    rows = item.rows
    yield from zip(
        repeat(item.window),
        repeat(item.interface),
        iso_all(rows["at_ns"] + (item.end_utc_ns - item.end_ns)),
        _texts(rows["policy"]),
        map(_STATES.__getitem__, rows["before"].tolist()),
        map(_STATES.__getitem__, rows["after"].tolist()),
        _texts(rows["cause"]),
        *_measured(rows["metrics"]),
        strict=False,  # `repeat` has no end
    )


def _texts(column: Array) -> list[str]:
    """Text of bytes; what was too long may be cut within a character."""
    return [text.decode(errors="replace") for text in column.tolist()]


_METRIC_COLUMNS = (
    ("packets", "all frames, those that are not IP too"),
    ("bytes", "of all frames, without FCS"),
    ("tcp_packets", "of those"),
    ("tcp_bytes", "of those"),
    ("udp_packets", "of those"),
    ("udp_bytes", "of those"),
    ("icmp_packets", "of those, ICMP and ICMPv6"),
    ("icmp_bytes", "of those"),
    ("other_packets", "of those, what is none of the three"),
    ("other_bytes", "of those"),
    ("flows", "distinct 5-tuples, estimated"),
    ("flows_low", "there were at least so many, at 95 % confidence"),
    ("flows_high", "there were at most so many, at 95 % confidence"),
)
_STATE_NAMES = ", ".join(_STATES.values())
METRICS = OutputView(
    state.METRICS_TABLE,
    1,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("start", "UTC, ISO 8601: the window's start"),
        ("end", "UTC: the window's end, the next one's start"),
        ("interface", "where packets came in"),
        *_METRIC_COLUMNS,
    ),
    _metric_rows,
)
"""One row a window."""
TRIGGERS = OutputView(
    state.TRIGGERS_TABLE,
    1,
    (
        ("window", "number of the window after which it was published"),
        ("interface", "where packets come in"),
        ("time", "UTC, ISO 8601: when it was made"),
        ("policy", "its name"),
        ("before", f"its state: {_STATE_NAMES}"),
        ("after", "its state from then on"),
        ("cause", "what it was made for, with the values"),
        *_METRIC_COLUMNS,
    ),
    _trigger_rows,
)
"""One row a transition. Metrics are those of the window that caused it, 0 where an operator did."""
POLICIES = OutputView(
    state.POLICIES_TABLE,
    1,
    (
        ("window", "number of the window, from 1, without gaps"),
        ("start", "UTC, ISO 8601: the window's start"),
        ("end", "UTC: the window's end, the next one's start"),
        ("interface", "where packets come in"),
        ("policy", "its name"),
        ("state", _STATE_NAMES),
        ("since", "UTC: since when it is in this state"),
        (
            "value",
            "what the comparison that decides looks at; empty where none is, as the next three",
        ),
        ("low", "least that it is, at 95 % confidence"),
        ("high", "most that it is, at 95 % confidence"),
        ("threshold", "what it is compared with"),
        ("holds", "whether the condition holds; of an active policy the one that ends it"),
        ("certain", "whether the answer is the same at both ends of the error band"),
        ("selected", "packets of this window that it gave to its applications"),
    ),
    _policy_rows,
)
"""One row a policy and window."""
