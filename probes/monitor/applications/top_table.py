"""Top tables, the view that makes them of an application's metrics, and the parts of such views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from bpf.arrays import Array
from probes.filter.hosts import address_text
from probes.flow.records import hash_keys
from probes.snapshot import Snapshot
from probes.tables.field_types import MAPPED

Cell = str | int | float
Macros = Mapping[str, int]
"""Values of the macros that an application was compiled with."""
Window = Sequence[Snapshot]
"""Snapshots of one window, one a metric, in any order."""


@dataclass(frozen=True, slots=True)
class TopTable:
    """The largest rows of one window, largest first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """View of one application's metrics; the number limits rows or findings."""

    tables: Callable[[Macros, Window, int], tuple[TopTable, ...]]
    findings: Callable[[Macros, Window, int], tuple[str, ...]]
    """One line for each finding, most important first."""


def metric(snapshots: Window, name: str) -> Snapshot | None:
    return next((snapshot for snapshot in snapshots if snapshot.metric == name), None)


def largest(values: Array, most: int) -> Array:
    """Indices of the `most` largest of `values` (n,), largest first; among equal ones the first."""
    if len(values) > most:
        # Sort only values that are at least as large as the last one shown.
        limit = np.partition(values, len(values) - most)[len(values) - most]
        kept = np.flatnonzero(values >= limit)
    else:
        kept = np.arange(len(values))
    return kept[np.argsort(-values[kept].astype("f8"), kind="stable")][:most]


def address(raw: bytes) -> str:
    """The text of an application's 16-byte address: IPv6, or IPv4 mapped into it."""
    if raw[:12] == MAPPED:
        return address_text(raw[12:], 4)
    return address_text(raw, 6)


def addresses(column: Array) -> list[str]:
    """A column of addresses, any dtype of 16 bytes each, as text."""
    raw = np.ascontiguousarray(column).tobytes()
    return [address(raw[at : at + 16]) for at in range(0, len(raw), 16)]


def groups(keys: Array) -> tuple[Array, Array]:
    """The first row of each distinct key, (k,), and the index of each row's key, (n,).

    `keys` has shape (n,) or (n, m), and at most KEY_WORDS words of 8 bytes in a row.
    """
    width = keys.itemsize * int(np.prod(keys.shape[1:])) // 8
    words = np.ascontiguousarray(keys).view("u8").reshape(len(keys), width)
    hashes = hash_keys(words)
    _, first, of = np.unique(hashes, return_index=True, return_inverse=True)
    if not (words[first[of]] == words).all():
        # Two keys share a hash: group by the keys themselves, ten times slower.
        _, first, of = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return first, of.reshape(-1)


def clock(window: Snapshot, times: Iterable[int]) -> list[str]:
    """Times of a window, CLOCK_MONOTONIC in ns, as UTC: `16:25:01.004`."""
    moments = (datetime.fromtimestamp(window.utc_ns(int(time)) / 1e9, UTC) for time in times)
    return [moment.strftime("%H:%M:%S.%f")[:-3] for moment in moments]


def is_incomplete(snapshots: Window) -> bool:
    """Whether the window has losses: then the counts are lower limits."""
    return any(snapshot.lost.packets for snapshot in snapshots)
