"""Whole paths by branch: whether flows that a router sends different ways have other times (S3.20).

A branch is all flows to a destination that pass the same routers wherever flows part. Each branch
is compared with the one of most flows by the round-trip times of the last minute: end to end if the
flows themselves tell these, else at the farthest hop that answers both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bpf.arrays import Array, Row, Rows
from probes.path.analysis.changes import Changes
from probes.path.analysis.flows import MAX_FLOWS, MAX_SERIES, Detector, Flows, HopBatch
from probes.path.analysis.statistics import quantiles
from probes.path.records import DESTINATION_HOP, HOP_COUNT, PATH, PathRowKind, no_rows

COMPARE_NS = 10_000_000_000
"""Time between two comparisons. A verdict that changes must hold in two of them."""
MEMORY_NS = 60_000_000_000
MIN_TIMES = 20
"""Times that each of two branches needs."""
MAX_BRANCHES = 8
"""Branches of one destination: the ones with most flows."""
MAX_TIMES = 1 << 18
"""Once so many times are kept, the oldest leave early."""

_SURE = 1e-3
"""Largest probability at which times still count as different."""
_MIN_DISTANCE = 0.2
"""Of the distribution functions: with many times even a difference of no interest is certain."""

_TERMS = np.arange(1, 101)
_MIN_ARGUMENT = 0.2
"""Below this the distribution function is 0 to the last digit, and its series does not converge."""

TIMES = np.dtype([("series", "i8"), ("sent_ns", "i8"), ("rtt_ns", "i8")])


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Flows that take the same way."""

    places: Array
    """(n,) of the followed flows."""
    router: Array
    """Address u1 (16,) of its router where branches part."""


@dataclass(slots=True)
class _Verdict:
    """The state of one comparison."""

    told: bool | None = None
    """Whether the times were reported as different; None: nothing was reported."""
    last: bool | None = None


class Branches(Detector):
    """Compares the branches of all destinations. Rows are of BRANCH: the first result of two
    branches, and each that differs from it later."""

    def __init__(self, flows: Flows, changes: Changes) -> None:
        super().__init__(flows)
        self._changes = changes
        self._times: deque[Array] = deque()
        """dtype TIMES, (n,), one for each poll."""
        self._count = 0
        self._compared_ns = 0
        self._verdicts: dict[tuple[int, bytes, bytes], _Verdict] = {}
        """By address id of the destination and the routers of both branches."""

    def drop(self, places: Array) -> None:
        super().drop(places)
        gone = np.zeros(MAX_FLOWS, bool)
        gone[places] = True
        self._times = deque(each[~gone[each["series"] // HOP_COUNT]] for each in self._times)
        self._count = sum(map(len, self._times))

    def add(self, batch: HopBatch) -> Rows[PATH]:
        """Rows (n,) of dtype PATH."""
        answers, now_ns = batch.answers, batch.now_ns
        if len(answers.series):
            times = np.empty(len(answers.series), TIMES)
            times["series"], times["rtt_ns"] = answers.series, answers.rtts_ns
            times["sent_ns"] = answers.rows["sent_ns"]
            self._times.append(times)
            self._count += len(times)
        while self._times and (
            self._count > MAX_TIMES or self._times[0]["sent_ns"].max(initial=0) < now_ns - MEMORY_NS
        ):
            self._count -= len(self._times.popleft())
        self._compared_ns = self._compared_ns or now_ns
        if now_ns - self._compared_ns < COMPARE_NS:
            return no_rows(PATH)
        self._compared_ns = now_ns
        return self._compare(now_ns)

    def _compare(self, now_ns: int) -> Array:
        places = np.flatnonzero(self._flows.used)
        destinations = self._flows.destinations[places]
        found = []
        before, self._verdicts = self._verdicts, {}
        times: Array | None = None
        for destination in np.unique(destinations):
            hop, branches = self._branches(places[destinations == destination])
            if len(branches) > 1 and times is None:
                times = np.concatenate([np.empty(0, TIMES), *self._times])
                rerouted_ns = self._changes.rerouted_ns[times["series"] // HOP_COUNT]
                times = times[times["sent_ns"] > rerouted_ns]
            for branch in branches[1:]:
                assert times is not None
                key = (int(destination), branch.router.tobytes(), branches[0].router.tobytes())
                verdict = self._verdicts[key] = before.get(key, _Verdict())
                row = self._row(times, branch, branches[0], hop, now_ns)
                if row is not None and _is_news(verdict, bool(is_different(row)[0])):
                    row["alternatives"] = len(branches)
                    found.append(row)
        return np.concatenate([no_rows(PATH), *found], dtype=PATH)

    def _branches(self, places: Array) -> tuple[int, list[Branch]]:
        """Return the first hop at which the flows at `places` part, and the branches, the one of
        most flows first; without branches 0."""
        routes = self._changes.routes.reshape(MAX_FLOWS, HOP_COUNT)[places]
        # A router that distributes packets makes no branches, nor does the destination.
        is_end = routes["current"] == self._flows.destinations[places, np.newaxis]
        routers = np.where(routes["mixed"] | is_end, 0, routes["current"])
        routers[:, DESTINATION_HOP] = 0
        least = np.where(routers > 0, routers, np.iinfo("u8").max).min(axis=0)
        parting = np.flatnonzero(routers.max(axis=0) > least)
        if not len(parting):
            return 0, []
        first = int(parting[0])
        ways = routers[:, parting]
        known = (ways > 0).all(axis=1)
        if len(np.unique(ways[known], axis=0)) < 2:
            ways, known = ways[:, :1], ways[:, 0] > 0
        _, which, counts = np.unique(ways[known], axis=0, return_inverse=True, return_counts=True)
        groups = [places[known][which.ravel() == way] for way in np.argsort(-counts, kind="stable")]
        addresses = self._changes.facts["responder"].reshape(MAX_FLOWS, HOP_COUNT, -1)
        branches = [Branch(group, addresses[group[0], first]) for group in groups[:MAX_BRANCHES]]
        return first, branches

    def _row(
        self, times: Array, branch: Branch, usual: Branch, parting: int, now_ns: int
    ) -> Array | None:
        """The comparison of two branches; None without a hop at which both have enough times."""
        mine, others = (_by_hop(times, each.places) for each in (branch, usual))
        hops = [hop for hop in sorted(mine, reverse=True) if hop >= parting and hop in others]
        if not hops:
            return None
        own, other = mine[hops[0]], others[hops[0]]
        test: DistributionTest = kolmogorov_smirnov(own, other)
        row = self._flows.rows(PathRowKind.BRANCH, branch.places[:1] * HOP_COUNT + hops[0], now_ns)
        row["responder"], row["previous"], row["amount"] = branch.router, usual.router, parting
        row["answered"], (row["median_ns"], row["p95_ns"]) = len(own), quantiles(own, (0.5, 0.95))
        row["amount_ns"] = row["median_ns"] - quantiles(other, (0.5,))
        row["statistic"], row["p_value"] = test
        row["flows"] = len(branch.places)
        return row


def is_different(rows: Rows[PATH] | Row[PATH]) -> Array:
    """Whether rows of BRANCH, of dtype PATH, are of different times, bool of the same shape."""
    return (rows["p_value"] < _SURE) & (rows["statistic"] >= _MIN_DISTANCE)


def _by_hop(times: Rows[TIMES], places: Array) -> dict[int, Array]:
    """Round-trip times (n,) of the flows at `places`, at each hop that has enough of them."""
    belongs = np.zeros(MAX_SERIES // HOP_COUNT, bool)
    belongs[places] = True
    mine = times[belongs[times["series"] // HOP_COUNT]]
    hops = mine["series"] % HOP_COUNT
    counts = np.bincount(hops, minlength=HOP_COUNT)
    return {
        hop: mine["rtt_ns"][hops == hop] for hop in np.flatnonzero(counts >= MIN_TIMES).tolist()
    }


def _is_news(verdict: _Verdict, different: bool) -> bool:
    """Take in one more result. Returns whether it is to be reported."""
    steady = verdict.last == different
    verdict.last = different
    if not steady or verdict.told == different:
        return False
    verdict.told = different
    return True


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
