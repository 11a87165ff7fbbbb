"""View of heavy hitters: each flow's share with its limits.

The counts of all CPUs are added up. On a CPU without a row of a flow, the flow may have had at most
a quarter of the share that makes a heavy hitter there, less one byte or packet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpf.arrays import Array
from bpf.quantities import percent
from probes.monitor.applications import keys
from probes.monitor.applications.top_table import (
    ApplicationView,
    Macros,
    TopTable,
    Window,
    groups,
    largest,
    metric,
)

_NOTICED = 4
"""A flow enters the table at this fraction of the share."""


@dataclass(frozen=True, slots=True)
class _Hitters:
    """Flows of a window, summed over the CPUs; arrays of shape (n,)."""

    keys: Array
    """`struct key`."""
    packets: Array
    bytes: Array
    """Counted, so a lower limit."""
    least: Array
    most: Array
    """Limits of the share, 0 to 1, of bytes or packets."""
    seconds: float


def _hitters(define: Macros, snapshots: Window) -> _Hitters | None:
    """The flows that may have the share; None if the window has no tables or no packets."""
    window, totals = metric(snapshots, "hitters"), metric(snapshots, "totals")
    if window is None or totals is None:
        return None
    unit = unit_of(define)
    by_cpu = totals.rows["value"][unit][0].astype("f8")
    total = by_cpu.sum()
    if not total:
        return None
    key, value = window.rows["key"], window.rows["value"]
    first, of = groups(key["flow"])
    counted = {name: np.bincount(of, value[name], len(first)) for name in ("packets", "bytes")}
    noticed = by_cpu * define["SHARE"] / (1000 * _NOTICED)
    seen = np.bincount(of, noticed[key["cpu"]], len(first))
    missed = np.bincount(of, value["missed"], len(first)) + noticed.sum() - seen
    # A flow without room in the table lacks its count up to then.
    missed += getattr(window.lost, unit) + getattr(totals.lost, unit)
    least = counted[unit] / total
    most = np.minimum((counted[unit] + missed) / total, 1)
    heavy = most * 1000 >= define["SHARE"]
    return _Hitters(
        key["flow"][first[heavy]],
        counted["packets"][heavy],
        counted["bytes"][heavy],
        least[heavy],
        most[heavy],
        window.seconds,
    )


def unit_of(define: Macros) -> str:
    return "bytes" if define["BY_BYTES"] else "packets"


def _tables(define: Macros, snapshots: Window, most: int) -> tuple[TopTable, ...]:
    found = _hitters(define, snapshots)
    if found is None:
        return ()
    top = largest(found.most, most)
    columns = (
        *keys.columns(define, found.keys[top]),
        (found.packets[top] / found.seconds).tolist(),
        (found.bytes[top] * 8 / found.seconds).tolist(),
        (100 * found.least[top]).tolist(),
        (100 * found.most[top]).tolist(),
    )
    title = f"{define['SHARE'] / 10:g} % of {unit_of(define)} or more"
    names = (*keys.parts(define), "packets/s", "bit/s", "% at least", "% at most")
    return (TopTable(title, names, tuple(zip(*columns, strict=True))),)


def _findings(define: Macros, snapshots: Window, most: int) -> tuple[str, ...]:
    found = _hitters(define, snapshots)
    if found is None:
        return ()
    rates = found.packets / found.seconds
    certain = np.flatnonzero(
        (found.least * 1000 >= define["ALARM"]) & (rates > define["THRESHOLD"])
    )
    top = certain[largest(found.least[certain], most)]
    return tuple(
        f"{text} has {_share(found.least[n], found.most[n])} of the {unit_of(define)}, "
        f"{rates[n]:.0f} packets/s"
        for text, n in zip(keys.texts(define, found.keys[top]), top.tolist(), strict=True)
    )


def _share(least: float, most: float) -> str:
    """`12.3 %`, or `12.3 % to 12.5 %` if it is uncertain."""
    low, high = percent(least), percent(most)
    return low if low == high else f"{low} to {high}"


VIEW = ApplicationView(_tables, _findings)
