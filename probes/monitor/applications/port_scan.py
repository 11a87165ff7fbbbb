"""Port scans as a reader sees them: who tries many ports, and who tries many hosts at one.

A count is of the slots of `seen` that a source took first (see port_scan.c); what hit a slot that
was taken is missing. Where a share f of all slots is taken in the end, and they were taken evenly,
there were n = count * -ln(1 - f) / f (linear counting). The error has what is missing where all
came before, or after, the others', and twice the standard deviation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probes.flow.filter import protocol_name
from probes.monitor.applications.top import (
    ApplicationView,
    Array,
    TopTable,
    addresses,
    clock,
    largest,
    metric,
)
from probes.snapshot import Snapshot

_SLOTS = 64
"""Of a line."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """A kind of scan."""

    title: str
    metric: str
    of: str
    """What is counted; in capitals the macro of how many make a finding."""


_SCANS = (_Scan("ports", "sources", "ports"), _Scan("hosts at one port", "targets", "hosts"))


@dataclass(frozen=True, slots=True)
class _Tried:
    """What sources have tried, the most first; all of shape (n,)."""

    scan: _Scan
    window: Snapshot
    rows: Array
    counts: Array
    errors: Array


def estimate(counts: Array, taken: float) -> tuple[Array, Array]:
    """How many there were, (n,) f8, by counts (n,) and the share of slots that are taken, below 1;
    and the error, a share of that: so much more or less it is at most, with 95 % confidence."""
    counts = np.maximum(counts, 1).astype("f8")  # what has an entry was there
    factor = -np.log1p(-taken) / taken if taken else 1.0
    estimates = counts * factor
    most = (counts + 2 * np.sqrt(counts * taken)) / (1 - taken)
    return estimates, np.maximum(most / estimates - 1, 1 - 1 / factor)


def _tried(define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int) -> Iterator[_Tried]:
    """Of each kind of scan the `most` largest."""
    found = [(scan, window) for scan in _SCANS if (window := metric(snapshots, scan.metric))]
    slots = define["LINES"] * _SLOTS
    counted = sum(int(window.rows["value"][scan.of].sum()) for scan, window in found)
    for scan, window in found:
        counts = window.rows["value"][scan.of]
        top = largest(counts, most)
        # Two CPUs may take one slot at the same moment.
        estimates = estimate(counts[top], min(counted, slots - 1) / slots)
        yield _Tried(scan, window, window.rows[top], *estimates)


def _tables(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[TopTable, ...]:
    return tuple(map(_table, _tried(define, snapshots, most)))


def _table(tried: _Tried) -> TopTable:
    key, value = tried.rows["key"], tried.rows["value"]
    columns = {
        "source": addresses(key["address"]),
        **({"port": _ports(key)} if _has_port(key) else {}),
        tried.scan.of: tried.counts.round().astype("i8").tolist(),
        "± %": (100 * tried.errors).round(2).tolist(),
        "packets": value["packets"].tolist(),
        "first": clock(tried.window, value["first"]),
        "last": clock(tried.window, value["last"]),
    }
    return TopTable(tried.scan.title, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _findings(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[str, ...]:
    lines = (
        line
        for tried in _tried(define, snapshots, most)
        for line in _lines(tried, define[tried.scan.of.upper()])
    )
    return tuple(itertools.islice(lines, most))


def _lines(tried: _Tried, limit: int) -> Iterator[str]:
    """Sources that have tried more than that."""
    key = tried.rows["key"]
    names = addresses(key["address"])
    what = [f"hosts at {port}" for port in _ports(key)] if _has_port(key) else ["ports"] * len(key)
    for name, each, count, error in zip(names, what, tried.counts, tried.errors, strict=True):
        if count > limit:
            seconds = f"{tried.window.seconds:.3g} s"
            yield f"{name} tried {count:.0f} {each} (± {error:.1%}) in {seconds}"


def _has_port(key: Array) -> bool:
    return "port" in (key.dtype.names or ())


def _ports(key: Array) -> list[str]:
    """`tcp:22`."""
    pairs = zip(key["protocol"].tolist(), key["port"].tolist(), strict=True)
    return [f"{protocol_name(protocol)}:{port}" for protocol, port in pairs]


VIEW = ApplicationView(_tables, _findings)
