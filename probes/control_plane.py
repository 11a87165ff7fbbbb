"""The control plane as front ends see it: the controller of this host, or a remote one by REST.

`RemoteCalls` is the catalogue of its operations: route, arguments, answer, and hosts of a fleet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from bpf.errors import ProbedeckError
from probes.operation import Caller, ConsoleCommand, Operation, Subcommand
from probes.reports import (
    Budgeted,
    Check,
    Cost,
    MapAccess,
    MemoryUse,
    OutputControl,
    ProbeInfo,
    Replacement,
)
from probes.ring.options import RingControl
from probes.snapshot import Event, History, HookStatus, Snapshot
from probes.switches import SWITCHES

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.flow.filter import FlowFilter
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.monitor.policy import Policy
    from probes.monitor.sketch import Sketch
    from probes.path.options import OwnFlow, PathOptions, TracedFlow
    from probes.path.traced import Traced
    from probes.segment.options import SegmentOptions, SegmentStatus

Listener = Callable[[Snapshot | Event], None]


class SegmentControl(Protocol):
    """Starts the segment probe of a controller. Any thread may call a method."""

    def measure_segment(self, options: SegmentOptions, lease: float = 0.0) -> SegmentStatus:
        """Begin to record digests on the watched interface; `remove` ends that.

        With a lease, the probe ends `lease` seconds after the last call. A repeated call
        with the same options renews the lease, and changes nothing else. A lease of 0 has no end.
        Raises UsageError if the probe runs with other options, if no interface is watched, or if
        `lease` is not 0 to LONGEST_LEASE.
        """

    def segment(self) -> SegmentStatus:
        """Return the state of the segment probe, and the host's clocks."""


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


class OutputCalls(Caller):
    """The operations of `ControlPlane.outputs` elsewhere."""

    PART = "outputs"
    status = Operation(OutputControl.status, "GET", "outputs")
    add = Operation(
        OutputControl.add, "POST", "outputs", body=lambda config: asdict(config),
        command=ConsoleCommand(
            "output.add", "Deliver windows and events by an output", task="a new output",
            help="Until the run ends; see --output. POST /v1/outputs does the same.",
        ),
    )  # fmt: skip
    remove = Operation(
        OutputControl.remove, "DELETE", "outputs/{name}",
        command=ConsoleCommand(
            "output.remove", "End an output", task="the end of an output",
            help="Records that wait have some seconds to leave.",
        ),
    )  # fmt: skip

    def close(self) -> None:
        """The outputs of the controller go on."""


_MAP = {"map_name": "A map that maps.MAP makes writable."}
_ENTRY = {**_MAP, "key": "Its key as tables show it: 192.0.2.1, 80, or JSON: '{\"port\": 80}'."}


class RemoteCalls(Caller):
    """The operations of a control plane elsewhere."""

    probes = Operation(ControlPlane.probes, "GET", "probes")
    check = Operation(ControlPlane.check, "POST", "compile")
    add = Operation(
        ControlPlane.add, "POST", "probes",
        command=ConsoleCommand("probe.add", "Add a probe from a file", "a", "programs"),
    )  # fmt: skip
    replace = Operation(ControlPlane.replace, "PUT", "probes/{name}")
    export = Operation(
        ControlPlane.export, "POST", "probes/{name}/export",
        command=ConsoleCommand("probe.export", "End the window, export it", "e", "programs"),
    )  # fmt: skip
    cost = Operation(
        ControlPlane.cost, "GET", "probes/{name}/cost",
        command=ConsoleCommand("program.cost", "Measure the time per packet", "m", "programs"),
    )  # fmt: skip
    maps = Operation(ControlPlane.maps, "GET", "probes/{name}/maps")
    entries = Operation(
        ControlPlane.entries, "GET", "probes/{name}/maps/{map}/entries",
        subcommand=Subcommand(
            "probe entries", "Print the entries of a writable map as JSON, one a line.", _MAP
        ),
    )  # fmt: skip
    set_entry = Operation(
        ControlPlane.set_entry, "PUT", "probes/{name}/maps/{map}/entries",
        body=lambda name, map_name, key, value: {"key": key, "value": value},
        subcommand=Subcommand(
            "probe set", "Store an entry of a writable map: an allow list, rules, limits.",
            {**_ENTRY, "value": "Its value, likewise."},
        ),
    )  # fmt: skip
    delete_entry = Operation(
        ControlPlane.delete_entry, "DELETE", "probes/{name}/maps/{map}/entries",
        query=lambda name, map_name, key: {"key": json.dumps(key)},
        subcommand=Subcommand(
            "probe unset", "Delete an entry of a writable map; of an array, set it to zero.", _ENTRY
        ),
    )  # fmt: skip
    roll_back = Operation(
        ControlPlane.roll_back, "POST", "probes/{name}/rollback",
        command=ConsoleCommand(
            "program.rollback", "Back to the previous generation", "f9", "programs", "Roll back"
        ),
        subcommand=Subcommand("probe rollback", "Return to the previous generation of a probe."),
    )  # fmt: skip
    remove = Operation(
        ControlPlane.remove, "DELETE", "probes/{name}",
        command=ConsoleCommand("probe.remove", "Remove the probe", "x", "programs"),
        subcommand=Subcommand(
            "probe remove", "Stop and remove a probe.",
            {"force": "Remove an application even if an active policy runs it."},
        ),
    )  # fmt: skip
    reconfigure = Operation(
        ControlPlane.reconfigure, "PUT", "capture", everywhere=True,
        body=lambda capture: {"filter": capture.text},
        command=ConsoleCommand("flow.capture", "Choose the flows to count", "C", "flows"),
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
        command=ConsoleCommand("path.trace", "Trace a destination", "T", "paths", "Trace"),
    )  # fmt: skip
    untrace = Operation(
        ControlPlane.untrace, "DELETE", "paths/{destination}", everywhere=True,
        query=lambda destination, flow=None: flow._asdict() if flow else {},
        command=ConsoleCommand(
            "path.untrace", "Stop tracing the destination", "x", "paths", "Stop"
        ),
    )  # fmt: skip
    monitor = Operation(ControlPlane.monitor, "GET", "monitor")
    sketch = Operation(ControlPlane.sketch, "GET", "monitor/sketch")
    set_policy = Operation(
        ControlPlane.set_policy, "PUT", "monitor/policies/{name}", everywhere=True,
        command=ConsoleCommand(
            "trigger.add", "Add a policy", "a", "triggers", "Add",
            "The name of a policy that comes with probedeck, such as syn_flood, or one of your"
            " own: NAME: CONDITION -> RUN.",
        ),
    )  # fmt: skip
    remove_policy = Operation(
        ControlPlane.remove_policy, "DELETE", "monitor/policies/{name}", everywhere=True,
        command=ConsoleCommand("trigger.remove", "Remove the policy", "x", "triggers"),
        subcommand=Subcommand("policy remove", "Remove a policy."),
    )  # fmt: skip
    activate_policy = Operation(
        ControlPlane.activate_policy, "POST", "monitor/policies/{name}/activate", everywhere=True,
        subcommand=Subcommand("policy activate", "Run a policy until it is deactivated."),
    )  # fmt: skip
    deactivate_policy = Operation(
        ControlPlane.deactivate_policy, "POST", "monitor/policies/{name}/deactivate",
        everywhere=True,
        subcommand=Subcommand("policy deactivate", "End a policy, whatever activated it."),
    )  # fmt: skip
    stop_actions = Operation(
        ControlPlane.stop_actions, "POST", "actions/stop", everywhere=True,
        command=ConsoleCommand(
            "action.stop", "End all actions of policies at once", "exclamation_mark",
            help="Nothing is dropped, limited or mirrored any more. An action begins again if its"
            " policy is set or activated.",
            task="the end of all actions",
        ),
    )  # fmt: skip
    segment = Operation(ControlPlane.segment, "GET", "segment")
    measure_segment = Operation(
        ControlPlane.measure_segment, "POST", "segment",
        body=lambda options, lease=0.0: {
            "key": options.key, "ratio": options.ratio, "filter": options.capture,
            "interval": options.interval, "lease": lease,
        },
    )  # fmt: skip
    ring = Operation(ControlPlane.ring, "GET", "ring")
    keep_packets = Operation(
        ControlPlane.keep_packets, "PUT", "ring",
        command=ConsoleCommand(
            "packets.keep", "Keep the packets that pass a filter",
            help="The kernel keeps their first bytes, and overwrites the oldest.",
            task="the packet ring",
        ),
    )  # fmt: skip
    release_packets = Operation(
        ControlPlane.release_packets, "DELETE", "ring",
        command=ConsoleCommand(
            "packets.release", "Keep packets of policies only", task="the packet ring"
        ),
    )  # fmt: skip
    # Contents of packets are for those who may change something.
    kept_packets = Operation(ControlPlane.kept_packets, "POST", "ring/packets")
    write_packets = Operation(
        ControlPlane.write_packets, "POST", "ring/capture",
        command=ConsoleCommand(
            "packets.write", "Write the kept packets as pcapng", "W",
            help="The last 10 seconds, to the directory of the run; of a policy, its packets. An"
            " event has the file, and the number of packets that are missing.",
            task="the capture",
        ),
    )  # fmt: skip


OPERATIONS: dict[str, Operation[..., Any]] = {
    name: each for name, each in vars(RemoteCalls).items() if isinstance(each, Operation)
}
"""By the name of the method."""
