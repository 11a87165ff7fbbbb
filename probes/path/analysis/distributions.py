"""Whether two paths are equally fast: the two-sample Kolmogorov-Smirnov test (S3.20)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probes.path.records import FLOW_KEY, HOP, Array, ProbeOutcome

_TERMS = np.arange(1, 101)
_MIN_ARGUMENT = 0.2
"""Below this the distribution function is 0 to the last digit, and its series does not converge."""


class DistributionTest(NamedTuple):
    """Result of comparing two samples."""

    statistic: float
    """The largest distance of the two empirical distribution functions, 0 to 1."""
    p_value: float
    """Probability of this distance or a larger one if both samples have one distribution.
    Asymptotic: good from some 20 values each. It is too low for consecutive times in a queue, which
    depend on each other: compare times of a minute, not of a second."""


def kolmogorov_smirnov(first: Array, second: Array) -> DistributionTest:
    """Compare two samples (n,), (m,) in any order. Raises ValueError if one is empty."""
    if not len(first) or not len(second):
        raise ValueError("a sample without a value has no distribution")
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate((first, second))
    below_first = np.searchsorted(first, values, "right") / len(first)
    below_second = np.searchsorted(second, values, "right") / len(second)
    statistic = float(np.abs(below_first - below_second).max())
    size = len(first) * len(second) / (len(first) + len(second))
    argument = np.sqrt(size) * statistic
    if argument < _MIN_ARGUMENT:
        return DistributionTest(statistic, 1.0)
    # Kolmogorov's distribution: Q(x) = 2 sum (-1)^(k-1) exp(-2 k^2 x^2).
    signs = np.where(_TERMS % 2, 2.0, -2.0)
    p_value = float((signs * np.exp(-2.0 * (_TERMS * argument) ** 2)).sum())
    return DistributionTest(statistic, min(max(p_value, 0.0), 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPath:
    """One route to a destination, with the round-trip times at its last hop."""

    routers: tuple[bytes, ...]
    """Addresses as in HOP, from hop 1 on; 16 zero bytes if the router did not answer."""
    flows: int
    rtts_ns: Array
    """(n,) i8, in no particular order."""


def paths_of(rows: Array, hop: int = 0) -> list[MeasuredPath]:
    """Return the paths in rows of dtype HOP of one destination, the ones with most flows first.

    At each hop the router that answered a flow most often counts. Times are from `hop`, or if it is
    0 from the last hop at which all flows have an answer. Empty if no such hop exists.
    """
    answered = rows[rows["outcome"] <= ProbeOutcome.UNREACHABLE]
    if not len(answered):
        return []
    flow_bytes = HOP.fields["hop"][1]  # type: ignore[index]
    keys = np.ascontiguousarray(answered[[name for name, *_ in FLOW_KEY]])
    raw = keys.view("u1").reshape(len(keys), -1)[:, :flow_bytes]
    _, flows = np.unique(raw, axis=0, return_inverse=True)
    count = int(flows.max()) + 1
    last = hop
    if not last:
        reached = np.zeros((count, 256), bool)
        reached[flows, answered["hop"]] = True
        common = np.flatnonzero(reached.all(axis=0))
        last = int(common[-1]) if len(common) else 0
    by_route: dict[tuple[bytes, ...], list[Array]] = {}
    for flow in range(count):
        mine = answered[flows == flow]
        at_hop = mine[mine["hop"] == last]
        if len(at_hop):
            times = at_hop["received_ns"] - at_hop["sent_ns"]
            by_route.setdefault(_routers(mine, last), []).append(times)
    paths = [
        MeasuredPath(key, len(times), np.concatenate(times)) for key, times in by_route.items()
    ]
    return sorted(paths, key=lambda path: -path.flows)


def _routers(rows: Array, last: int) -> tuple[bytes, ...]:
    found = []
    for hop in range(1, last + 1):
        addresses = rows["responder"][rows["hop"] == hop]
        each, counts = np.unique(addresses, axis=0, return_counts=True)
        found.append(each[counts.argmax()].tobytes() if len(each) else bytes(16))
    return tuple(found)
