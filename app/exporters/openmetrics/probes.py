"""Series of the probes themselves: windows, tables, hooks, and missing packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.exporters.openmetrics import families as of
from app.exporters.openmetrics.families import Sample
from probes.snapshot import HookStatus, Losses, LossReason, Snapshot

_MOST_ENDED = 64
"""Ended probes that keep their counters."""


@dataclass(slots=True)
class _Probe:
    interface: str
    windows: int = 0
    last: tuple[int, int] = (0, 0)
    """Number and end of the last window."""
    end_utc_ns: int = 0
    generation: int = 0
    swap_ns: int = 0
    drain_ns: int = 0
    """Sums over all windows."""
    tables: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Rows and occupancy by table."""
    hooks: tuple[HookStatus, ...] = ()
    ended: bool = False


class ProbeSeries:
    """Windows, tables, times and hooks of each probe."""

    def __init__(self) -> None:
        self._probes: dict[str, _Probe] = {}

    def take(self, item: Snapshot) -> None:
        probe = self._probes.setdefault(item.probe, _Probe(item.interface))
        probe.ended = False
        if (item.window, item.end_ns) != probe.last:
            # All tables of a window have the same times.
            probe.last = item.window, item.end_ns
            probe.windows += 1
            probe.swap_ns += item.swap_ns
            probe.drain_ns += item.drain_ns
            probe.end_utc_ns = item.end_utc_ns
            probe.hooks = ()
        if item.generation != probe.generation:
            # Another generation may have other metrics.
            probe.generation = item.generation
            probe.tables.clear()
        probe.tables[_table(item)] = len(item.rows), item.occupancy
        probe.hooks = tuple(dict.fromkeys((*probe.hooks, *item.hooks)))

    def removed(self, probe: str) -> None:
        if probe in self._probes:
            self._probes[probe].ended = True
            ended = [name for name, each in self._probes.items() if each.ended]
            for name in ended[:-_MOST_ENDED]:
                del self._probes[name]

    def samples(self) -> Iterator[Sample]:
        hooks: dict[tuple[str, ...], Sample] = {}
        for name, probe in self._probes.items():
            yield of.PROBE_WINDOWS(name, value=probe.windows)
            for family, total in ((of.PROBE_SWAP, probe.swap_ns), (of.PROBE_DRAIN, probe.drain_ns)):
                yield family(name, value=probe.windows, suffix="_count")
                yield family(name, value=total / 1e9, suffix="_sum")
            if probe.ended:
                continue
            yield of.PROBE_END(name, value=probe.end_utc_ns / 1e9)
            yield of.PROBE_GENERATION(name, value=probe.generation)
            for table, (rows, occupancy) in probe.tables.items():
                yield of.PROBE_ROWS(name, table, value=rows)
                yield of.PROBE_OCCUPANCY(name, table, value=occupancy)
            for each in probe.hooks:
                labels = each.interface, each.hook, each.mode
                hooks[labels] = of.HOOK(*labels)
        yield from hooks.values()


class LossSeries:
    """Missing packets by probe and reason. Each reason of a loss has a series from the start, so
    that the first loss is an increase."""

    def __init__(self) -> None:
        self._packets: dict[tuple[str, str], dict[LossReason, int]] = {}
        self._bytes: dict[tuple[str, str], dict[LossReason, int]] = {}
        """By interface and probe."""
        self._ended: dict[str, None] = {}

    def take(self, item: Snapshot) -> None:
        key = item.interface, item.probe
        self._ended.pop(item.probe, None)
        zeros = dict.fromkeys((reason for reason in LossReason if reason.is_loss), 0)
        packets = self._packets.setdefault(key, dict(zeros))
        sizes = self._bytes.setdefault(key, dict(zeros))
        _add(packets, sizes, item.losses)

    def removed(self, probe: str) -> None:
        self._ended[probe] = None
        if len(self._ended) > _MOST_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            for totals in (self._packets, self._bytes):
                for key in [key for key in totals if key[1] == oldest]:
                    del totals[key]

    def samples(self) -> Iterator[Sample]:
        for totals, lost, skipped in (
            (self._packets, of.LOST_PACKETS, of.SKIPPED_PACKETS),
            (self._bytes, of.LOST_BYTES, of.SKIPPED_BYTES),
        ):
            for key, reasons in totals.items():
                for reason, value in reasons.items():
                    family = lost if reason.is_loss else skipped
                    yield family(*key, reason.column, value=value)


def _add(packets: dict[LossReason, int], sizes: dict[LossReason, int], losses: Losses) -> None:
    for reason, loss in losses.items():
        of.summed(packets, reason, loss.packets)
        of.summed(sizes, reason, loss.bytes)


def _table(item: Snapshot) -> str:
    """Return the name of a table: `flows`, `hops`, or `ingress.packets` of a metric."""
    if item.is_metric:
        return f"{item.side}.{item.metric}"
    return item.metric or "flows"
