"""Snapshots: the immutable tables of a window, with their losses; events; the history of both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from bpf.errors import printable

OWN_PROGRAM = " program 'probedeck' id "
"""How bpf.attach.order describes the program that probedeck attaches."""

if TYPE_CHECKING:
    import numpy as np

    from probes.tables.conversion import TableSchema


class Described(IntEnum):
    """Numbers with a name, and a meaning in words."""

    about: str
    """Meaning, for help and details."""

    def __new__(cls, number: int, about: str = "") -> Self:
        value = int.__new__(cls, number)
        value._value_, value.about = number, about
        return value

    @property
    def column(self) -> str:
        """Name in tables and files: `table_full`."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """Name on screens: `table full`."""
        return self.column.replace("_", " ")


class LossReason(Described):
    """Reasons why a result lacks packets or probes: `enum loss_reason` of bpf/include/losses.h.

    A new reason is a line here and one in that enum.
    """

    NOT_IP = 0, "packets that are not IP, and so in no flow", False
    MALFORMED = 1, "packets lost to a header that can't be parsed"
    FILTERED = 2, "packets that were not to be captured", False
    TABLE_FULL = 3, "packets lost because no room was left"
    OVERRUN = 4, "results overwritten before they were read"
    BUDGET = 5, "packets whose flows have no or no whole row because of --cpu"

    is_loss: bool
    """Whether these packets should have been in the result."""

    def __new__(cls, number: int, about: str, is_loss: bool = True) -> Self:
        reason = int.__new__(cls, number)
        reason._value_, reason.about, reason.is_loss = number, about, is_loss
        return reason


@dataclass(frozen=True, slots=True)
class Loss:
    """Packets of one reason."""

    packets: int = 0
    bytes: int = 0

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.packets + other.packets, self.bytes + other.bytes)


Losses = Mapping[LossReason, Loss]
"""Missing packets by reason; a reason that did not occur is left out."""


def add_losses(total: dict[LossReason, Loss], more: Losses) -> None:
    for reason, loss in more.items():
        total[reason] = total.get(reason, Loss()) + loss


def lost_of(losses: Losses) -> Loss:
    """Return the sum over the reasons that are losses."""
    return sum((loss for reason, loss in losses.items() if reason.is_loss), Loss())


def loss_words(losses: Losses) -> str:
    """Return the reasons that are losses, with their numbers: `10 malformed, 570 table full`."""
    lost = ((reason, loss) for reason, loss in sorted(losses.items()) if reason.is_loss)
    return ", ".join(f"{loss.packets} {reason.label}" for reason, loss in lost)


def loss_noun(probe: str) -> str:
    """Return what windows of a probe lack: windows of path tracing have no packets."""
    return "results" if probe == "path" else "packets"


WAITS = "waits"
"""Mode of a hook whose interface went away: it is attached when the interface returns."""


@dataclass(frozen=True, slots=True)
class HookStatus:
    """Attachment of one hook of an interface."""

    interface: str
    hook: str
    """`xdp`, `tc ingress` or `tc egress`."""
    mode: str
    """`native`, `generic`, `tcx`, `clsact`; `monitor` for an application; `removed` if another
    process detached the program."""
    reason: str = ""
    """Why this hook was chosen; empty if the operator asked for it."""
    before: tuple[str, ...] = ()
    """Programs of others that run first. Packets that they drop or redirect are not counted."""

    @property
    def foreign(self) -> list[str]:
        """Those of `before` that are not of another probedeck, which passes what it counts."""
        return [name for name in self.before if OWN_PROGRAM not in name]


@dataclass(frozen=True, slots=True)
class Rest:
    """The flows of one direction that a stream left out of a window: all but the largest."""

    direction: str
    """`ingress` or `egress`."""
    flows: int
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The busiest moment of an interface in a window, of all packets of a direction."""

    interface: str
    direction: str
    """`ingress` or `egress`."""
    bytes: int
    ns: int
    """Length of the moment."""

    @property
    def bits(self) -> float:
        """Bits per second."""
        return 8e9 * self.bytes / self.ns


NOT_COUNTED = "not counted: CPU budget"
"""Words of screens and pages about flows that may be missing for the CPU budget."""
NOT_SENT = "not known: only the largest flows are sent"
"""Words about flows that a host may have left out of its stream."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One table of one window. Console, files and the API read nothing else."""

    probe: str
    interface: str
    window: int
    """Number of the window, from 1, without gaps."""
    generation: int
    """Number of the probe's generation, from 1."""
    start_ns: int
    """CLOCK_MONOTONIC."""
    end_ns: int
    """CLOCK_MONOTONIC; the next window's start."""
    end_utc_ns: int
    """`end_ns` as UTC, nanoseconds since the epoch, by the clock of that moment."""
    rows: np.ndarray[tuple[int, ...], np.dtype[Any]]
    """Structured array, read only; the probe defines its dtype."""
    losses: Losses
    """Packets that `rows` lack."""
    occupancy: float
    """How full the fullest table was at the end, 0 to 1."""
    swap_ns: int
    """From the swap to the end of the grace period."""
    drain_ns: int
    """From the end of the grace period until the rows were complete."""
    side: str = ""
    """Of a metric: `ingress` or `egress`."""
    metric: str = ""
    """Name of the metric, or of a built-in probe's table: `hops` and `paths` of `path`, empty for
    the flows."""
    schema: TableSchema | None = None
    """Schema of a metric's rows; None for tables with a view in `app.outputs`."""
    hooks: tuple[HookStatus, ...] = ()
    """Hooks that saw the packets."""
    rest: tuple[Rest, ...] = ()
    """Counts of the flows that a stream leaves out, or whose sockets it leaves out, because it
    sends the largest only; empty if it sends all."""
    cut: bool = False
    """Whether the CPU budget cut the window: what `rows` lack may have been there all the same, and
    is NOT_COUNTED."""
    peaks: tuple[Peak, ...] = ()
    """Of the table of interfaces, or of flows in a run on one: the known peaks that are not 0."""

    def __post_init__(self) -> None:
        self.rows.flags.writeable = False

    @property
    def is_metric(self) -> bool:
        """Whether its schema describes its rows; else a view of a built-in probe does."""
        return self.schema is not None

    @property
    def lacks(self) -> str:
        """Why `rows` may lack something that was there; empty if they are whole."""
        return NOT_COUNTED if self.cut else NOT_SENT if self.rest else ""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def start_utc_ns(self) -> int:
        return self.end_utc_ns - (self.end_ns - self.start_ns)

    @property
    def lost(self) -> Loss:
        """Packets that should be in `rows`."""
        return lost_of(self.losses)

    def utc_ns(self, monotonic_ns: int) -> int:
        """Return a moment of this window as UTC nanoseconds."""
        return self.end_utc_ns - (self.end_ns - monotonic_ns)


_SNAPSHOT_BYTES = 1 << 10
"""Of a snapshot in memory, beside its rows."""
_MAX_METRIC_SNAPSHOTS = 300
"""Of a metric. Only REST reads its past, and its windows may be as short as 10 ms."""
_RECENT = 60
"""Snapshots of a table that stay while all tables together fit into `max_bytes`."""


class History:
    """The last snapshots of every table, as many as fit into a number of bytes.

    If they do not fit, the largest table drops its oldest snapshot, so that a probe with large
    tables leaves the others their past. The older past of all tables gets a quarter of the bytes:
    a few flows would else fill them for half an hour. Any thread may read and write.
    """

    def __init__(self, max_bytes: int = 64 << 20, max_snapshots: int = 3600) -> None:
        """`max_snapshots` is for each table of a built-in probe."""
        self._max_bytes = max_bytes
        self._max_snapshots = max_snapshots
        self._tables: dict[tuple[str, str, str], deque[Snapshot]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def append(self, snapshot: Snapshot) -> None:
        with self._lock:
            key = (snapshot.probe, snapshot.side, snapshot.metric)
            table = self._tables.setdefault(key, deque())
            table.append(snapshot)
            self._sizes[key] = self._sizes.get(key, 0) + snapshot.rows.nbytes + _SNAPSHOT_BYTES
            if len(table) > (_MAX_METRIC_SNAPSHOTS if snapshot.is_metric else self._max_snapshots):
                self._give_up(key)
            while (held := sum(self._sizes.values())) > self._max_bytes // 4:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                if len(self._tables[largest]) <= (1 if held > self._max_bytes else _RECENT):
                    return
                self._give_up(largest)

    def _give_up(self, key: tuple[str, str, str]) -> None:
        self._sizes[key] -= self._tables[key].popleft().rows.nbytes + _SNAPSHOT_BYTES

    def forget(self, probe: str) -> None:
        """Drop the metrics of a probe that was removed: another one may take its name."""
        with self._lock:
            for key in [key for key in self._tables if key[0] == probe]:
                if self._tables[key][-1].is_metric:
                    del self._tables[key], self._sizes[key]

    def snapshots(self, probe: str = "", table: str | None = None) -> tuple[Snapshot, ...]:
        """Return all snapshots, or those of one probe or of one of its tables, oldest first."""
        with self._lock:
            found = [
                snapshot
                for (name, _, metric), kept in self._tables.items()
                if (name == probe or not probe) and table in (None, metric)
                for snapshot in kept
            ]
        return tuple(sorted(found, key=lambda snapshot: snapshot.end_ns))

    def newest(self, probe: str, count: int) -> dict[str, list[Snapshot]]:
        """Return the `count` newest snapshots of each table of a probe by metric, newest first."""
        with self._lock:
            return {
                metric: list(islice(reversed(table), count))
                for (name, _, metric), table in self._tables.items()
                if name == probe and table
            }

    def __len__(self) -> int:
        return sum(map(len, tuple(self._tables.values())))


SEVERITIES = ("info", "warning", "error")
"""Severities of events, the worst last."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the event log."""

    utc_ns: int
    severity: str
    """One of SEVERITIES."""
    source: str
    """The probe, the interface or the part of probedeck."""
    text: str
    subject: str = ""
    """Cause of the event: `policy burst`, `10.94.6.2 hop 4 queue`. Events of one source and
    subject tell one story. Empty: the text names the cause."""
    phase: str = ""
    """`begin` or `end` of something that lasts; otherwise empty."""
    value: float | None = None
    """Measured amount, in `unit`; None without one."""
    unit: str = ""

    def __post_init__(self) -> None:
        for name in ("source", "text", "subject"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    @classmethod
    def now(
        cls, severity: str, source: str, text: str, subject: str = "", phase: str = "",
        value: float | None = None, unit: str = "",
    ) -> Event:  # fmt: skip
        return cls(time.time_ns(), severity, source, text, subject, phase, value, unit)


@dataclass(frozen=True, slots=True)
class HostEvent(Event):
    """An event of one of several hosts."""

    host: str = ""


def host_of(event: Event) -> str:
    """Return the host of an event of several hosts; empty for one host."""
    return event.host if isinstance(event, HostEvent) else ""


def loss_subject(side: str) -> str:
    """Return the subject of events about the packets that a side's tables lack."""
    return f"{side} losses".lstrip()


REMOVED = "removed"
"""Text of the event, with the probe as its source, that follows the last snapshot of a probe."""
Item = Snapshot | Event
"""A published item."""
