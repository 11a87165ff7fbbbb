"""Parameters of a run. The module loads no probe, so a console starts fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from app.api.sockets import DEFAULT_SOCKET, Api
from app.files import as_invoker
from app.outputs.networks import Describe, nothing_known
from app.run.monitor import Policies, policies_of, receiver_of
from app.run.options import OUTPUT, SOCKET_TABLES, Options
from bpf.attach import group
from bpf.errors import UsageError
from probes.config.options import setting, settings_of, values_of
from probes.flow.options import GENERAL, INGRESS
from probes.monitor.options import MonitorOptions
from probes.path.options import PATHS, OwnFlow, PathOptions
from probes.reports import OutputConfig
from probes.snapshot import Event
from probes.switches import SWITCHES
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig

TRACE_TABLES = ("hops", "paths", "traces", "windows", "events")
REPORTS = ("text", "markdown", "json")
Beside = Callable[[Callable[[Event], None], Callable[[], None]], AbstractContextManager[None]]
"""A background activity of a run, as a context manager. Its arguments publish an event, and report
the end of the activity."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The parameters of a run: its options, and the things that these name, read and checked."""

    interface: str
    """Empty if all probes name their own interfaces."""
    options: Options = field(default_factory=Options)
    probes: tuple[ProbeConfig, ...] = ()
    api: Api | None = None
    trace: tuple[str, ...] = ()
    """Addresses to trace from the start."""
    own_flow: OwnFlow | None = None
    """The flow to these addresses while no application sends there."""
    paths: PathOptions = field(default_factory=PathOptions)
    describe: Describe = nothing_known
    """Facts about routers: their networks, and in files their names."""
    switches: tuple[str, ...] = ()
    """The optional probes that the run starts, see `SWITCHES`."""
    monitor: MonitorOptions | None = None
    """Options of the monitor; None: the monitor does not run."""
    policies: Policies = field(default_factory=Policies)
    """Policies of the monitor."""
    watches: bool = False
    """Whether the monitor starts after the first window of flows, with the shipped policies."""
    outputs: tuple[OutputConfig, ...] = ()
    beside: Beside | None = None
    is_service: bool = False
    """Whether consoles connect later. Then the failure of a late switch does not end the start."""
    tour: bool = False
    """Whether the console starts with the tour."""

    @property
    def path_options(self) -> PathOptions:
        """Options of path tracing, with room for the destinations."""
        room = max(1, len(self.trace))
        return replace(self.paths, ingress=self.options.flow.hook, destinations=room)

    def check(self) -> None:
        """Raise UsageError for an unknown interface or impossible options of path tracing."""
        self.path_options.check()
        if self.interface:
            group.find(self.interface)
        for probe in (*self.probes, *self.policies.applications):
            for _, direction in probe.directions():
                if direction.interface:
                    group.find(direction.interface)


def probes_of(paths: list[str], interface: str, interval: float) -> tuple[ProbeConfig, ...]:
    """Return the configurations in files. Raises UsageError with file and key.

    A direction without an interface gets `interface`; a probe without an interval gets `interval`.
    """
    if not paths:
        # Without probes, the start needs no pydantic.
        return ()
    from probes.config.model import load

    with as_invoker():
        loaded = [load(path) for path in paths]
    found = tuple(
        (config if config.has_interval else config.every(interval)).on(interface)
        for config in loaded
    )
    names = [probe.name for probe in found]
    for probe in found:
        if names.count(probe.name) > 1:
            raise UsageError(f"{probe.origin}: another file has a probe {probe.name!r} too")
    return found


def run_spec(
    options: Options, version: str, paths: PathOptions | None = None, *, is_shown: bool = False
) -> RunSpec:
    """Return the parameters of a run. `is_shown` tells whether a console shows it, now or later:
    then it watches for attacks by default. Raises UsageError."""
    interface = options.watched
    probes = probes_of(options.probe, interface, options.flow.interval)
    watches = is_shown and options.watches
    monitor, policies = None, Policies()
    if options.monitors or watches:
        monitor, policies = _monitor(options, interface, () if watches else probes)
    addresses: tuple[str, ...] = ()
    if options.trace:
        from app import resolve

        addresses = tuple(each for name in options.trace for each in resolve.addresses(name))
        resolve.check_routes(addresses)
    looks, api, values = _looks_for_owners(options), options.listener, values_of(options)
    if options.api or not api.listen:
        api = replace(api, socket=api.socket or DEFAULT_SOCKET)
    paths, usual = paths or PathOptions(), PathOptions()
    # Options win over the file of policies.
    kept = {k: v for k, v in policies.paths.items() if getattr(paths, k) == getattr(usual, k)}
    spec = RunSpec(
        interface=interface,
        options=options,
        probes=tuple(probe for probe in probes if probe not in policies.applications),
        api=replace(api, version=version) if options.serves else None,
        trace=addresses,
        paths=replace(paths, **kept),
        describe=options.describe(),
        switches=tuple(
            name
            for name, each in SWITCHES.items()
            if (looks if name == "sockets" else values[each.option])
        ),
        outputs=(*map(OutputConfig, options.output), *options.recording.outputs()),
        monitor=monitor,
        policies=policies,
        watches=watches,
    )
    spec.check()
    return spec


def _looks_for_owners(options: Options) -> bool:
    wanted = [name for name in (options.views or "").split(",") if name in SOCKET_TABLES]
    if wanted and options.owners is False:
        hint = "leave out --no-owners"
        raise UsageError(f"--views {wanted[0]}: owners of flows are off", hint=hint)
    return bool(wanted or not options.headless) if options.owners is None else options.owners


def _monitor(
    options: Options, interface: str, probes: Sequence[ProbeConfig]
) -> tuple[MonitorOptions, Policies]:
    """Return options and policies; `probes` may contain applications of the policies."""
    if not interface:
        raise UsageError("nothing for the monitor to watch", hint="give -i NAME")
    policies, said = policies_of(options.policies, options.policy, probes)
    applications = tuple(each.on(interface) for each in policies.applications)
    given = {
        **{name: getattr(options, name) or None for name in settings_of(MonitorOptions)},
        "bits": options.bits,
        "receivers": tuple(map(receiver_of, options.receiver)) or None,
        "ingress": options.flow.hook,
        "tunnels": Tunnels(options.flow.tunnels) if options.flow.tunnels != Tunnels.OUTER else None,
        "seed": options.seed() or None,
        "trusted": (*said.get("trusted", ()), *options.trust.trusted) or None,
    }
    over = {name: value for name, value in given.items() if value is not None}
    found = MonitorOptions(**{"interval": options.flow.interval, **said, **over})
    found.check()
    return found, replace(policies, applications=applications)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options that only `probedeck trace` has."""

    interface: str = setting(
        GENERAL, "", "Interface that the flows leave by.", "NAME", usual="the default route's",
        flags=("-i", "--interface"),
    )  # fmt: skip
    without_traffic: str = setting(
        GENERAL,
        "",
        "Send a flow to each destination while no application sends there.",
        "[icmp|udp|tcp][:PORT]",
        usual="icmp if no protocol is given",
    )
    ingress: str = setting(
        PATHS, "auto", "Hook that sees the answers; auto chooses by the driver.", "|".join(INGRESS)
    )
    views: str = setting(
        OUTPUT, "", f"Tables to write: {', '.join(TRACE_TABLES)}.", "NAME,NAME...",
        usual="all into a DIR; hops to standard output",
    )  # fmt: skip
    names: bool = setting(
        OUTPUT, False, "Add names of routers by reverse DNS, which sends queries.",
        flags=("--names",),
    )  # fmt: skip
    report: str = setting(
        OUTPUT,
        "",
        "Write a report to standard output at the end: each hop's loss, times and findings. It is "
        "text if no format is named.",
        f"[{'|'.join(REPORTS)}]",
    )


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """Options of `probedeck explain`."""

    interface: str = setting(
        GENERAL, "", "Interface that the flow passes.", "NAME", usual="the default route's",
        flags=("-i", "--interface"),
    )  # fmt: skip
    seconds: float | None = setting(
        GENERAL, None, "Watch the chosen flow so long.", "SECONDS",
        usual="until the numbers are known", flags=("--for",),
    )  # fmt: skip
