"""Series of flows, the monitor and its policies, drops, owners, losses, and the probes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import FAMILIES, Sample, Series
from app.outputs.view import is_table
from app.outputs.views import DIRECTIONS
from bpf.arrays import Array, Rows
from bpf.attach.group import is_group
from probes.drops.counted import PROBE as DROPS
from probes.drops.counted import by_reason
from probes.flow.interfaces import INTERFACE, names_of
from probes.flow.kinds import INTERFACES
from probes.flow.records import FlowDirection
from probes.monitor import state
from probes.monitor.records import METRIC_COLUMNS, PROTOCOLS, of_others
from probes.monitor.state import PolicyState, phase_of
from probes.snapshot import HookStatus, LossReason, Snapshot
from probes.sockets.records import OWNERS_TABLE, OWNERSHIP_TABLE, PROBE, Reason

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
_FLOW_SUMS = (of.FLOW_PACKETS, of.FLOW_BYTES, of.FLOWS)
_REPEATED = ((of.REPEATED_PACKETS, "packets"), (of.REPEATED_BYTES, "bytes"))
MOST_INTERFACES = 256
"""Interfaces with series."""
_OTHERS = "other"
_MOST_ENDED = 64
"""Ended probes that keep their counters."""


class FlowSeries(Series):
    """Packets, bytes and flows by interface, direction and class of protocol."""

    probe, gauges = "flow", (of.FLOWS, of.PEAK)

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, None] = {}
        """Interfaces of a run on several, those seen last at the end."""

    def take(self, item: Snapshot) -> None:
        if is_table(item, "flow", INTERFACES if is_group(item.interface) else ""):
            self.drop(of.PEAK)
            for peak in item.peaks:
                way = DIRECTIONS[FlowDirection[peak.direction.upper()]]
                self.put(of.PEAK, peak.interface, way, value=peak.bits / 8)
        if is_table(item, "flow", INTERFACES):
            self._take_repeated(item.rows)
        if not is_table(item, "flow", ""):
            return
        rows = item.rows
        names: Sequence[str] = [item.interface]
        classes = rows["direction"] * np.uint8(len(PROTOCOLS) + 1) + _CLASS[rows["protocol"]]
        if is_group(item.interface):
            found = names_of(rows)
            names, classes = found.texts, found.codes * len(_LABELS) + classes
        labels = [(name, *each) for name in self._known(names) for each in _LABELS]
        self.drop(of.FLOWS)
        sizes = rows["packets"], rows["bytes"], np.ones(len(rows), "u8")
        for family, values in zip(_FLOW_SUMS, sizes, strict=True):
            sums = np.zeros(len(labels), "u8")
            # bincount would sum in floats, which are exact to 2^53 only.
            np.add.at(sums, classes, values)
            for each, more in zip(labels, sums.tolist(), strict=True):
                self.add(family, *each, by=more)

    def _take_repeated(self, rows: Rows[INTERFACE]) -> None:
        names = [name.decode(errors="replace") for name in rows["interface"].tolist()]
        for name, row in zip(self._known(names), rows, strict=True):
            for way in DIRECTIONS.values():
                for family, unit in _REPEATED:
                    self.add(family, name, way, by=int(row[f"repeated_{way}_{unit}"]))

    def _known(self, names: Sequence[str]) -> list[str]:
        """Return the label of each interface: the name, or `other` of those beyond the limit.
        Interfaces that were seen longest ago make room."""
        for name in sorted(names, key=lambda each: each not in self._seen)[:MOST_INTERFACES]:
            self._seen.pop(name, None)
            self._seen[name] = None
        if len(self._seen) > MOST_INTERFACES:
            self._seen = dict.fromkeys([*self._seen][-MOST_INTERFACES:])
            self.keep(lambda _, labels: labels[0] in (*self._seen, _OTHERS))
        return [name if name in self._seen else _OTHERS for name in names]


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
                self.add(family, item.interface, "other", by=int(of_others(row, unit)))


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
                if phase_of(row["before"], row["after"]) == "begin":
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
                self.add(of.POLICY_ACTED, name, by=int(row["acted"]))
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


_FIELDS = ("comm", "user", "unit", "container", "pod")
"""Fields of OWNER for the labels of a series. The process's number is no label: processes that
start again and again would make series without end."""
_OTHER = ("other", "", "", "", "")
_MEMORY_S = 60.0
"""Time constant of the rate by which owners are compared."""
_HELD_S = 60.0
"""An owner keeps its series at least so long, so that few series come and go."""
_PAST = 10
"""Owners that lost their series and are remembered, for each owner that has one."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Held:
    """The series of one owner."""

    since_s: float = 0.0
    rate: float = 0.0
    """Bytes a second of about the last minute."""
    packets: int = 0
    bytes: int = 0


class OwnerSeries(Series):
    """Packets and bytes of the largest owners since each got its series, and of all others.

    An owner that gets a series starts at 0, and no counter ever falls: the rate of every series is
    right at all times.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._held: dict[Labels, _Held] = {}
        self._past: dict[Labels, _Held] = {}
        """Owners that lost their series, the latest last. A series that comes again goes on."""
        self._others = _Held()
        self._seen = False

    def take(self, item: Snapshot) -> None:
        if is_table(item, PROBE, OWNERS_TABLE):
            self._seen = True
            self._take_owners(item.rows, item.end_ns / 1e9, item.seconds)
        elif is_table(item, PROBE, OWNERSHIP_TABLE):
            for row in item.rows:
                reason = Reason(int(row["reason"])).column
                self.add(of.OWNERSHIP_PACKETS, reason, by=int(row["packets"]))
                self.add(of.OWNERSHIP_BYTES, reason, by=int(row["bytes"]))

    def _take_owners(self, rows: Array, now_s: float, seconds: float) -> None:
        sums: dict[Labels, list[int]] = {}
        for row in rows:
            labels = tuple(row[name].decode(errors="replace") for name in _FIELDS)
            total = sums.setdefault(labels, [0, 0])
            total[0] += int(row["packets"])
            total[1] += int(row["bytes"])
        kept = math.exp(-seconds / _MEMORY_S)
        for labels, held in self._held.items():
            new = sums.get(labels, (0, 0))[1] / seconds if seconds else 0.0
            held.rate = kept * held.rate + (1 - kept) * new
        for labels, (packets, size) in sorted(sums.items(), key=lambda each: -each[1][1]):
            held = self._held.get(labels) or self._place(labels, size, now_s, seconds)
            held.packets += packets
            held.bytes += size

    def _place(self, labels: Labels, size: int, now_s: float, seconds: float) -> _Held:
        """Return a new series for an owner, or the series of all others."""
        rate = size / seconds if seconds else 0.0
        if len(self._held) >= self._most:
            free = (each for each in self._held.items() if now_s - each[1].since_s >= _HELD_S)
            least = min(free, key=lambda each: each[1].rate, default=None)
            if least is None or least[1].rate >= rate:
                return self._others
            self._past[least[0]] = self._held.pop(least[0])
            if len(self._past) > _PAST * self._most:
                del self._past[next(iter(self._past))]
        held = self._past.pop(labels, None) or _Held()
        held.since_s, held.rate = now_s, rate
        return self._held.setdefault(labels, held)

    def samples(self) -> Iterator[Sample]:
        everyone = {**self._held, _OTHER: self._others} if self._seen else {}
        for labels, held in everyone.items():
            yield of.OWNER_PACKETS(*labels, value=held.packets)
            yield of.OWNER_BYTES(*labels, value=held.bytes)
        yield from super().samples()
