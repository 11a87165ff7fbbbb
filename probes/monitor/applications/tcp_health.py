"""View of TCP's health: round-trip times of both halves of a path, and losses, by sender.

A row is one end's packets. Its round-trip time is between here and that end; the other half is in
the row of the other end.
"""

from __future__ import annotations

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
)

_COUNTS = {
    "lost_before": "lost before",
    "out_of_order": "out of order",
    "duplicate_acks": "dup ACKs",
    "zero_windows": "zero windows",
    "resets": "resets",
}
"""Counts of a sender's packets, and their titles."""


def _rows(snapshots: Window) -> tuple[Array, float] | None:
    """Return the rows of both directions, and the seconds of the window."""
    found = [each for each in snapshots if each.metric == "flows"]
    if not found:
        return None
    return np.concatenate([each.rows for each in found]), found[0].seconds


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    found = _rows(snapshots)
    if found is None:
        return ()
    rows, seconds = found
    values = rows["value"]
    troubles = sum(
        values[name].astype("f8") for name in ("retransmitted", "zero_windows", "resets")
    )
    top = largest(troubles * (values["packets"].max(initial=0) + 1.0) + values["packets"], most)
    key, value = rows["key"][top], values[top]
    columns: dict[str, list[Cell]] = {
        "source": list(addresses(key["source"])),
        "source port": key["source_port"].tolist(),
        "destination": list(addresses(key["destination"])),
        "port": key["destination_port"].tolist(),
        "packets/s": (value["packets"] / seconds).tolist(),
        "bit/s": (value["bytes"] * 8 / seconds).tolist(),
        "RTT src ms": _milliseconds(value),
        "RTT dst ms": _milliseconds(_of_other_end(rows, top)),
        "repeated": value["retransmitted"].tolist(),
        "% repeated": (_share(value) * 100).tolist(),
    }
    for name, title in _COUNTS.items():
        columns[title] = value[name].tolist()
    return (
        TopTable(
            "TCP health by sender", tuple(columns), tuple(zip(*columns.values(), strict=True))
        ),
    )


def _findings(define: Macros, snapshots: Window, most: int) -> tuple[str, ...]:
    found = _rows(snapshots)
    if found is None:
        return ()
    rows, seconds = found
    value = rows["value"]
    repeats = (value["retransmitted"] >= define["SEGMENTS"]) & (
        _share(value) * 100 >= define["REPEATED"]
    )
    closed = value["zero_windows"] >= define["ZERO_WINDOWS"]
    lines = [_repeats(rows[at], seconds) for at in _top(repeats, value["retransmitted"], most)]
    lines += (
        f"{_names(rows[at])}: {value['zero_windows'][at]} zero windows in {duration(seconds)}: "
        "its application does not read"
        for at in _top(closed, value["zero_windows"], most)
    )
    return tuple(lines[:most])


def _repeats(row: Array, seconds: float) -> str:
    value = row["value"]
    behind = int(value["retransmitted"] - value["lost_before"] - value["spurious"])
    return (
        f"{_names(row)}: {value['retransmitted']} of {value['segments']} segments were sent again "
        f"in {duration(seconds)}: {value['lost_before']} were lost before here, {behind} behind, "
        f"{value['spurious']} had arrived"
    )


def _top(where: Array, values: Array, most: int) -> Array:
    found = np.flatnonzero(where)
    return found[largest(values[found], most)]


def _names(row: Array) -> str:
    source, destination = (addresses(row["key"][end])[0] for end in ("source", "destination"))
    ports = row["key"]["source_port"], row["key"]["destination_port"]
    return f"{source} port {ports[0]} to {destination} port {ports[1]}"


def _share(value: Array) -> Array:
    """Return the retransmitted share of each sender's segments, 0 to 1."""
    return value["retransmitted"] / np.maximum(value["segments"], 1)


def _milliseconds(value: Array) -> list[Cell]:
    """Return mean round-trip times in ms; an empty text without samples."""
    samples = value["rtt_samples"]
    mean = value["rtt_sum"] / np.maximum(samples, 1) / 1e6
    return [ms if n else "" for ms, n in zip(mean.tolist(), samples.tolist(), strict=True)]


def _of_other_end(rows: Array, top: Array) -> Array:
    """Return the values of the other end of each row in `top` (k,); zeros without such a row."""
    key, other = rows["key"], np.zeros(len(top), rows["key"].dtype)
    for ours, theirs in (("source", "destination"), ("source_port", "destination_port")):
        other[ours], other[theirs] = key[theirs][top], key[ours][top]
    first, of = groups(np.concatenate([key, other]))
    found = first[of[len(rows) :]]
    values: Array = np.zeros(len(top), rows["value"].dtype)
    known = found < len(rows)
    values[known] = rows["value"][found[known]]
    return values


VIEW = ApplicationView(_tables, _findings)
