"""Totals by interface, in a run on several interfaces."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from probes.filter.table import Coded
from probes.flow.records import FLOW, NAME, FlowDirection

INTERFACE = np.dtype([
    ("interface", NAME), ("in_packets", "u8"), ("in_bytes", "u8"), ("out_packets", "u8"),
    ("out_bytes", "u8"), ("repeated_in_packets", "u8"), ("repeated_in_bytes", "u8"),
    ("repeated_out_packets", "u8"), ("repeated_out_bytes", "u8"),
])  # fmt: skip
"""Packets of an interface in a window, of flows, also of those that the CPU budget cuts. Counted
ones are in `in` and `out`; the sums with `repeated` are the interface's own counters."""
_ODD = 0x9E3779B97F4A7C15
_WAYS = {FlowDirection.INGRESS: "in", FlowDirection.EGRESS: "out"}


def names_of(rows: Array) -> Coded:
    """Return the names of the interfaces of rows (n,) with the fields of dtype FLOW."""
    words = (
        np.ascontiguousarray(rows["interface"]).view("u8").reshape(len(rows), NAME.itemsize // 8)
    )
    # Two words: a sort of the names themselves takes ten times as long.
    _, first, of = np.unique(
        words[:, 0] ^ words[:, 1] * np.uint64(_ODD), return_index=True, return_inverse=True
    )
    return Coded(of, [name.decode(errors="replace") for name in rows["interface"][first].tolist()])


def totals(flows: Rows[FLOW], repeated: Rows[FLOW]) -> Rows[INTERFACE]:
    """Return the totals of a window, by name."""
    both = np.concatenate([flows["interface"], repeated["interface"]])
    names, of = np.unique(both, return_inverse=True)
    found = np.zeros(len(names), INTERFACE)
    found["interface"] = names
    for rows, places, prefix in (
        (flows, of[: len(flows)], ""),
        (repeated, of[len(flows) :], "repeated_"),
    ):
        for way, word in _WAYS.items():
            mine = rows["direction"] == way
            for unit in ("packets", "bytes"):
                sums = _sums(places[mine], rows[unit][mine], len(names))
                found[f"{prefix}{word}_{unit}"] = sums
    return found


def _sums(places: Array, values: Array, count: int) -> Array:
    """Exact sums (count,) of values (n,), which numpy.bincount would make floats."""
    sums = np.zeros(count, "u8")
    np.add.at(sums, places, values)
    return sums
