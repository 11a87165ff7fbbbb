"""Parameters of a run. The module loads no probe, so a console starts fast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from app.files import as_invoker
from app.outputs.routers import Describe, nothing_known
from app.run.monitor import Policies
from bpf.attach import interface as interfaces
from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.monitor.options import MonitorOptions
from probes.output_control import OutputConfig
from probes.path.options import OwnFlow, PathOptions
from probes.snapshot import Event
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from app.api.server.listener import Api
    from probes.config.model import ProbeConfig

Beside = Callable[[Callable[[Event], None], Callable[[], None]], AbstractContextManager[None]]
"""A background activity of a run, as a context manager. Its arguments publish an event, and report
the end of the activity."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The parameters of a run."""

    interface: str
    """Empty if all probes name their own interfaces."""
    interval: float
    """Seconds."""
    ingress: Hook | None
    """The hook that counts incoming packets; None: chosen for the interface."""
    capture: str
    """The filter of counted flows; empty: all flows."""
    duration: float | None
    """Seconds; None: no limit."""
    probes: tuple[ProbeConfig, ...] = ()
    tunnels: Tunnels = Tunnels.OUTER
    """The packets of tunnels that flows are made of."""
    force: bool = False
    """Start probes even if they drop every packet of their interfaces."""
    flows: bool = True
    """Whether the flow probe runs."""
    read_only: str = ""
    """Why changes are refused; empty if they are allowed."""
    probe_memory: int = 1 << 30
    """Most bytes of the maps of a probe from a file or by REST."""
    api: Api | None = None
    trace: tuple[str, ...] = ()
    """Addresses to trace from the start."""
    own_flow: OwnFlow | None = None
    """The flow to these addresses while no application sends there."""
    paths: PathOptions = field(default_factory=PathOptions)
    describe: Describe = nothing_known
    """Facts about routers: their networks, and in files their names."""
    names: bool = True
    """Whether the console resolves addresses of routers."""
    switches: tuple[str, ...] = ()
    """The optional probes that the run starts, see `SWITCHES`."""
    monitor: MonitorOptions | None = None
    """Options of the monitor; None: the monitor does not run."""
    policies: Policies = field(default_factory=Policies)
    """Policies of the monitor."""
    memory: int = 0
    """Most bytes of all maps; 0: the default of this machine."""
    outputs: tuple[OutputConfig, ...] = ()
    beside: Beside | None = None
    ready_file: str = ""
    """A file that exists while every probe runs; empty: none."""
    is_service: bool = False
    """Whether consoles connect later. Then the failure of a late switch does not end the start."""
    tour: bool = False
    """Whether the console starts with the tour."""

    @property
    def path_options(self) -> PathOptions:
        """Options of path tracing, with room for the destinations."""
        room = max(1, len(self.trace))
        return replace(self.paths, ingress=self.ingress, destinations=room)

    def check(self) -> None:
        """Raise UsageError for an unknown interface or impossible options of path tracing."""
        self.path_options.check()
        if self.interface:
            interfaces.find(self.interface)
        for probe in (*self.probes, *self.policies.applications):
            for _, direction in probe.directions():
                if direction.interface:
                    interfaces.find(direction.interface)


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
