"""The control plane as front ends see it: the controller of this host, or a remote one by REST.

`RemoteCalls` is the catalogue of its operations: route, arguments, answer, and hosts of a fleet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_type_hints,
    overload,
)

from bpf.compiler import Diagnostic
from bpf.errors import ProbedeckError, UsageError
from probes.reports import Budgeted, Compatibility, MapReadings, OutputControl, ProgramInfo
from probes.ring.options import RingControl
from probes.segment.options import SegmentControl
from probes.snapshot import WAITS, Event, History, HookStatus, Snapshot
from probes.switches import SWITCHES

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side
    from probes.flow.filter import FlowFilter
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.monitor.policy import Policy
    from probes.monitor.sketch import Sketch
    from probes.path.options import OwnFlow, PathOptions, TracedFlow
    from probes.path.traced import Traced

P = ParamSpec("P")
R = TypeVar("R")
MOST_ROWS = 1000
"""Rows of a map in a reading, unless the caller wants another number."""
Listener = Callable[[Snapshot | Event], None]
Value = Any
"""A number, a text, a list, or a table of fields by name, as in JSON."""
Entry = dict[str, Any]
"""`key` and `value`; `index` in place of `key` for an array."""


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


class ControlPlane(MapAccess, Budgeted, RingControl, SegmentControl, Protocol):
    """The interface for screens, REST and scripts.

    Any thread may call a method. It may take as long as a compile, and raises ProbedeckError, or
    CompileError for a source.
    """

    history: History
    path_options: PathOptions
    """Options of path tracing. If they are set, running traces start again with them.

    Setting takes as long as a compile. Raises UsageError for impossible options, and if an edited
    source of the probe would be lost. On an error, the options before stay in force.
    """
    unwritten: Mapping[str, int]
    """Rows that could not be written to the tables of the run, by table."""
    late_by: float
    """Seconds by which a slow link delays windows at the moment; 0 if it keeps up."""
    outputs: OutputControl
    """The outputs of the run: what delivers windows and events to other programs."""

    @property
    def read_only(self) -> str:
        """Why changes, and loading any code, are refused; empty if they are allowed."""

    @property
    def interval(self) -> float:
        """Seconds of a window of the flow probe; without it the longest interval of all probes."""

    @property
    def capture(self) -> str:
        """The filter of the flows that the flow probe counts; empty if it counts every flow."""

    def unconfined(self) -> str:
        """Why the compile helper could not confine itself; empty if it is confined."""

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each published item from now on, in any thread.

        A listener must not change probes: the publisher is often in the middle of a change.
        """

    def publish(self, item: Snapshot | Event) -> None:
        """Add a snapshot to the history, and call the listeners."""

    def probes(self) -> tuple[ProbeInfo, ...]:
        """List all probes, oldest first."""

    def check(self, config: ProbeConfig) -> Check:
        """Compile and verify a configuration; running probes do not change."""

    def add(self, config: ProbeConfig, *, force: bool = False) -> ProbeInfo:
        """Start a probe. Raises UsageError if its name is taken, or for `cuts` without `force`."""

    def replace(self, config: ProbeConfig, *, force: bool = False) -> Replacement:
        """Replace the running generation of a probe; no packet is lost.

        Raises UsageError if the new one has further `cuts`, see `Check`, without `force`.
        """

    def roll_back(self, name: str) -> Replacement:
        """Return to the generation before.

        It gets a new number.
        """

    def reconfigure(self, capture: FlowFilter) -> Replacement:
        """Make the flow probe count other flows from now on (S4.3)."""

    def trace(
        self, destination: str, flow: TracedFlow | None = None, own: OwnFlow | None = None
    ) -> None:
        """Trace the path of every flow to an address, or of `flow` (S3.1), from now on.

        While no application sends to the address, the tracer sends the flow `own`.

        The first destination starts the path probe. A repeated call changes nothing. Up to
        four flows of one address can be traced.
        """

    def untrace(self, destination: str, flow: TracedFlow | None = None) -> None:
        """Stop tracing a flow, or without `flow` the whole address. The last one ends the probe.

        Raises UsageError if it is not traced.
        """

    def traced(self) -> tuple[Traced, ...]:
        """List the destinations of path tracing, oldest request first."""

    def switch(self, name: str, on: bool) -> None:
        """Start or end an optional probe, one of `SWITCHES`; without a change, do nothing.

        Starting takes up to some seconds. Raises UsageError if its interface is missing, and
        KernelError if the kernel lacks what it needs.
        """

    def monitor(self) -> MonitorInfo | None:
        """Return the monitor, its policies and applications; null if it does not run."""

    def set_policy(self, policy: Policy) -> PolicyInfo:
        """Add or replace a policy; nothing stops meanwhile.

        Loads the applications that it runs, and starts the monitor if there is an interface to
        watch. Raises UsageError for an unknown name in the policy.
        """

    def remove_policy(self, name: str) -> None:
        """Remove a policy.

        Its applications stay loaded; other policies may run them.
        """

    def activate_policy(self, name: str) -> PolicyInfo:
        """Run its applications until the policy is deactivated."""

    def deactivate_policy(self, name: str) -> PolicyInfo:
        """Stop its applications, however they were started.

        After the cool-down the policy is armed (S2.12).
        """

    def stop_actions(self) -> int:
        """End all actions at once, until their policies are set or activated. Returns how many."""

    def sketch(self, windows: int = 1) -> Sketch:
        """Return the merged registers of the last windows, at most as many as are kept.

        Raises UsageError if no monitor runs, or before its first window.
        """

    def remove(self, name: str, *, force: bool = False) -> tuple[Snapshot, ...]:
        """End a probe; publish and return its last window.

        Raises UsageError, without `force`, for an application that an active policy runs.
        """

    def export(self, name: str) -> tuple[Snapshot, ...]:
        """End the probe's window now; publish and return its tables."""

    def cost(self, name: str) -> tuple[Cost, ...]:
        """Return the nanoseconds a packet, measured once for each generation."""

    def hook_status(self) -> tuple[HookStatus, ...]:
        """Return the attachment of each hook in use, and the programs that run before it."""

    def memory(self) -> MemoryUse:
        """Return the kernel memory in use, with generations kept for a roll-back, and its limit."""

    def failure(self) -> ProbedeckError | None:
        """Return the error that ended the flow probe or the connection; None while it runs."""

    def close(self) -> None:
        """Poll every probe a last time, publish the windows, and detach everything."""


class Operation(Generic[P, R]):
    """A method of the control plane that others call by REST, or on all hosts of a fleet.

    A request has arguments in its route, a configuration or policy as its body, and the others in
    its query. If no class of endpoints serves the route, the server makes an endpoint of the
    method: the first paragraph of its docstring describes the request.
    """

    def __init__(
        self, method: Callable[Concatenate[Any, P], R], verb: str, route: str, *,
        everywhere: bool = False, body: Callable[P, object] | None = None,
        query: Callable[P, Mapping[str, object]] | None = None,
    ) -> None:  # fmt: skip
        """`everywhere`: the change means the same on every host of a fleet. `body` and `query` make
        the parts of a request from arguments that are no JSON."""
        self.method, self.name, self.verb, self.route = method, method.__name__, verb, route
        self.everywhere, self.body, self.query = everywhere, body, query

    @cached_property
    def answer(self) -> Any:
        """Type of the method's answer."""
        return get_type_hints(self.method)["return"]

    @property
    def writes(self) -> bool:
        """Whether readers, and clients of a read-only controller, are refused."""
        return self.verb != "GET"

    @overload
    def __get__(self, caller: None, owner: object) -> Self: ...

    @overload
    def __get__(self, caller: Caller, owner: object) -> Callable[P, R]: ...

    def __get__(self, caller: Caller | None, owner: object) -> Self | Callable[P, R]:
        if caller is None:
            return self

        def call(*values: P.args, **named: P.kwargs) -> R:
            answer: R = caller._call(self, values, named)
            return answer

        return call


class Caller:
    """An object with operations; `_call` makes the calls."""

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        raise NotImplementedError


class OutputCalls(Caller):
    """The operations of `ControlPlane.outputs` elsewhere."""

    status = Operation(OutputControl.status, "GET", "outputs")
    add = Operation(OutputControl.add, "POST", "outputs", body=lambda config: asdict(config))
    remove = Operation(OutputControl.remove, "DELETE", "outputs/{name}")

    def close(self) -> None:
        """The outputs of the controller go on."""


class RemoteCalls(Caller):
    """The operations of a control plane elsewhere."""

    probes = Operation(ControlPlane.probes, "GET", "probes")
    check = Operation(ControlPlane.check, "POST", "compile")
    add = Operation(ControlPlane.add, "POST", "probes")
    replace = Operation(ControlPlane.replace, "PUT", "probes/{name}")
    remove = Operation(ControlPlane.remove, "DELETE", "probes/{name}")
    roll_back = Operation(ControlPlane.roll_back, "POST", "probes/{name}/rollback")
    export = Operation(ControlPlane.export, "POST", "probes/{name}/export")
    cost = Operation(ControlPlane.cost, "GET", "probes/{name}/cost")
    maps = Operation(ControlPlane.maps, "GET", "probes/{name}/maps")
    entries = Operation(ControlPlane.entries, "GET", "probes/{name}/maps/{map}/entries")
    set_entry = Operation(
        ControlPlane.set_entry, "PUT", "probes/{name}/maps/{map}/entries",
        body=lambda name, map_name, key, value: {"key": key, "value": value},
    )  # fmt: skip
    delete_entry = Operation(
        ControlPlane.delete_entry, "DELETE", "probes/{name}/maps/{map}/entries",
        query=lambda name, map_name, key: {"key": json.dumps(key)},
    )  # fmt: skip
    reconfigure = Operation(
        ControlPlane.reconfigure, "PUT", "capture", everywhere=True,
        body=lambda capture: {"filter": capture.text},
    )  # fmt: skip
    switch = Operation(
        ControlPlane.switch, "POST", "commands", everywhere=True,
        body=lambda name, on: {"line": f"{SWITCHES[name].command} {'on' if on else 'off'}"},
    )  # fmt: skip
    traced = Operation(ControlPlane.traced, "GET", "paths")
    trace = Operation(
        ControlPlane.trace, "POST", "paths", everywhere=True,
        body=lambda destination, flow=None, own=None: {
            "destination": destination, "flow": flow and flow._asdict(), "own": str(own or ""),
        },
    )  # fmt: skip
    untrace = Operation(
        ControlPlane.untrace, "DELETE", "paths/{destination}", everywhere=True,
        query=lambda destination, flow=None: flow._asdict() if flow else {},
    )  # fmt: skip
    monitor = Operation(ControlPlane.monitor, "GET", "monitor")
    sketch = Operation(ControlPlane.sketch, "GET", "monitor/sketch")
    set_policy = Operation(
        ControlPlane.set_policy, "PUT", "monitor/policies/{name}", everywhere=True
    )
    remove_policy = Operation(
        ControlPlane.remove_policy, "DELETE", "monitor/policies/{name}", everywhere=True
    )
    activate_policy = Operation(
        ControlPlane.activate_policy, "POST", "monitor/policies/{name}/activate", everywhere=True
    )
    deactivate_policy = Operation(
        ControlPlane.deactivate_policy, "POST", "monitor/policies/{name}/deactivate",
        everywhere=True,
    )  # fmt: skip
    stop_actions = Operation(ControlPlane.stop_actions, "POST", "actions/stop", everywhere=True)
    segment = Operation(ControlPlane.segment, "GET", "segment")
    measure_segment = Operation(
        ControlPlane.measure_segment, "POST", "segment",
        body=lambda options, lease=0.0: {
            "key": options.key, "ratio": options.ratio, "filter": options.capture.text,
            "interval": options.interval, "lease": lease,
        },
    )  # fmt: skip
    ring = Operation(ControlPlane.ring, "GET", "ring")
    keep_packets = Operation(ControlPlane.keep_packets, "PUT", "ring")
    release_packets = Operation(ControlPlane.release_packets, "DELETE", "ring")
    # Contents of packets are for those who may change something.
    kept_packets = Operation(ControlPlane.kept_packets, "POST", "ring/packets")
    write_packets = Operation(ControlPlane.write_packets, "POST", "ring/capture")


OPERATIONS: dict[str, Operation[..., Any]] = {
    name: each for name, each in vars(RemoteCalls).items() if isinstance(each, Operation)
}
"""By the name of the method."""
