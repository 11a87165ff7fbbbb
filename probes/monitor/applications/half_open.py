"""View of half-open TCP (S2.18): SYN floods by destination and source, and their outcome.

A connection is half-open from its first SYN until the client's ACK or RST, and is reported in the
window in which it is older than TIMEOUT. If a flood has filled the table, the SYNs without room
tell the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.quantities import duration
from probes.monitor.applications.top_table import (
    ApplicationView,
    Cell,
    Macros,
    TopTable,
    Window,
    addresses,
    groups,
    largest,
    metric,
)
from probes.snapshot import Snapshot

_COUNTS = {"syns": "SYNs", "completed": "completed", "resets": "reset", "missed": "no room"}
"""Counts of an end in a window, and their titles."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """State of each destination or source; all of shape (n,)."""

    keys: Array
    """(n, 2 or 3) u8: the address, and for a destination the port."""
    half_open: Array
    old: Array
    """Connections that are half-open for too long."""
    counts: Mapping[str, Array]
    known: Array
    """False if `counts` had no room for it."""

    @classmethod
    def of(cls, end: str, handshakes: Snapshot, counted: Snapshot, old: Array) -> _Ends:
        """Group by `destination` or `source`; `old` (m,) bool marks old handshakes."""
        key = handshakes.rows["key"]
        parts = ("destination", "destination_port") if end == "destination" else ("source",)
        ours, theirs = ([keys[part] for part in parts] for keys in (key, counted.rows["key"]))
        every = np.concatenate([np.column_stack(ours), np.column_stack(theirs)])
        first, of = groups(every)
        of_ours, of_theirs = of[: len(key)], of[len(key) :]
        counts = {name: np.zeros(len(first), "u8") for name in _COUNTS}
        for name, column in counts.items():
            column[of_theirs] = counted.rows["value"][name]
        known = np.full(len(first), counted.occupancy < 1)
        known[of_theirs] = True
        half_open = np.bincount(of_ours, minlength=len(first))
        waiting = np.bincount(of_ours[old], minlength=len(first))
        return cls(every[first], half_open, waiting, counts, known)


def _ages(handshakes: Snapshot, define: Macros) -> tuple[Array, Array]:
    """Age in seconds of each half-open connection, and whether it is too old."""
    since = handshakes.rows["value"]["since"]
    old: Array = since < max(0, handshakes.end_ns - define["TIMEOUT"] * 10**9)
    return (handshakes.end_ns - since.astype("i8")) / 1e9, old


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    handshakes = metric(snapshots, "handshakes")
    if handshakes is None:
        return ()
    seconds, old = _ages(handshakes, define)
    tables = [
        _table(end, _Ends.of(end, handshakes, counted, old), define, most)
        for end in ("destination", "source")
        if (counted := metric(snapshots, f"{end}s"))
    ]
    return (*tables, _oldest(handshakes.rows[old], seconds[old], define, most))


def _table(end: str, ends: _Ends, define: Macros, most: int) -> TopTable:
    top = largest(ends.half_open + ends.counts["missed"], most)
    known = ends.known[top].tolist()
    columns: dict[str, Sequence[Cell]] = {end: addresses(ends.keys[top, :2])}
    if end == "destination":
        columns["port"] = ends.keys[top, 2].tolist()
    columns["half-open"] = ends.half_open[top].tolist()
    columns[f"over {define['TIMEOUT']} s"] = ends.old[top].tolist()
    for name, title in _COUNTS.items():
        numbers = ends.counts[name][top].tolist()
        columns[title] = [n if sure else "?" for n, sure in zip(numbers, known, strict=True)]
    return TopTable(f"{end}s", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _oldest(old: Array, seconds: Array, define: Macros, most: int) -> TopTable:
    """The oldest of the connections that are reported now."""
    top = largest(seconds, most)
    key = old["key"][top]
    columns = {
        "source": addresses(key["source"]),
        "source port": key["source_port"].tolist(),
        "destination": addresses(key["destination"]),
        "port": key["destination_port"].tolist(),
        "seconds": seconds[top].round(1).tolist(),
        "SYNs": old["value"]["syns"][top].tolist(),
    }
    title = f"half-open for over {define['TIMEOUT']} s"
    return TopTable(title, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _findings(define: Macros, snapshots: Window, most: int) -> tuple[str, ...]:
    handshakes, counted = metric(snapshots, "handshakes"), metric(snapshots, "destinations")
    if handshakes is None or counted is None:
        return ()
    ends = _Ends.of("destination", handshakes, counted, _ages(handshakes, define)[1])
    old, half_open, missed = ends.old, ends.half_open, ends.counts["missed"]
    # A full table grows old at once; until then the SYNs without room tell.
    flooded = np.flatnonzero((old >= define["THRESHOLD"]) | (missed >= define["MISSED"]))
    top = flooded[largest((half_open + missed)[flooded], most)]
    return tuple(
        f"{name} port {ends.keys[at, 2]}: {half_open[at]} half-open connections, {old[at]} of them "
        f"for over {define['TIMEOUT']} s; in the last {duration(counted.seconds)}: "
        f"{ends.counts['syns'][at]} SYNs, {ends.counts['completed'][at]} completed"
        + (f", {missed[at]} SYNs without room" if missed[at] else "")
        for name, at in zip(addresses(ends.keys[top, :2]), top, strict=True)
    )


VIEW = ApplicationView(_tables, _findings)
