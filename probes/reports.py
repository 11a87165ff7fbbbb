"""Probes, outputs, maps and the budget of a run as front ends see them.

The module loads no numpy: the command line and the settings import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from bpf.errors import UsageError
from probes.snapshot import WAITS

if TYPE_CHECKING:
    from bpf.compiler import Diagnostic
    from probes.config.model import ProbeConfig, Side


class Fate(StrEnum):
    """Effect of a replacement on the contents of a map."""

    KEPT = "kept"
    """The new program works on the same map."""
    WINDOW = "new window"
    """A snapshot metric exports the old window; the next one starts empty as always."""
    EMPTY = "starts empty"
    """Its layout, size or kind changed; its metrics export it before."""
    NEW = "new"
    AS_IT_WAS = "as it was"
    """After a roll-back: its contents from the time of the replacement."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MapFate:
    """Effect of a replacement on one map."""

    side: Side
    map: str
    fate: Fate
    reason: str
    """For example `value 8 bytes, was 4`; empty if the fate is clear."""
    line: int
    """Line of its declaration in the new source; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Effects of a replacement, known before it happens."""

    maps: tuple[MapFate, ...] = ()
    lost_metrics: tuple[str, ...] = ()
    new_metrics: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """For example a changed verdict for a test frame."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A program of a probe in the kernel."""

    side: Side
    interface: str
    hook: str
    """`xdp`, `tc ingress` or `tc egress`."""
    mode: str
    """Attachment of the hook: `native`, `generic`, `tcx`, ..."""
    function: str
    program_id: int
    memory: int
    """Bytes of the maps of all its clones."""


class NoProbeError(UsageError):
    """No probe of this name runs."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One program's run time by BPF_PROG_TEST_RUN on a test frame."""

    side: Side
    ns: float
    """For a TCP SYN, minus the time of an empty program."""


@dataclass(frozen=True, slots=True)
class Check:
    """A configuration that compiles, verifies and fits together."""

    diagnostics: tuple[Diagnostic, ...]
    """Warnings and notes."""
    compatibility: Compatibility | None
    """Against the running probe of this name; None if no such probe runs."""
    seconds: float
    costs: tuple[Cost, ...]
    cuts: tuple[str, ...] = ()
    """Directions that would let no packet pass. `add` and `replace` then need `force`."""


@dataclass(frozen=True, slots=True)
class ProbeInfo:
    """A probe that runs, or ran until `failure`."""

    name: str
    builtin: bool
    generation: int
    previous: int | None
    """Number of the generation that a roll-back returns to."""
    window: int
    programs: tuple[ProgramInfo, ...]
    metrics: tuple[str, ...]
    """`ingress.packets`."""
    failure: str
    """Error that ended it; empty while it runs."""
    config: ProbeConfig
    warnings: tuple[str, ...] = ()
    """Of the compiler, and of a forced start; only `add` returns them."""

    @property
    def state(self) -> str:
        """`runs`, the interfaces that it waits for, or the error that ended it."""
        away = dict.fromkeys(each.interface for each in self.programs if each.mode == WAITS)
        return self.failure or (f"waits for interface {' and '.join(away)}" if away else "runs")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A finished replacement or roll-back."""

    generation: int
    seconds: float
    compatibility: Compatibility
    state: str = "runs"
    """As `ProbeInfo.state`."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Kernel memory of all maps, in bytes."""

    used: int
    limit: int
    """Bytes; the controller refuses probes that need more. 0: unknown."""


@dataclass(frozen=True, slots=True)
class MapReading:
    """One map of a probe, at a moment."""

    side: Side
    name: str
    kind: str
    """The kernel's kind: `percpu hash`."""
    table: str
    """`hash`, `array`, `lpm` or `histogram`: the meaning of `rows`; empty without rows."""
    max_entries: int
    """Bytes of a ring buffer."""
    entries: int | None
    """Entries, or bytes, in use; None if the kernel does not tell."""
    at_least: bool
    """Whether the map has more than `entries`."""
    fill: float | None
    """Share in use, 0 to 1; None for arrays, and if it is unknown."""
    memory: int
    """Bytes of kernel memory."""
    line: int
    """Line of its declaration in the source; 0 if a header declares it."""
    metrics: tuple[str, ...] = ()
    """Metrics that export it: then `rows` are of the end of the last window."""
    cleared: bool = False
    """Whether `rows` are of the last window only; otherwise programs add to them for ever."""
    columns: tuple[str, ...] = ()
    """`key.port`, `value`; of a histogram `slot`, `low`, `high`, `count`."""
    rows: tuple[tuple[Any, ...], ...] = ()
    """Entries, summed over the CPUs: an array by index, others with the largest value first."""
    note: str = ""
    """Why it has no rows, or not all."""


@dataclass(frozen=True, slots=True)
class MapReadings:
    """All maps of a probe, at a moment."""

    probe: str
    generation: int
    window: int
    """Number of the last window; 0 before the first."""
    seconds: float
    """Length of that window; 0 before the first."""
    at_ns: int
    """Time of the reading, CLOCK_MONOTONIC of the measuring host."""
    maps: tuple[MapReading, ...]


MOST_ROWS = 1000
"""Rows of a map in a reading, unless the caller wants another number."""
Value = Any
"""A number, a text, a list, or a table of fields by name, as in JSON."""
Entry = dict[str, Any]
"""`key` and `value`; `index` in place of `key` for an array."""


class MapAccess(Protocol):
    """Maps of probes, as front ends see them."""

    def maps(self, name: str, most: int = MOST_ROWS) -> MapReadings:
        """Read all maps of a probe now, at most `most` rows of each; nothing changes in them.

        If a metric exports a map, the rows come from the last window.
        """

    def entries(self, name: str, map_name: str) -> list[Entry]:
        """Return a map's entries. Raises UsageError if it is unknown or not writable."""

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        """Store an entry of a writable map. Raises UsageError if a value does not fit its type."""

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        """Delete an entry of a writable map, or zero it in an array. False if it is missing."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The CPU budget of a run and its use, in shares of one core: 0.05 is 5 %."""

    share: float = 0.0
    """The budget, of user space and of programs in the kernel each; 0: none is kept."""
    used: float = 0.0
    """Of user space, without a console, over the last 5 s."""
    kernel: float | None = None
    """Of programs in the kernel; null before it is measured."""
    steps: tuple[str, ...] = ()
    """Names of the steps that are taken, in their order."""


class Budgeted(Protocol):
    """A run that may keep a CPU budget."""

    def budget(self) -> BudgetUse:
        """Return the CPU budget of the run, its use, and the steps in force."""


SOURCE = "output"
"""Source of the events about outputs; their subject is the output's name."""


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """A wanted output: its URL, which may hold credentials, and further options."""

    url: str = field(repr=False)
    """`ipfix://collector:4739?transport=tcp`."""
    name: str = ""
    """Empty: the URL's option `name`, or else its scheme, numbered if that is taken."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


class OutputState(StrEnum):
    STARTING = "starting"
    DELIVERING = "delivering"
    FAILING = "failing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """An output of a run. Every record of it is delivered, undelivered or queued."""

    name: str
    url: str
    """Without credentials."""
    state: OutputState
    reason: str
    """Why it fails, or ended; empty while it delivers."""
    since_utc_ns: int
    """Start of this state."""
    queued: int
    """Records that wait."""
    queued_bytes: int
    delivered: int
    """Records."""
    undelivered: Mapping[str, int]
    """Records that the receiver never gets, by reason: `queue full`, `refused`, `ended`."""
    retries: int
    """Deliveries that were tried again."""

    @property
    def lost(self) -> int:
        """Records that the receiver never gets."""
        return sum(self.undelivered.values())

    def __str__(self) -> str:
        """Return the summary at the end of a run."""
        why = ", ".join(f"{count} {reason}" for reason, count in self.undelivered.items())
        lost = f"{self.lost} undelivered" + (f" ({why})" if why else "")
        return f"output {self.name}: {self.delivered} records delivered, {lost}"


class OutputControl(Protocol):
    """The outputs of a controller. Any thread may call a method."""

    def status(self) -> tuple[OutputStatus, ...]:
        """Return all outputs, oldest first, with those that ended."""

    def add(self, config: OutputConfig) -> OutputStatus:
        """Start an output. Raises UsageError for a mistake in `config`, or if its name is taken."""

    def remove(self, name: str) -> OutputStatus:
        """End an output, after some seconds for the records that wait.

        Raises UsageError if it is unknown.
        """

    def close(self) -> None:
        """End every output."""


class NoOutputs:
    """The `OutputControl` of a controller that delivers nothing."""

    def status(self) -> tuple[OutputStatus, ...]:
        return ()

    def add(self, config: OutputConfig) -> OutputStatus:
        raise UsageError("this controller has no outputs")

    def remove(self, name: str) -> OutputStatus:
        raise UsageError(f"no output {name!r}")

    def close(self) -> None:
        """Nothing runs."""
