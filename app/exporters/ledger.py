"""Totals and losses of all tables of a run, for outputs that report them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.outputs.view import is_table
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.snapshot import Event, Item, Loss, Losses, LossReason, Snapshot, add_losses


class TableKey(NamedTuple):
    """A table of a probe."""

    probe: str
    interface: str
    side: str
    """`ingress` or `egress` of a metric; empty for a built-in probe's table."""
    metric: str
    """The metric or table; empty for flows."""


@dataclass(frozen=True, slots=True)
class TableTotals:
    """Sums of a table since the start of the run."""

    windows: int = 0
    rows: int = 0
    packets: int = 0
    """Counted packets; 0 for tables without packets."""
    bytes: int = 0
    losses: Losses = field(default_factory=dict)
    """Packets that the rows lack."""


class Unsent(NamedTuple):
    """Records that an output did not deliver."""

    records: int = 0
    packets: int = 0
    """Packets of flows in them."""
    bytes: int = 0


class Gap(NamedTuple):
    """Items of a table that an output did not deliver, or not whole, one after the other."""

    table: TableKey
    items: int
    begin_ns: int
    """UTC: begin of the first window, or time of the first event."""
    end_ns: int


EVENTS = TableKey("", "", "", "events")
"""Events in gaps."""


class Ledger:
    """Sums of all windows since the start. Any thread may call a method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[TableKey, TableTotals] = {}
        self._unsent: dict[str, Unsent] = {}
        self._gaps: dict[str, dict[TableKey, Gap]] = {}

    def take(self, item: Item) -> None:
        """Add a published item."""
        if not isinstance(item, Snapshot):
            return
        key = _key_of(item)
        packets, octets = _packets(item)
        with self._lock:
            before = self._tables.get(key, TableTotals())
            losses: dict[LossReason, Loss] = {**before.losses}
            add_losses(losses, item.losses)
            self._tables[key] = TableTotals(
                before.windows + 1, before.rows + len(item.rows), before.packets + packets,
                before.bytes + octets, losses,
            )  # fmt: skip

    def not_sent(self, output: str, item: Item, first: int, records: int) -> None:
        """Add records of an item, from number `first` on, that an output did not deliver."""
        packets = octets = 0
        if isinstance(item, Event):
            gap = Gap(EVENTS, 1, item.utc_ns, item.utc_ns)
        else:
            packets, octets = _packets(item, first, first + records)
            gap = Gap(_key_of(item), 1, item.start_utc_ns, item.end_utc_ns)
        with self._lock:
            gaps = self._gaps.setdefault(output, {})
            known = gaps.get(gap.table, gap._replace(items=0))
            gaps[gap.table] = known._replace(items=known.items + 1, end_ns=gap.end_ns)
            before = self._unsent.get(output, Unsent())
            self._unsent[output] = Unsent(
                before.records + records, before.packets + packets, before.bytes + octets
            )

    def tables(self) -> Mapping[TableKey, TableTotals]:
        """Return the totals of every table since the start."""
        with self._lock:
            return dict(self._tables)

    def take_gaps(self, output: str) -> list[Gap]:
        """Return the gaps of an output since the last call, one a table."""
        with self._lock:
            return [*self._gaps.pop(output, {}).values()]

    def unsent(self, output: str) -> Unsent:
        """Return the sum of the records that an output did not deliver."""
        with self._lock:
            return self._unsent.get(output, Unsent())


def _key_of(item: Snapshot) -> TableKey:
    return TableKey(item.probe, item.interface, item.side, item.metric)


def _packets(item: Snapshot, first: int = 0, end: int | None = None) -> tuple[int, int]:
    """Packets and bytes in some rows of flows, or of the monitor's counters; 0 for others."""
    if not (is_table(item, "flow", "") or is_table(item, PROBE, METRICS_TABLE)):
        return 0, 0
    rows = item.rows[first:end]
    return int(rows["packets"].sum()), int(rows["bytes"].sum())
