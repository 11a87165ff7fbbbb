"""The control plane of the chosen hosts of a fleet, and calls on all of them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from app.api.remote import RemoteController, RemotePlane
from app.fleet.host_state import HostState
from app.fleet.hosts import Fleet, FleetHost
from app.fleet.hub import Hub, HubListener
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.control_plane import ControlPlane, Listener, Operation, RemoteCalls
from probes.path.options import PathOptions
from probes.snapshot import Event, History, HookStatus, Item

MOST_CHOSEN = 32
"""Hosts whose tables are kept and merged at once: the tables of a host may take 30 MB."""
_HISTORY_BYTES = 8 << 20
"""Of the windows of each of several hosts; they have the largest flows only."""
_PATIENCE_S = 30.0
"""Longest wait for a change on all chosen hosts: a compile may be part of it."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """The outcome of a call on one host."""

    host: str
    error: ProbedeckError | None
    """Why it failed; None: it is done."""
    seconds: float
    answer: Any = None


class _HubPlane(RemotePlane):
    """The control plane of a host that the hub follows; the hub asks for its status, too."""

    def __init__(self, host: FleetHost, hub: Hub) -> None:
        super().__init__(host.remote)
        self._hub, self._host = hub, host.name
        self.history = History(_HISTORY_BYTES)
        self.learn()

    def learn(self) -> None:
        if (status := self._hub.status(self._host)) is not None:
            self.apply(status)


class ChosenHosts:
    """The hosts that the console shows, of all hosts that a hub follows.

    A single host is followed as by `console --connect`, with whole windows; of several, the hub's
    streams have the largest flows. A single host that does not answer at the start is followed by
    the hub's stream, too. One thread chooses; the hub's thread publishes.
    """

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        """Choose all hosts of the fleet, or the first one where they are too many."""
        self.fleet, self._hub = fleet, hub
        self._hosts: Mapping[str, FleetHost] = {host.name: host for host in fleet.hosts}
        self._planes: dict[str, RemotePlane] = {}
        """Of the chosen hosts, in the order of the file."""
        self._listeners: tuple[HubListener, ...] = ()
        self.cursor = ""
        """The host that calls about one host go to, if it is chosen; else the first chosen."""
        self.last_change = ""
        self.reports: tuple[HostReport, ...] = ()
        """The outcome of the last change on several hosts."""
        names = tuple(self._hosts)
        first = names if len(names) <= MOST_CHOSEN else names[:1]
        try:
            self.choose(first)
        except ProbedeckError:
            # The screens of a fleet open without the host: they show its state, and the reason.
            self._planes = {name: self._opened(name, several=True) for name in first}
        hub.listen(self._heard)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of the chosen hosts, in the order of the file; at least one."""
        return tuple(self._planes)

    def states(self) -> tuple[HostState, ...]:
        """Return the present states of all hosts, in the order of the file."""
        return self._hub.states()

    def choose(self, names: Sequence[str]) -> None:
        """Choose hosts. It may take as long as it takes to connect.

        Raises UsageError for an empty choice, for too many hosts, and for an unknown host. Raises
        ProbedeckError if a single host does not answer. An error keeps the earlier choice.
        """
        for name in names:
            if name not in self._hosts:
                raise UsageError(f"no host {name!r}", hint=did_you_mean(name, self._hosts))
        if not 0 < len(set(names)) <= MOST_CHOSEN:
            text = f"{len(set(names))} hosts cannot be shown at once"
            raise UsageError(text, hint=f"choose 1 to {MOST_CHOSEN}")
        before, several = self._planes, len(set(names)) > 1
        planes: dict[str, RemotePlane] = {}
        for name in (name for name in self._hosts if name in names):
            known = before.get(name)
            same = known is not None and isinstance(known, _HubPlane) == several
            planes[name] = known if known and same else self._opened(name, several=several)
        self._planes = planes
        for plane in before.values():
            if plane not in planes.values():
                plane.close()

    def _opened(self, name: str, *, several: bool) -> RemotePlane:
        host = self._hosts[name]
        plane = (
            _HubPlane(host, self._hub) if several else RemoteController(host.remote, screen=True)
        )
        plane.listen(partial(self._publish, name))
        return plane

    def listen(self, listener: HubListener) -> None:
        """Call `listener` with each item of each chosen host, in threads that must not wait.

        The name of the host is empty for events about the fleet.
        """
        self._listeners = (*self._listeners, listener)

    def say(self, event: Event) -> None:
        """Publish an event about the fleet."""
        self._publish("", event)

    def _heard(self, host: str, item: Item) -> None:
        plane = self._planes.get(host)
        if isinstance(plane, _HubPlane):
            plane.take(item)

    def _publish(self, host: str, item: Item) -> None:
        for listener in self._listeners:
            listener(host, item)

    @property
    def current(self) -> str:
        """The host under the cursor, or else the first chosen one."""
        return self.cursor if self.cursor in self._planes else self.chosen[0]

    def planes(self) -> dict[str, ControlPlane]:
        """Return the control planes of the chosen hosts, by name."""
        return cast("dict[str, ControlPlane]", dict(self._planes))

    def everywhere(self, title: str, call: Callable[[ControlPlane], Any]) -> tuple[HostReport, ...]:
        """Make a change on each chosen host, as `ask` does, and keep the outcome."""
        self.keep_report(title, self.ask(call))
        return self.reports

    def keep_report(self, title: str, reports: tuple[HostReport, ...]) -> None:
        """Keep the outcome of a change."""
        self.last_change, self.reports = title, reports

    def ask(
        self, call: Callable[[ControlPlane], Any], names: Collection[str] | None = None,
        patience: float = _PATIENCE_S,
    ) -> tuple[HostReport, ...]:  # fmt: skip
        """Call a function with the control plane of each chosen host, all at once.

        `names`: only of these hosts. Returns the outcome on each host, see `ask_each`.
        """
        every = self._planes
        planes = {name: one for name, one in every.items() if names is None or name in names}
        return ask_each(planes, call, patience)

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
        """End the connections to the chosen hosts; the hosts go on measuring."""
        for plane in self._planes.values():
            plane.close()


def ask_each(
    planes: Mapping[str, RemotePlane], call: Callable[[ControlPlane], Any],
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

    def __init__(self, hosts: ChosenHosts) -> None:
        self.hosts = hosts

    @property
    def _one(self) -> ControlPlane:
        return self.hosts.planes()[self.hosts.current]

    def __getattr__(self, name: str) -> Any:
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
        reasons = [plane.read_only for plane in self.hosts.planes().values()]
        return reasons[0] if all(reasons) else ""

    @property
    def interval(self) -> float:
        return max(plane.interval for plane in self.hosts.planes().values())

    def hook_status(self) -> tuple[HookStatus, ...]:
        """The hooks of a single host; of several, the screen of hosts has the interfaces."""
        return self._one.hook_status() if len(self.hosts.chosen) == 1 else ()

    def failure(self) -> ProbedeckError | None:
        """Why the single chosen host is not followed any more."""
        return self._one.failure() if len(self.hosts.chosen) == 1 else None

    def listen(self, listener: Listener) -> None:
        """Do nothing: `ChosenHosts.listen` tells the host of each item."""

    def publish(self, item: Item) -> None:
        """Publish an item about the fleet, on this side only."""
        self.hosts._publish("", item)

    def close(self) -> None:
        self.hosts.close()
