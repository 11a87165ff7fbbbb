"""Half-open TCP as a reader sees it (S2.18): whom SYNs flood, from where, and what came of them.

A connection is half-open from its first SYN until the client's ACK or RST, and is reported in the
window in which it is older than TIMEOUT. Where a flood has filled the table, the SYNs that found no
room in it say the rest: `missed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probes.primitive.applications.top import (
    ApplicationView,
    Array,
    TopTable,
    addresses,
    largest,
    metric,
)
from probes.snapshot import Snapshot

_COUNTS = ("syns", "completed", "resets", "missed")


@dataclass(frozen=True, slots=True)
class _Ends:
    """What there is of each destination, or source; all of shape (n,)."""

    keys: Array
    """(n, 2 or 3) u8: the address, and of a destination the port."""
    half_open: Array
    old: Array
    counts: dict[str, Array]
    """By the names of _COUNTS."""


def _since(handshakes: Snapshot, define: Mapping[str, int]) -> tuple[Array, Array]:
    """Since how many seconds each connection is half-open, and whether that is too long."""
    since = handshakes.rows["value"]["since"]
    old: Array = since < max(0, handshakes.end_ns - define["TIMEOUT"] * 10**9)
    return (handshakes.end_ns - since.astype("i8")) / 1e9, old


def _ends(end: str, define: Mapping[str, int], snapshots: Sequence[Snapshot]) -> _Ends | None:
    """What is known of each `destination`, or `source`; None where the window has no tables."""
    handshakes, counted = metric(snapshots, "handshakes"), metric(snapshots, f"{end}s")
    if handshakes is None or counted is None:
        return None
    open_, key = handshakes.rows["key"], counted.rows["key"]
    with_port = end == "destination"
    ours = np.column_stack([open_[end], *([open_["destination_port"]] if with_port else [])])
    theirs = np.column_stack([key["address"], *([key["port"]] if with_port else [])])
    keys, of = _distinct(np.concatenate([ours, theirs]))
    of_ours, of_theirs = of[: len(ours)], of[len(ours) :]
    _, old = _since(handshakes, define)
    counts = {name: np.zeros(len(keys), "u8") for name in _COUNTS}
    for name, column in counts.items():
        column[of_theirs] = counted.rows["value"][name]
    return _Ends(
        keys,
        np.bincount(of_ours, minlength=len(keys)),
        np.bincount(of_ours[old], minlength=len(keys)),
        counts,
    )


def _distinct(keys: Array) -> tuple[Array, Array]:
    """The distinct ones of keys (n, words), and (n,) which of them each is; np.unique takes longer
    by three to twenty times."""
    order = np.lexsort(keys.T)
    ordered = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    of = np.empty(len(keys), np.intp)
    of[order] = np.cumsum(first) - 1
    return ordered[first], of


def _table(end: str, ends: _Ends, define: Mapping[str, int], most: int) -> TopTable:
    ports = ("port",) if end == "destination" else ()
    names = (end, *ports, "half-open", f"> {define['TIMEOUT']} s", *_COUNTS)
    top = largest(ends.half_open + ends.counts["missed"], most)
    columns = [
        addresses(ends.keys[top, :2]),
        *(ends.keys[top, n].tolist() for n in range(2, 2 + len(ports))),
        *(each[top].tolist() for each in (ends.half_open, ends.old, *ends.counts.values())),
    ]
    return TopTable(f"{end}s", names, tuple(zip(*columns, strict=True)))


def _oldest(define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int) -> TopTable | None:
    """Connections that are reported now, the oldest first."""
    handshakes = metric(snapshots, "handshakes")
    if handshakes is None:
        return None
    seconds, old = _since(handshakes, define)
    reported = np.flatnonzero(old)
    rows = reported[largest(seconds[reported], most)]
    key, value = handshakes.rows["key"][rows], handshakes.rows["value"][rows]
    columns = (
        addresses(key["source"]),
        key["source_port"].tolist(),
        addresses(key["destination"]),
        key["destination_port"].tolist(),
        seconds[rows].round(1).tolist(),
        value["syns"].tolist(),
    )
    names = ("source", "source port", "destination", "port", "seconds", "syns")
    title = f"half-open for more than {define['TIMEOUT']} s"
    return TopTable(title, names, tuple(zip(*columns, strict=True)))


def _tables(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[TopTable, ...]:
    tables = [
        _table(end, ends, define, most)
        for end in ("destination", "source")
        if (ends := _ends(end, define, snapshots))
    ]
    oldest = _oldest(define, snapshots, most)
    return (*tables, *((oldest,) if oldest else ()))


def _findings(
    define: Mapping[str, int], snapshots: Sequence[Snapshot], most: int
) -> tuple[str, ...]:
    ends = _ends("destination", define, snapshots)
    if ends is None:
        return ()
    old, half_open, missed = ends.old, ends.half_open, ends.counts["missed"]
    # All of a full table grows old at once; before that, what found no room tells.
    limit = define["THRESHOLD"]
    flooded = np.flatnonzero((old > limit) | ((half_open > limit) & (missed > limit)))
    top = flooded[largest((half_open + missed)[flooded], most)]
    names = addresses(ends.keys[top, :2])
    return tuple(
        f"{name} port {ends.keys[at, 2]}: {half_open[at]} half-open connections, {old[at]} of them "
        f"for more than {define['TIMEOUT']} s; {ends.counts['syns'][at]} SYNs, "
        f"{ends.counts['completed'][at]} completed"
        + (f"; {missed[at]} found no room" if missed[at] else "")
        for name, at in zip(names, top, strict=True)
    )


VIEW = ApplicationView(_tables, _findings)
