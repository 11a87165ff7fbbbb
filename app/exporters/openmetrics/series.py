"""Series of flows, the monitor and its policies, drops, losses, and the probes themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import FAMILIES, Sample, Series
from app.outputs.view import is_table
from app.outputs.views import DIRECTIONS
from probes.drops.counted import PROBE as DROPS
from probes.drops.counted import by_reason
from probes.monitor import state
from probes.monitor.records import METRIC_COLUMNS, PROTOCOLS
from probes.monitor.state import PolicyState
from probes.snapshot import HookStatus, LossReason, Snapshot

_CLASS = np.full(256, len(PROTOCOLS), "u1")
"""Place of a protocol in PROTOCOLS; ICMP is of both IP versions."""
_CLASS[[6, 17, 1, 58]] = [0, 1, 2, 2]
_LABELS = [(way, protocol) for way in DIRECTIONS.values() for protocol in (*PROTOCOLS, "other")]
_BY_NAME = {family.name: family for family in FAMILIES}
_MONITOR = [
    (one.name, _BY_NAME[f"probedeck_{one.series[0]}"], one.series[1:])
    for one in METRIC_COLUMNS
    if one.series
]
"""The monitor's metrics with their families and labels."""
_MOST_ENDED = 64
"""Ended probes that keep their counters."""


class FlowSeries(Series):
    """Packets, bytes and flows by interface, direction and class of protocol."""

    probe, gauges = "flow", (of.FLOWS,)

    def take(self, item: Snapshot) -> None:
        if not is_table(item, "flow", ""):
            return
        rows = item.rows
        classes = rows["direction"] * np.uint8(len(PROTOCOLS) + 1) + _CLASS[rows["protocol"]]
        counts = np.bincount(classes, minlength=len(_LABELS)).tolist()
        for family, unit in ((of.FLOW_PACKETS, "packets"), (of.FLOW_BYTES, "bytes")):
            sums = np.zeros(len(_LABELS), "u8")
            # bincount would sum in floats, which are exact to 2^53 only.
            np.add.at(sums, classes, rows[unit])
            for labels, more in zip(_LABELS, sums.tolist(), strict=True):
                self.add(family, item.interface, *labels, by=more)
        for labels, value in zip(_LABELS, counts, strict=True):
            self.put(of.FLOWS, item.interface, *labels, value=value)


class MonitorSeries(Series):
    """The monitor's metrics by interface: counters, and its estimate of flows."""

    probe = state.PROBE
    gauges = tuple(family for _, family, _ in _MONITOR if family.kind == "gauge")

    def take(self, item: Snapshot) -> None:
        if not is_table(item, state.PROBE, state.METRICS_TABLE):
            return
        for row in item.rows:
            for name, family, labels in _MONITOR:
                if family.kind == "gauge":
                    self.put(family, item.interface, value=float(row[name]))
                else:
                    self.add(family, item.interface, *labels, by=int(row[name]))
            for family, unit in ((of.MONITOR_PACKETS, "packets"), (of.MONITOR_BYTES, "bytes")):
                known = sum(int(row[f"{protocol}_{unit}"]) for protocol in PROTOCOLS)
                self.add(family, item.interface, "other", by=int(row[unit]) - known)


class DropSeries(Series):
    """Packets that the kernel dropped, by reason. The kernel has about a hundred reasons."""

    def take(self, item: Snapshot) -> None:
        if item.probe == DROPS:
            for dropped in by_reason(item):
                self.add(of.DROPPED_PACKETS, dropped.reason, by=dropped.packets)
                self.add(of.DROPPED_BYTES, dropped.reason, by=dropped.bytes)


class PolicySeries(Series):
    """State, value and activations of each policy. A removed policy has no series."""

    def __init__(self) -> None:
        super().__init__()
        self._names: frozenset[str] = frozenset()

    def take(self, item: Snapshot) -> None:
        if is_table(item, state.PROBE, state.TRIGGERS_TABLE):
            for row in item.rows:
                if PolicyState(row["after"]).runs and not PolicyState(row["before"]).runs:
                    self.add(of.POLICY_ACTIVATIONS, row["policy"].decode(errors="replace"), by=1)
        elif is_table(item, state.PROBE, state.POLICIES_TABLE):
            self.drop(of.POLICY_STATE, of.POLICY_VALUE, of.POLICY_THRESHOLD)
            names = [raw.decode(errors="replace") for raw in item.rows["policy"].tolist()]
            self._names = frozenset(names)
            for name, row in zip(names, item.rows, strict=True):
                for each in PolicyState:
                    self.put(of.POLICY_STATE, name, each.label, value=int(row["state"] == each))
                self.add(of.POLICY_ACTIVATIONS, name, by=0)
                self.add(of.POLICY_SELECTED, name, by=int(row["selected"]))
                limits = ("value", of.POLICY_VALUE), ("threshold", of.POLICY_THRESHOLD)
                for field, family in limits:
                    if np.isfinite(row[field]):
                        self.put(family, name, value=float(row[field]))

    def removed(self, probe: str) -> None:
        if probe == state.PROBE:
            self._names = frozenset()

    def samples(self) -> Iterator[Sample]:
        self.keep(lambda _, labels: labels[0] in self._names)
        yield from super().samples()


class ProbeSeries(Series):
    """Windows, tables, times, hooks and missing packets of each probe.

    Each reason of a loss has a series from the start, so that the first loss is an increase.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[int, int, int]] = {}
        """Number, end and generation of a probe's last window."""
        self._hooks: dict[str, dict[HookStatus, None]] = {}
        self._ended: dict[str, None] = {}
        """The latest last."""

    def take(self, item: Snapshot) -> None:
        probe = item.probe
        self._ended.pop(probe, None)
        window, end_ns, generation = self._last.get(probe, (0, 0, 0))
        if (window, end_ns) != (item.window, item.end_ns):
            # All tables of a window have the same times.
            self.add(of.PROBE_WINDOWS, probe, by=1)
            for family, took in ((of.PROBE_SWAP, item.swap_ns), (of.PROBE_DRAIN, item.drain_ns)):
                self.add(family, probe, by=1, suffix="_count")
                self.add(family, probe, by=took, suffix="_sum")
            self.put(of.PROBE_END, probe, value=item.end_utc_ns / 1e9)
            self._hooks[probe] = {}
        if generation != item.generation:
            # Another generation may have other metrics.
            self.drop(of.PROBE_ROWS, of.PROBE_OCCUPANCY, labels=(probe,))
        self._last[probe] = item.window, item.end_ns, item.generation
        self.put(of.PROBE_GENERATION, probe, value=item.generation)
        table = f"{item.side}.{item.metric}" if item.is_metric else item.metric or "flows"
        self.put(of.PROBE_ROWS, probe, table, value=len(item.rows))
        self.put(of.PROBE_OCCUPANCY, probe, table, value=item.occupancy)
        self._hooks.setdefault(probe, {}).update(dict.fromkeys(item.hooks))
        for reason in LossReason:
            if reason.is_loss or reason in item.losses:
                packets, sizes = (
                    (of.LOST_PACKETS, of.LOST_BYTES) if reason.is_loss
                    else (of.SKIPPED_PACKETS, of.SKIPPED_BYTES)
                )  # fmt: skip
                loss = item.losses.get(reason)
                labels = item.interface, probe, reason.column
                self.add(packets, *labels, by=loss.packets if loss else 0)
                self.add(sizes, *labels, by=loss.bytes if loss else 0)

    def removed(self, probe: str) -> None:
        if probe not in self._last:
            return
        self._ended[probe] = None
        self._hooks.pop(probe, None)
        self._last.pop(probe)
        gauges = of.PROBE_END, of.PROBE_GENERATION, of.PROBE_ROWS, of.PROBE_OCCUPANCY
        self.drop(*gauges, labels=(probe,))
        if len(self._ended) > _MOST_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self.keep(
                lambda one, labels: dict(zip(one.labels, labels, strict=False))["probe"] != oldest
            )

    def samples(self) -> Iterator[Sample]:
        yield from super().samples()
        hooks = dict.fromkeys(hook for known in self._hooks.values() for hook in known)
        shown = {(hook.interface, hook.hook, hook.mode): None for hook in hooks}
        yield from (of.HOOK(*labels) for labels in shown)
