"""The control planes of hosts, and calls on all of them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bpf.errors import ProbedeckError
from probes.control_plane import ControlPlane, Listener, RemoteCalls
from probes.operation import Operation
from probes.poller import Listeners
from probes.snapshot import Item

if TYPE_CHECKING:
    from app.fleet.host_state import HostState
    from probes.path.options import PathOptions
    from probes.reports import BudgetUse, MemoryUse, OutputControl
    from probes.snapshot import History, HookStatus

_PATIENCE_S = 30.0
"""Longest wait for a change on all hosts: a compile may be part of it."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """The outcome of a call on one host."""

    host: str
    error: ProbedeckError | None
    """Why it failed; None: it is done."""
    seconds: float
    answer: Any = None


class Planes(Listeners[[str, Item]]):
    """The control planes of some hosts. The only host of a console has an empty name.

    Listeners get the items of each host with its name; events about the fleet have an empty name.
    """

    def __init__(self, planes: Mapping[str, ControlPlane]) -> None:
        self.by_name = planes
        """In the order of the file; replaced, not changed."""
        self.cursor = ""
        """The host that calls about one host go to, if it is chosen; else the first chosen."""
        self.last_change = ""
        self.reports: tuple[HostReport, ...] = ()
        """The outcome of the last change on several hosts."""
        for name, plane in planes.items():
            plane.listen(partial(self.publish, name))

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of the hosts, in the order of the file; at least one."""
        return tuple(self.by_name)

    def states(self) -> tuple[HostState, ...]:
        """Return the present states of all hosts of the fleet, in the order of the file."""
        return ()

    @property
    def current(self) -> str:
        """The host under the cursor, or else the first chosen one."""
        return self.cursor if self.cursor in self.by_name else self.chosen[0]

    def everywhere(self, title: str, call: Callable[[ControlPlane], Any]) -> tuple[HostReport, ...]:
        """Make a change on each chosen host, as `ask` does, and keep the outcome."""
        self.last_change, self.reports = title, self.ask(call)
        return self.reports

    def ask(
        self, call: Callable[[ControlPlane], Any], names: Collection[str] | None = None,
        patience: float = _PATIENCE_S,
    ) -> tuple[HostReport, ...]:  # fmt: skip
        """Call a function with the control plane of each chosen host, all at once.

        `names`: only of these hosts. Returns the outcome on each host, see `ask_each`.
        """
        every = self.by_name.items()
        return ask_each({n: p for n, p in every if names is None or n in names}, call, patience)

    def change(self, title: str, call: Callable[[ControlPlane], Any]) -> Any:
        """Make a change on each chosen host; return the answer of the first one.

        Raises the error of the only host, or ProbedeckError if some of several hosts refuse.
        """
        reports = self.everywhere(title, call)
        if not (failed := [one for one in reports if one.error is not None]):
            return reports[0].answer
        if len(reports) == 1 and reports[0].error is not None:
            raise reports[0].error
        first = failed[0]
        done = f"{title}: done on {len(reports) - len(failed)} of {len(reports)} hosts"
        raise ProbedeckError(f"{done}; {first.host}: {first.error}")

    def close(self) -> None:
        """End the connections to the hosts; they go on measuring."""
        for plane in self.by_name.values():
            plane.close()


def ask_each(
    planes: Mapping[str, ControlPlane], call: Callable[[ControlPlane], Any],
    patience: float = _PATIENCE_S,
) -> tuple[HostReport, ...]:  # fmt: skip
    """Call a function with the control plane of each host, all at once.

    Returns the outcome on each host. A host that does not answer within `patience` seconds is
    reported as such; its call goes on.
    """
    reports: dict[str, HostReport] = {}
    begun = time.monotonic()

    def ask(name: str, plane: ControlPlane) -> None:
        error, answer = None, None
        try:
            answer = call(plane)
        except ProbedeckError as failure:
            error = failure
        except Exception as failure:
            # A fault of the program must not look like a slow host.
            error = ProbedeckError(f"{type(failure).__name__}: {failure}")
        reports[name] = HostReport(name, error, time.monotonic() - begun, answer)

    threads = [
        threading.Thread(target=ask, args=one, name="fleet", daemon=True) for one in planes.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begun + patience - time.monotonic()))
    late = ProbedeckError(f"no answer within {patience:g} s", hint="it may still be done")
    return tuple(reports.get(name) or HostReport(name, late, patience) for name in planes)


class ChosenPlane(RemoteCalls):
    """The chosen hosts as one ControlPlane.

    Calls go to the host under the cursor, and those that mean the same everywhere to every chosen
    host. With a single chosen host it is that host's control plane.
    """

    history: History
    unwritten: Mapping[str, int]
    late_by: float
    outputs: OutputControl
    capture: str
    unconfined: Callable[[], str]
    memory: Callable[[], MemoryUse]
    budget: Callable[[], BudgetUse]

    def __init__(self, hosts: Planes) -> None:
        self.hosts = hosts

    @property
    def _one(self) -> ControlPlane:
        return self.hosts.by_name[self.hosts.current]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Ask the host under the cursor for the attributes above."""
            return getattr(self._one, name)

    def _call(self, operation: Operation[..., Any], values: Any, named: Mapping[str, Any]) -> Any:
        def call(plane: ControlPlane) -> Any:
            return getattr(plane, operation.name)(*values, **named)

        if not operation.everywhere:
            return call(self._one)
        given = (*values, *named.values())
        words = [str(each) for each in given[:1]]
        words += ["on" if each else "off" for each in given if isinstance(each, bool)]
        return self.hosts.change(" ".join([operation.name.replace("_", " "), *words]), call)

    @property
    def path_options(self) -> PathOptions:
        return self._one.path_options

    @path_options.setter
    def path_options(self, options: PathOptions) -> None:
        def change(plane: ControlPlane) -> None:
            plane.path_options = options

        self.hosts.change("options of path tracing", change)

    @property
    def read_only(self) -> str:
        """Why every chosen host refuses changes; empty if one allows them."""
        reasons = [plane.read_only for plane in self.hosts.by_name.values()]
        return reasons[0] if all(reasons) else ""

    @property
    def interval(self) -> float:
        return max(plane.interval for plane in self.hosts.by_name.values())

    def hook_status(self) -> tuple[HookStatus, ...]:
        """The hooks of a single host; of several, the screen of hosts has the interfaces."""
        return self._one.hook_status() if len(self.hosts.chosen) == 1 else ()

    def failure(self) -> ProbedeckError | None:
        """Why the single chosen host is not followed any more."""
        return self._one.failure() if len(self.hosts.chosen) == 1 else None

    def listen(self, listener: Listener) -> None:
        """Do nothing: `ChosenHosts.listen` tells the host of each item."""

    def publish(self, item: Item) -> None:
        self.hosts.publish("", item)

    def close(self) -> None:
        self.hosts.close()
