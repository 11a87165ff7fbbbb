"""View of port scans: sources that try many ports, or many hosts at one port.

A count is the number of slots of `seen` that a source took first (see port_scan.c); flows that hit
a taken slot are missing. If a share f of all slots is taken at the end, evenly, there were n =
count * -ln(1 - f) / f (linear counting). The error includes the extreme cases, in which all of a
source's flows came before or after the others, and twice the standard deviation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.quantities import duration, percent
from probes.filter.hosts import protocol_name
from probes.monitor.applications.top_table import (
    ApplicationView,
    Macros,
    TopTable,
    Window,
    addresses,
    clock,
    largest,
    metric,
)
from probes.snapshot import Snapshot

_SLOTS = 64
"""Slots of a line."""


@dataclass(frozen=True, slots=True)
class _Scan:
    title: str
    metric: str
    of: str
    """The counted field; in capitals the macro with the limit of a finding."""


_SCANS = (_Scan("ports", "sources", "ports"), _Scan("hosts at one port", "targets", "hosts"))


@dataclass(frozen=True, slots=True)
class _Tried:
    """Sources and their counts, the largest first; all of shape (n,)."""

    scan: _Scan
    window: Snapshot
    rows: Array
    counts: Array
    errors: Array


def estimate(counts: Array, taken: float) -> tuple[Array, Array]:
    """Estimate the true numbers (n,) f8 from counts (n,) and the share of taken slots, below 1.
    Also returns their relative errors at 95 % confidence."""
    counts = np.maximum(counts, 1).astype("f8")  # an entry stands for one at least
    factor = -np.log1p(-taken) / taken if taken else 1.0
    estimates = counts * factor
    most = (counts + 2 * np.sqrt(counts * taken)) / (1 - taken)
    return estimates, np.maximum(most / estimates - 1, 1 - 1 / factor)


def _tried(define: Macros, snapshots: Window, most: int) -> Iterator[_Tried]:
    """The `most` largest sources of each kind of scan."""
    found = [(scan, window) for scan in _SCANS if (window := metric(snapshots, scan.metric))]
    slots = define["LINES"] * _SLOTS
    counted = sum(int(window.rows["value"][scan.of].sum()) for scan, window in found)
    for scan, window in found:
        counts = window.rows["value"][scan.of]
        top = largest(counts, most)
        # Two CPUs may take one slot at the same moment.
        estimates = estimate(counts[top], min(counted, slots - 1) / slots)
        yield _Tried(scan, window, window.rows[top], *estimates)


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    return tuple(map(_table, _tried(define, snapshots, most)))


def _table(tried: _Tried) -> TopTable:
    key, value = tried.rows["key"], tried.rows["value"]
    columns = {
        "source": addresses(key["source"]),
        **({"port": _ports(key)} if _has_port(key) else {}),
        tried.scan.of: tried.counts.round().astype("i8").tolist(),
        "± %": (100 * tried.errors).round(2).tolist(),
        "packets": value["packets"].tolist(),
        "first": clock(tried.window, value["first"]),
        "last": clock(tried.window, value["last"]),
    }
    return TopTable(tried.scan.title, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _findings(define: Macros, snapshots: Window, most: int) -> tuple[str, ...]:
    lines = (
        line
        for tried in _tried(define, snapshots, most)
        for line in _lines(tried, define[tried.scan.of.upper()])
    )
    return tuple(itertools.islice(lines, most))


def _lines(tried: _Tried, limit: int) -> Iterator[str]:
    key = tried.rows["key"]
    names = addresses(key["source"])
    what = [f"hosts at {port}" for port in _ports(key)] if _has_port(key) else ["ports"] * len(key)
    for name, each, count, error in zip(names, what, tried.counts, tried.errors, strict=True):
        if count > limit:
            seconds = duration(tried.window.seconds)
            yield f"{name} tried {count:.0f} {each} (± {percent(error)}) in {seconds}"


def _has_port(key: Array) -> bool:
    return "destination_port" in (key.dtype.names or ())


def _ports(key: Array) -> list[str]:
    """`tcp:22`."""
    pairs = zip(key["protocol"].tolist(), key["destination_port"].tolist(), strict=True)
    return [f"{protocol_name(protocol)}:{port}" for protocol, port in pairs]


VIEW = ApplicationView(_tables, _findings)
