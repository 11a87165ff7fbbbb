"""The optional built-in probes: an entry each, and a module that has the probe.

The option of a run, the command of the console and of REST, and `ControlPlane.switch` derive from
the entry. The first paint imports this module, so it imports no probe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from bpf.attach.interface import Interface
    from bpf.compiler import Compiler
    from probes.hooks import Hooks

Prepare = Callable[["Compiler", "Hooks", "Interface", float], Callable[[], object]]
"""Return a function that makes the probe on an interface, with windows of some seconds."""


class ProbePlace(Enum):
    """Interface of a probe."""

    WATCHED = auto()
    """The interface that the run watches."""
    FLOWS = auto()
    """The interface of the flow probe."""
    HOST = auto()
    """None: the probe is about the whole host."""


class SwitchModule(Protocol):
    """Contents of a probe's module."""

    MEMORY: int
    """Bytes of kernel memory that the maps take at most."""
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class Switch:
    """An optional built-in probe, which an option starts, and a command starts and ends."""

    name: str
    module: str
    """See `SwitchModule`."""
    place: ProbePlace
    option: str
    """The field of a run's options."""
    about: str
    """Help of the option. Empty: `Options` declares a field with values of its own."""
    command: str
    title: str
    help: str
    task: str
    """Its start and its end, as the console names running work."""
    key: str = ""
    """Key of the command."""
    lacks: str = ""
    """The error if its interface is missing."""
    passes_all: bool = False
    """Whether its own programs pass every packet."""
    is_late: bool = False
    """Whether a console starts it after the first window, because its programs take a second."""

    def load(self) -> SwitchModule:
        return cast(SwitchModule, import_module(self.module))


SWITCHES = {
    each.name: each
    for each in (
        Switch(
            "names", "probes.names.probe", ProbePlace.WATCHED,
            "learn_names", "Learn names of addresses from DNS answers and TLS that pass.",
            "names.learn", "Learn names from packets, or stop",
            "Of DNS answers and TLS connections that pass; see the options --learn-names and"
            " --no-names.",
            "names from packets", lacks="no interface is watched on which names could pass",
            passes_all=True,
        ),
        Switch(
            "sockets", "probes.sockets.probe", ProbePlace.FLOWS, "owners", "",
            "owners.look", "Look for owners of flows, or stop",
            "Processes, units, containers and pods, by sockets; see the option --owners.",
            "owners of flows", lacks="no flow probe runs whose flows could have owners",
            is_late=True,
        ),
        Switch(
            "drops", "probes.drops.probe", ProbePlace.HOST,
            "drops", "Count the packets that the kernel drops, by flow and reason.",
            "drops.count", "Count drops of the kernel, or stop",
            "By flow and the kernel's reason, in all network namespaces; see --drops.",
            "drops of the kernel", key="K",
        ),
    )
}  # fmt: skip
"""By the probe's name, in the order of starts, options and commands."""
