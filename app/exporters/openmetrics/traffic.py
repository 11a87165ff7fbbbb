"""Series of traffic: flows by interface, the monitor's counters, and the kernel's drops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample, summed
from app.outputs.view import is_table
from app.outputs.views import DIRECTIONS
from probes.drops.counted import PROBE as DROPS
from probes.drops.counted import by_reason
from probes.flow.records import Array
from probes.monitor import state
from probes.snapshot import Snapshot

PROTOCOLS = ("tcp", "udp", "icmp", "other")
"""Values of the label `protocol`; ICMP is of both IP versions."""
_CLASS = np.full(256, PROTOCOLS.index("other"), "u1")
_CLASS[[6, 17, 1, 58]] = [0, 1, 2, 2]
_LABELS = [(way, protocol) for way in DIRECTIONS.values() for protocol in PROTOCOLS]
_FLAGS = ("syn", "syn_ack", "fin", "rst")
_GAUGES = {
    "flows": of.SKETCH_FLOWS,
    "flows_low": of.SKETCH_LOW,
    "flows_high": of.SKETCH_HIGH,
    "protocols": of.MONITOR_PROTOCOLS,
}


class FlowSeries:
    """Packets, bytes and flows by interface, direction and class of protocol."""

    def __init__(self) -> None:
        self._packets: dict[str, Array] = {}
        self._bytes: dict[str, Array] = {}
        """u8 (len(_LABELS),) by interface."""
        self._flows: dict[str, Array] = {}

    def take(self, item: Snapshot) -> None:
        if not is_table(item, "flow", ""):
            return
        rows = item.rows
        classes = rows["direction"] * np.uint8(len(PROTOCOLS)) + _CLASS[rows["protocol"]]
        for unit, totals in (("packets", self._packets), ("bytes", self._bytes)):
            sums = totals.setdefault(item.interface, np.zeros(len(_LABELS), "u8"))
            # bincount would sum in floats, which are exact to 2^53 only.
            np.add.at(sums, classes, rows[unit])
        self._flows[item.interface] = np.bincount(classes, minlength=len(_LABELS))

    def removed(self, probe: str) -> None:
        if probe == "flow":
            self._flows.clear()

    def samples(self) -> Iterator[Sample]:
        for family, totals in (
            (of.FLOW_PACKETS, self._packets),
            (of.FLOW_BYTES, self._bytes),
            (of.FLOWS, self._flows),
        ):
            for interface, values in totals.items():
                for labels, value in zip(_LABELS, values.tolist(), strict=True):
                    yield family(interface, *labels, value=value)


class MonitorSeries:
    """The monitor's counters, and its estimate of flows, by interface."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], int] = {}
        """By interface and field of METRIC."""
        self._last: dict[str, Array] = {}
        """The row of the last window, by interface."""

    def take(self, item: Snapshot) -> None:
        if not is_table(item, state.PROBE, state.METRICS_TABLE):
            return
        for row in item.rows:
            self._last[item.interface] = row
            for field in row.dtype.names:
                if field not in _GAUGES:
                    summed(self._totals, (item.interface, field), int(row[field]))

    def removed(self, probe: str) -> None:
        if probe == state.PROBE:
            self._last.clear()

    def samples(self) -> Iterator[Sample]:
        for interface in {interface for interface, _ in self._totals}:
            found = {field: n for (at, field), n in self._totals.items() if at == interface}
            for unit, family in (("packets", of.MONITOR_PACKETS), ("bytes", of.MONITOR_BYTES)):
                known = [found[f"{protocol}_{unit}"] for protocol in PROTOCOLS[:-1]]
                for protocol, value in zip(
                    PROTOCOLS, (*known, found[unit] - sum(known)), strict=True
                ):
                    yield family(interface, protocol, value=value)
            for flags in _FLAGS:
                yield of.MONITOR_KINDS(interface, flags, value=found[f"{flags}_packets"])
            yield of.MONITOR_FRAGMENTS(interface, value=found["fragment_packets"])
        for interface, row in self._last.items():
            for field, family in _GAUGES.items():
                yield family(interface, value=float(row[field]))


class DropSeries:
    """Packets that the kernel dropped, by reason. The kernel has about a hundred reasons."""

    def __init__(self) -> None:
        self._packets: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def take(self, item: Snapshot) -> None:
        if item.probe != DROPS:
            return
        for dropped in by_reason(item):
            summed(self._packets, dropped.reason, dropped.packets)
            summed(self._bytes, dropped.reason, dropped.bytes)

    def removed(self, probe: str) -> None:
        pass

    def samples(self) -> Iterator[Sample]:
        for reason, value in self._packets.items():
            yield of.DROPPED_PACKETS(reason, value=value)
            yield of.DROPPED_BYTES(reason, value=self._bytes[reason])
