"""The control plane as front ends see it: this host's controller, or another's by its REST API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bpf.compiler import Diagnostic
from bpf.errors import ProbedeckError, UsageError
from probes.reports import Compatibility, ProgramInfo
from probes.snapshot import Event, History, HookStatus, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side
    from probes.flow.filter import FlowFilter
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.monitor.policy import Policy
    from probes.monitor.sketch import Sketch
    from probes.path.options import TracedFlow
    from probes.path.traced import Traced

Listener = Callable[[Snapshot | Event], None]
Value = Any
"""A number, a text, a list, or a table of fields by name, as tables show and JSON has them."""
Entry = dict[str, Any]
"""`key` and `value`; `index` in place of `key` for an array."""


class NoProbeError(UsageError):
    """No probe of this name runs, or not any more."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One program's run time by BPF_PROG_TEST_RUN on a test frame, beside the live traffic."""

    side: Side
    ns: float
    """For a TCP SYN; what an empty program takes is taken off."""


@dataclass(frozen=True, slots=True)
class Check:
    """A configuration that compiles, verifies and fits together."""

    diagnostics: tuple[Diagnostic, ...]
    """Warnings and notes."""
    compatibility: Compatibility | None
    """Against what runs under this name; None where nothing does."""
    seconds: float
    costs: tuple[Cost, ...]
    cuts: tuple[str, ...] = ()
    """Directions that would let no packet pass any more. `add` and `replace` then want `force`."""


@dataclass(frozen=True, slots=True)
class ProbeInfo:
    """A probe that runs, or did until `failure`."""

    name: str
    builtin: bool
    generation: int
    previous: int | None
    """The generation that a roll-back would bring back."""
    window: int
    programs: tuple[ProgramInfo, ...]
    metrics: tuple[str, ...]
    """`ingress.packets`."""
    failure: str
    """Why it ended by itself; empty while it runs."""
    config: ProbeConfig


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement or a roll-back that was made."""

    generation: int
    seconds: float
    compatibility: Compatibility


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Kernel memory of all maps, in bytes."""

    used: int
    limit: int
    """Probes that need more are refused; 0: this side does not know."""


class ControlPlane(Protocol):
    """What screens, REST and scripts may ask. Every method may be called from any thread, may
    take as long as a compile, and raises ProbedeckError (CompileError for a source)."""

    history: History
    read_only: str
    """Why changes, and loading any code, are refused; empty if they are allowed."""
    unwritten: Mapping[str, int]
    """Rows that could not be written to the tables of the run, by table."""

    @property
    def interval(self) -> float:
        """Seconds of a window of the flow probe; without it the longest interval of all probes."""

    @property
    def capture(self) -> str:
        """The filter of the flows that the flow probe counts; empty if it counts every flow."""

    def unconfined(self) -> str:
        """Why the compile helper could not confine itself; empty if it is confined."""

    def listen(self, listener: Listener) -> None:
        """Have `listener` called, by any thread, with all that is published from now on."""

    def publish(self, item: Snapshot | Event) -> None:
        """Keep a snapshot in the history, and tell the listeners."""

    def probes(self) -> tuple[ProbeInfo, ...]:
        """All, in the order in which they were added."""

    def check(self, config: ProbeConfig) -> Check:
        """Compile and verify without changing anything that runs."""

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        """Start a probe; UsageError where one of this name runs, or has `cuts` without `force`."""

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        """Put another generation in the place of the one of this name; no packet is lost.

        UsageError if it begins to have `cuts`, see `Check`, without `force`.
        """

    def roll_back(self, name: str) -> Replacement:
        """Put the generation before back, as a new one."""

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        """Have the flow probe count other flows from now on (S4.3)."""

    def trace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Trace the path of every flow to an address, or of `flow` (S3.1), from now on.

        The first destination starts the path probe. Asked again it changes nothing. Of one address
        up to four flows are traced by themselves.
        """

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Stop that; of all its flows where none is given. The last one ends the path probe.

        UsageError for what is not traced.
        """

    def traced(self) -> tuple[Traced, ...]:
        """What is traced, in the order in which it was asked for."""

    def monitor(self) -> MonitorInfo | None:
        """The monitor, its policies and applications; None where it does not run."""

    def set_policy(self, policy: Policy) -> PolicyInfo:
        """Add a policy, or put it in the place of the one of this name; nothing is stopped.

        Applications that it runs and that are not loaded are; so is the monitor, where there is an
        interface to watch. UsageError for what it names and there is not.
        """

    def remove_policy(self, name: str) -> None:
        """Forget a policy; applications that no other has are inactive then, and stay loaded."""

    def activate_policy(self, name: str) -> PolicyInfo:
        """Have it run its applications now, until `deactivate_policy` (S2.12)."""

    def deactivate_policy(self, name: str) -> PolicyInfo:
        """End that, or what its condition began: after its cool-down it is armed again."""

    def sketch(self, windows: int = 1) -> Sketch:
        """The registers of the last windows merged, at most as many as are kept. UsageError where
        there is no monitor or no window yet."""

    def remove(self, name: str) -> tuple[Snapshot, ...]:
        """End a probe; what it had collected is published, and returned."""

    def export(self, name: str) -> tuple[Snapshot, ...]:
        """End the probe's window now; its tables, which are published too."""

    def entries(self, name: str, map_name: str) -> list[Entry]:
        """Return the entries of a probe's map; UsageError if it is unknown or not writable."""

    def set_entry(self, name: str, map_name: str, key: Value, value: Value) -> None:
        """Store an entry of a writable map; UsageError if a value does not fit its type."""

    def delete_entry(self, name: str, map_name: str, key: Value) -> bool:
        """Delete an entry of a writable map, of an array set it to zero; False if it is missing."""

    def cost(self, name: str) -> tuple[Cost, ...]:
        """Run time of the programs that run now, measured once for each generation."""

    def hook_status(self) -> tuple[HookStatus, ...]:
        """Return the attachment of each hook in use, and the programs that run before it."""

    def memory(self) -> MemoryUse:
        """Kernel memory in use, and its limit."""

    def failure(self) -> ProbedeckError | None:
        """Why the built-in probe, or the connection, ended by itself; None while it runs."""

    def close(self) -> None:
        """Poll every probe a last time, publish that, and detach everything."""
