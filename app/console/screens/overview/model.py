"""The model of screen 1: traffic of the last minutes, worst hops, policies, warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from app.console.live.overview_feed import TRAFFIC, Pulse
from app.console.live.paths import SECOND_NS, PathView
from app.console.screens.paths.hop import HOP, LITTLE, PathKey, added
from app.console.screens.paths.hosts import PathHosts, TracedByHost
from app.console.screens.paths.model import CELL, MINUTE, Paths
from app.console.screens.triggers.model import PolicyView, Triggers
from bpf.arrays import Array, Rows
from probes.control_plane import ControlPlane
from probes.filter.hosts import address_text
from probes.monitor.state import PolicyState
from widgets.sparkline import means

GROUPS = ("conversations", "hosts", "services")
"""Blocks of groups of flows."""
WIDE, BROAD = 100, 160
"""Least widths of screens with two and three columns of blocks."""
LATE = 2.5
"""A probe without a window for so many intervals is late."""
_NOW = 0.5
"""Least seconds of a present rate: windows end early if tables fill."""
_QUIET_NS = 5 * SECOND_NS


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Rates of a direction per second; NaN without a window."""

    bits: float
    packets: float
    line: NDArray[np.float64]
    """Bits, (cells,), newest last."""
    lost: NDArray[np.bool_]
    """Cells with missing packets, (cells,)."""
    peak: tuple[float, float]
    """Highest bits and packets of a window on the line."""


def span_of(traffic: Rows[TRAFFIC]) -> int:
    """Return the seconds of a cell of time lines of `traffic` (n,): at least the longest window."""
    longest = float(traffic["seconds"][-10:].max(initial=0.0))
    return CELL * max(1, math.ceil(round(longest / CELL, 2)))


def rates(traffic: Rows[TRAFFIC], way: str, cells: int) -> Rates:
    """Return the rates of `in` or `out`, of windows of dtype TRAFFIC (n,), oldest first."""
    cell_ns = span_of(traffic) * SECOND_NS
    # A window at the end of a cell belongs to it. Cells begin at round times.
    at = (traffic["end_ns"] - 1) // cell_ns
    at = at - (at[-1] if len(at) else 0) + cells - 1
    seen = traffic[at >= 0]
    at = at[at >= 0]
    seconds = np.bincount(at, seen["seconds"], cells)
    line = means(np.bincount(at, seen[f"{way}_bytes"] * 8.0, cells), seconds)
    lost = np.bincount(at, seen["lost"], cells) > 0
    whole = np.maximum(seen["seconds"], _NOW)
    windows = int(np.searchsorted(np.cumsum(traffic["seconds"][::-1]), _NOW)) + 1
    newest = traffic[-windows:]
    taken = float(newest["seconds"].sum())

    def present(what: str) -> float:
        return float(newest[f"{way}_{what}"].sum()) / taken if taken > 0 else math.nan

    def peak(what: str) -> float:
        # A first window may be short, and its rate above the mean of a second.
        return max(float((seen[f"{way}_{what}"] / whole).max(initial=0.0)), present(what))

    return Rates(
        8 * present("bytes"), present("packets"), line, lost, (8 * peak("bytes"), peak("packets"))
    )


def late(pulses: Iterable[Pulse], now: float, plane: ControlPlane) -> list[Pulse]:
    """Return the probes that are silent at `now`, by `time.monotonic()`."""
    if plane.late_by:
        return []  # A slow link is no silence of probes.
    interval, steps = plane.interval, plane.budget().steps
    return [
        one for one in pulses
        # An event tells that the CPU budget ends a probe's windows: the step has its name.
        if now - one.came_at > LATE * max(one.interval, interval) and one.name not in steps
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankedHop:
    """A hop of a path, with its rank: the least is the worst."""

    path: PathKey
    number: int
    adds: float
    """Seconds that it adds to the mean round trip."""
    rank: tuple[float, ...]

    @property
    def is_notable(self) -> bool:
        """Whether it adds more than little delay, queues or loses."""
        return self.rank[0] < 0


@dataclass(slots=True)
class WorstHops:
    """Hops of all paths of all shown hosts, the worst first, ranked once a second."""

    hosts: PathHosts = field(default_factory=PathHosts)
    notable: int = 0
    """Number of notable hops; they come first."""
    _ranked: list[RankedHop] = field(default_factory=list)
    _known: object = None
    _found: tuple[object, list[PathKey], Array] = (None, [], np.empty(0, HOP))

    def take(self, views: Mapping[str, PathView], traced: TracedByHost, current: str = "") -> None:
        """Take in the paths and the running traces of each host."""
        self.hosts.take(views, traced, current)
        # A trace that becomes known later tells the destination's number.
        known = traced, [(host, view.generation, view.second) for host, view in views.items()]
        if self._known != known:
            self._known = known
            every = (hop for paths in self.hosts.models.values() for hop in ranked(paths))
            self._ranked = sorted(every, key=attrgetter("rank"))
            self.notable = sum(hop.is_notable for hop in self._ranked)

    @property
    def paths(self) -> Paths:
        """The paths of the current host."""
        return self.hosts.of_host(self.hosts.current)

    def __len__(self) -> int:
        return len(self._ranked)

    def hops(self, most: int, cells: int) -> tuple[list[PathKey], Array]:
        """Return at most `most` hops with their paths, dtype HOP, with time lines of `cells` cells.

        `adds` is of the mean round trip, by which hops are ranked: a queue that comes and goes has
        no part in the median.
        """
        asked = (self._known, most, cells)
        if self._found[0] != asked:
            chosen = self._ranked[: max(0, most)]
            hops = np.empty(len(chosen), HOP)
            for host in {one.path.host for one in chosen}:
                at = [place for place, one in enumerate(chosen) if one.path.host == host]
                wanted = [(chosen[place].path, chosen[place].number) for place in at]
                hops[at] = self.hosts.of_host(host).hops_at(wanted, cells)
            hops["adds"] = [one.adds for one in chosen]
            self._found = asked, [one.path for one in chosen], hops
        return self._found[1:]


def ranked(paths: Paths) -> list[RankedHop]:
    """Return every hop of a host that answers, the worst first.

    The worst lose packets, queue, or add most delay to the mean round trip. The destination is a
    hop if the flow itself tells its round trip. A router's reluctance to answer is no loss. Values
    are rounded, so that similar hops keep their places.
    """
    view = paths.view
    series = view.series
    answers = (series["last_ns"] >= 0) & (view.now_ns - series["seen_ns"] <= _QUIET_NS)
    here = np.flatnonzero(answers & (paths.numbers > 0))
    if not len(here):
        return []
    series = series[here]
    bins = view.recent(here, MINUTE)
    key = np.zeros((len(here), 18), "u1")
    key[:, :16], key[:, 16], key[:, 17] = series["destination"], series["version"], series["hop"]
    hops, first, of = np.unique(key.view("V18")[:, 0], return_index=True, return_inverse=True)
    answered, lost, untimed, rtt_ns = (
        np.bincount(of, bins[name].sum(axis=1), len(hops))
        for name in ("answered", "lost", "untimed", "rtt_ns")
    )
    wanted = np.bincount(of, series["cleared"] == 0, len(hops)) > 0
    loss = np.where(wanted, np.nan_to_num(means(lost, answered + untimed + lost)), 0.0)
    queue = np.zeros(len(hops))
    np.maximum.at(queue, of, series["queue_ns"])
    # Keys sort by destination, then by hop.
    ways = series["destination"][first].tobytes()
    ways_of = [ways[at * 16 : at * 16 + 16] for at in range(len(hops))]
    times = (means(rtt_ns, answered) / 1e9).tolist()
    adds = np.nan_to_num(
        [each for _, way in groupby(zip(ways_of, times, strict=True), key=itemgetter(0))
         for each in added([time for _, time in way])]
    )  # fmt: skip
    notable = (loss > 0) | (queue > 0) | (adds >= LITTLE)
    # Quarters of an octave, of at least a microsecond.
    steps = np.round(np.log2(np.maximum(adds, 1e-6)) * 4)
    ranks = np.stack(
        (0.0 - notable, -np.round(loss * 100), -np.round(np.log2(queue + 1)), -steps,
         series["hop"][first]), axis=1,
    )  # fmt: skip
    found = [
        RankedHop(
            PathKey(address_text(row["destination"].tobytes(), int(row["version"])),
                    host=paths.host),
            int(row["hop"]), float(delay), tuple(rank),
        )
        for row, delay, rank in zip(series[first], adds, ranks.tolist(), strict=True)
    ]  # fmt: skip
    return sorted(found, key=attrgetter("rank"))


_CALM = 4
"""Rows for policies that are far from their thresholds."""


def pressing(triggers: Triggers, cells: int) -> list[PolicyView]:
    """Return every policy, the most pressing first, with time lines of `cells` cells."""
    return sorted(triggers.statuses(cells), key=_rank)


def notable_policies(triggers: Triggers) -> int:
    """Return how many policies run or are near their thresholds; of calm ones, a few count, too."""
    every = triggers.statuses(0)
    return max(min(_CALM, len(every)), sum(one.info.state.runs or one.ratio > 0.5 for one in every))


def _rank(one: PolicyView) -> tuple[int, float]:
    state = one.info.state
    rank = {PolicyState.COOLDOWN: 1, PolicyState.ARMED: 2}.get(state, 4)
    if state.runs:
        rank = 3 if one.info.policy.mode == "permanent" else 0
    return rank, math.inf if math.isnan(one.ratio) else -one.ratio


def block_columns(width: int, *, tall: bool) -> tuple[tuple[str, ...], ...]:
    """Return the blocks of each column of a screen of `width` cells."""
    if width >= BROAD:
        return ("conversations", "hops"), ("hosts", "services"), ("policies", "events")
    if width >= WIDE:
        return ("conversations", "hops"), ("hosts", "services", "policies", "events")
    return (("conversations", "hosts", *["services"] * tall, "hops", "policies"),)


def allotted(lines: int, wanted: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """Return heights, by name, of blocks that want so many rows, in a column of `lines` lines.

    Each block has a line for its name; the other lines go to blocks by weight until all have
    their rows.
    """
    heights = dict.fromkeys(wanted, 1)
    for _ in range(lines - len(wanted)):
        hungry = [name for name in wanted if heights[name] <= wanted[name]]
        if not hungry:
            break
        heights[min(hungry, key=lambda name: heights[name] / weights.get(name, 1))] += 1
    return heights
