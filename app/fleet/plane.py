"""The chosen hosts of a fleet, and their control planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from app.api.client import RemoteController, RemotePlane
from app.fleet.host_state import HostState
from app.fleet.hosts import Fleet, FleetHost
from app.fleet.hub import Hub
from app.fleet.planes import Planes
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from probes.control_plane import ControlPlane
from probes.snapshot import History, Item

MOST_CHOSEN = 32
"""Hosts whose tables are kept and merged at once: the tables of a host may take 30 MB."""
_HISTORY_BYTES = 8 << 20
"""Of the windows of each of several hosts; they have the largest flows only."""


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


class ChosenHosts(Planes):
    """The hosts that the console shows, of all hosts that a hub follows.

    A single host is followed as by `console --connect`, with whole windows; of several, the hub's
    streams have the largest flows. A single host that does not answer at the start is followed by
    the hub's stream, too. One thread chooses; the hub's thread publishes.
    """

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        """Choose all hosts of the fleet, or the first one where they are too many."""
        super().__init__({})
        self.fleet, self._hub = fleet, hub
        self._hosts: Mapping[str, FleetHost] = {host.name: host for host in fleet.hosts}
        names = tuple(self._hosts)
        first = names if len(names) <= MOST_CHOSEN else names[:1]
        try:
            self.choose(first)
        except ProbedeckError:
            # The screens of a fleet open without the host: they show its state, and the reason.
            self.by_name = {name: self._opened(name, several=True) for name in first}
        hub.listen(self._heard)

    def states(self) -> tuple[HostState, ...]:
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
        before, several = self.by_name, len(set(names)) > 1
        planes: dict[str, ControlPlane] = {}
        for name in (name for name in self._hosts if name in names):
            known = before.get(name)
            same = known is not None and isinstance(known, _HubPlane) == several
            planes[name] = known if known and same else self._opened(name, several=several)
        self.by_name = planes
        for plane in before.values():
            if plane not in planes.values():
                plane.close()

    def _opened(self, name: str, *, several: bool) -> RemotePlane:
        host = self._hosts[name]
        plane = (
            _HubPlane(host, self._hub) if several else RemoteController(host.remote, screen=True)
        )
        plane.listen(partial(self.publish, name))
        return plane

    def _heard(self, host: str, item: Item) -> None:
        plane = self.by_name.get(host)
        if isinstance(plane, _HubPlane):
            plane.take(item)
