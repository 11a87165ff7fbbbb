"""What one run of probedeck watches; without what watches it, so that a console begins quickly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.files import as_invoker
from app.run.monitor import Policies
from bpf.attach import interface as interfaces
from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.monitor.options import MonitorOptions
from probes.path.options import PathOptions
from probes.snapshot import Event

if TYPE_CHECKING:
    from app.api.server.listener import Api
    from probes.config.model import ProbeConfig

Beside = Callable[[Callable[[Event], None], Callable[[], None]], AbstractContextManager[None]]
"""What goes on while something is watched, for as long as the block is not left. It is given what
publishes, and what to call when it is over."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What is watched, as the command line says."""

    interface: str
    """Empty where only probes are watched that name their own."""
    interval: float
    """Seconds."""
    ingress: Hook | None
    """The hook that counts incoming packets; None: the one that suits the interface."""
    capture: str
    """Which flows are counted, as a filter; empty: all."""
    duration: float | None
    """Seconds; None: until stopped."""
    probes: tuple[ProbeConfig, ...] = ()
    force: bool = False
    """Whether probes start that let no packet of their interfaces pass."""
    flows: bool = True
    """Whether the flow probe runs."""
    read_only: str = ""
    """Why nothing may be changed; empty where it may."""
    probe_memory: int = 1 << 30
    """Bytes of maps that a probe from a file or by REST may have."""
    api: Api | None = None
    trace: tuple[str, ...] = ()
    """Addresses whose paths are traced from the start."""
    paths: PathOptions = field(default_factory=PathOptions)
    names: bool = True
    """Whether the console looks for the names of routers."""
    monitor: MonitorOptions | None = None
    """The monitor's; None: it does not run."""
    policies: Policies = field(default_factory=Policies)
    """What it is to do."""
    memory: int = 0
    """Bytes of kernel memory that all maps may take; 0: the default of this machine."""
    beside: Beside | None = None
    tour: bool = False
    """Whether the console begins with the tour."""

    def check(self) -> None:
        """Raises UsageError for an interface that there isn't, before anything is begun."""
        if self.interface:
            interfaces.find(self.interface)
        for probe in (*self.probes, *self.policies.applications):
            for _, direction in probe.directions():
                interfaces.find(direction.interface)


def probes_of(paths: list[str], interface: str, interval: float) -> tuple[ProbeConfig, ...]:
    """Return the configurations in files.

    A direction without an interface gets `interface`, a probe without an interval `interval`.

    Raises UsageError, naming file and key.
    """
    if not paths:
        # The console starts without pydantic then.
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
