"""The last windows of the monitor, as conditions use them (S2.11, S2.23), and recurring bursts.

A burst, such as a round of an SNMP poller, is a row of windows in which a policy's condition holds
by its quiet windows; a gap of fewer than three windows is part of it. If three short bursts came,
each soon after the one before, their size is usual from then on: baselines learn them. A burst is
learnt after its end: a lasting attack stays unusual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import numpy as np

from bpf.arrays import Array
from probes.monitor.records import METRIC
from probes.monitor.selected import Estimate, SelectedMetric

_COUNTED = METRIC.names or ()
_OTHERS = ("other_packets", "other_bytes")
METRIC_NAMES = (*(name for name in _COUNTED if not name.startswith("flows_")), *_OTHERS)
"""Metrics of all packets. `other` is everything except TCP, UDP and ICMP."""
MIN_WINDOWS = 4
"""Windows that are always kept: a baseline needs three before the last one."""

_COLUMNS = {
    name: number for number, name in enumerate((*_COUNTED, *_OTHERS, "seconds", "middle", "seen"))
}
_METRICS = tuple(
    SelectedMetric("flows" if name.startswith("flows") else name, "")
    for name in (*_COUNTED, *_OTHERS)
)
"""Metrics of the first rows of a table."""
_FLOWS = SelectedMetric("flows", "")
_LIMITS = [_COLUMNS[name] for name in ("flows", "flows_low", "flows_high")]
_NONE: Mapping[SelectedMetric, Estimate] = {}
_UNKNOWN = (np.nan,) * 3


class WindowSeries:
    """Windows in order, as long as conditions need them. For one thread at a time."""

    def __init__(self, keep_seconds: float = 0.0) -> None:
        self._keep = keep_seconds
        self._table = np.empty((len(_COLUMNS), 64))
        self._places: dict[SelectedMetric, int] = {}
        """Place of each metric of a selection in `_selected`, in order."""
        self._selected = np.empty((0, 3, 64))
        """Value, low and high of each window; NaN where the metric is unknown."""
        self._first = self._end = self._gone = 0
        self._seen = 0.0
        self.counts: dict[int, tuple[object, int, int, int]] = {}
        """Counts of baselines, see `Over`."""
        self._usual: dict[tuple[float, int, int], slice] = {}
        """Results of `usual` since the last window."""

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def first(self) -> int:
        """Number of the first window that is kept; the first one of all is 0."""
        return self._gone + self._first

    def copy(self, metrics: Iterable[SelectedMetric]) -> WindowSeries:
        """Return the same windows, with these metrics of selections only."""
        found = copy(self)
        found._table, found.counts, found._usual = self._table.copy(), dict(self.counts), {}
        found._choose([metric for metric in metrics if metric in self._places])
        return found

    def keep(self, seconds: float) -> None:
        """Keep windows for at least so long from now on."""
        self._keep = max(self._keep, seconds)

    def append(
        self,
        row: Array,
        end_ns: int,
        seconds: float,
        selected: Mapping[SelectedMetric, Estimate] = _NONE,
        count: int = 1,
    ) -> None:
        """Add a window: dtype METRIC, shape (), its end (CLOCK_MONOTONIC), and its known metrics of
        selections. Or add `count` such windows of `seconds` each; the last one ends then.
        """
        self._make_room(count)
        if unknown := [metric for metric in selected if metric not in self._places]:
            self._choose([*self._places, *unknown])
        values = row.item()
        packets, octets, tcp, tcp_octets, udp, udp_octets, icmp, icmp_octets = values[:8]
        others = packets - tcp - udp - icmp, octets - tcp_octets - udp_octets - icmp_octets
        new, after = slice(self._end, self._end + count), np.arange(count) + 0.5
        known = [selected.get(metric, _UNKNOWN) for metric in self._places]
        self._selected[..., new] = np.reshape(known, (-1, 3, 1))
        self._table[:-2, new] = np.array((*values, *others, seconds))[:, None]
        self._table[-2:, new] = end_ns / 1e9 - seconds * after[::-1], self._seen + seconds * after
        self._seen += seconds * count
        self._end += count
        self._forget()

    def _choose(self, metrics: Sequence[SelectedMetric]) -> None:
        """Have these metrics from now on; new ones are unknown in the windows so far."""
        before, self._places = self._places, {each: at for at, each in enumerate(metrics)}
        old, self._selected = (
            self._selected,
            np.full((len(metrics), *self._selected.shape[1:]), np.nan),
        )
        for metric, at in self._places.items():
            if metric in before:
                self._selected[at] = old[before[metric]]

    def _forget(self) -> None:
        self._usual.clear()
        # One more than needed: it shows that the others cover the whole time.
        middles = self._table[_COLUMNS["seen"]]
        oldest = self._seen - self._keep
        while len(self) > MIN_WINDOWS and middles[self._first + 1] <= oldest:
            self._first += 1

    def not_zero(self) -> dict[SelectedMetric, object]:
        """Return the metrics of all packets that are not 0 in the last window, with their values
        and limits."""
        values = self._table[: len(_METRICS), self._end - 1].tolist()
        found: dict[SelectedMetric, object] = {
            metric: value for metric, value in zip(_METRICS, values, strict=True) if value
        }
        if _FLOWS in found:
            found[_FLOWS] = tuple(self._table[_LIMITS, self._end - 1].tolist())
        return found

    def column(self, name: str) -> Array:
        """One of METRIC_NAMES, `flows_low`, `flows_high` or `seconds` of all windows: f8 (n,)."""
        return self._table[_COLUMNS[name], self._first : self._end]

    def selected(self, metric: SelectedMetric) -> Array:
        """Value, low and high of all windows: f8 (3, n); NaN where the metric is unknown."""
        if metric not in self._places:
            return np.full((3, len(self)), np.nan)
        return self._selected[self._places[metric], :, self._first : self._end]

    def known(self, metrics: Iterable[SelectedMetric]) -> Array:
        """Windows in which all these metrics are known: bool (n,)."""
        known = np.ones(len(self), bool)
        for metric in metrics:
            known &= ~np.isnan(self.selected(metric)[0])
        return known

    def recent(self, seconds: float) -> tuple[slice, bool]:
        """Windows that lie mostly within the last `seconds` (at least the newest), and whether they
        cover all of it."""
        return self._since("middle", seconds, len(self), 1)

    def usual(self, seconds: float, before: int, least: int) -> slice:
        """The part of the first `before` windows within their last `seconds`, gaps not counted; at
        least `least` windows."""
        asked = seconds, before, least
        if asked not in self._usual:
            self._usual[asked] = self._since("seen", *asked)[0]
        return self._usual[asked]

    def _since(self, axis: str, seconds: float, stop: int, least: int) -> tuple[slice, bool]:
        if stop <= 0:
            return slice(0), False
        middles, lengths = self.column(axis)[:stop], self.column("seconds")
        oldest = middles[-1] + lengths[stop - 1] / 2 - seconds
        start = min(int(middles.searchsorted(oldest, "right")), max(stop - least, 0))
        # Up to half a window may be missing: one may lie half within that time.
        return slice(start, stop), bool(middles[0] - lengths[0] <= oldest)

    def _make_room(self, more: int) -> None:
        if self._end + more <= self._table.shape[1]:
            return
        kept = self._table[:, self._first : self._end]
        count = kept.shape[1]
        wanted = max(2 * count, count + more, 64)
        # Metrics that no window knows any more were of policies that are gone.
        self._choose([metric for metric in self._places if self.known([metric]).any()])
        table, selected = (
            np.full((*of.shape[:-1], wanted), np.nan) for of in (self._table, self._selected)
        )
        table[:, :count] = kept
        selected[..., :count] = self._selected[..., self._first : self._end]
        self.counts.clear()  # perhaps of policies that are gone, too
        self._gone += self._first
        self._table, self._selected, self._first, self._end = table, selected, 0, count


Window = tuple[Array, int, float, Mapping[SelectedMetric, Estimate]]
"""Arguments of `WindowSeries.append`."""
USUAL = 3
"""Bursts that make a usual one, and windows without a burst that end one."""
FORGOTTEN, SHORT = 6, 0.1
"""A pause that forgets all bursts, and the length of the longest one that is learnt: shares of the
longest time of the conditions."""
_KEPT = 8
"""First windows of a burst that are kept."""


class Bursts:
    """The bursts of one policy."""

    def __init__(self, span: float) -> None:
        """`span` is the longest time of the policy's conditions, in seconds."""
        self._span = span
        self._learnt = WindowSeries(span)
        self._number = 0
        """Bursts that were learnt."""
        self._burst: list[Window] = []
        self._last_ns = self._gap = 0
        """The last window of a burst, and windows since then."""

    def append(self, window: Window) -> None:
        """Add a window to the burst that goes on, or begin one."""
        if window[1] - self._last_ns > FORGOTTEN * self._span * 1e9:
            self._learnt, self._number = WindowSeries(self._span), 0
        self._last_ns, self._gap = window[1], 0
        if len(self._burst) < _KEPT:
            self._burst.append(window)

    def pause(self, windows: int) -> None:
        """Note windows without a burst. Learn the burst before, if they end it."""
        self._gap += windows
        if not self._burst or self._gap < USUAL:
            return
        if self._last_ns - self._burst[0][1] <= SHORT * self._span * 1e9:
            self._number += 1
            for window in self._burst:
                self._learnt.append(*window)
        self._burst = []

    def usual(self) -> WindowSeries | None:
        """Return the windows of bursts, if there were enough."""
        return self._learnt if self._number >= USUAL else None
