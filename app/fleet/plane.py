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


class HostChoice(Planes):
    """The hosts that the console shows, of all hosts of a fleet. One thread chooses."""

    def __init__(self, fleet: Fleet) -> None:
        """None is chosen yet."""
        super().__init__({})
        self.fleet = fleet

    @property
    def first(self) -> tuple[str, ...]:
        """The first choice: all hosts, or the first one where they are too many."""
        names = tuple(host.name for host in self.fleet.hosts)
        return names if len(names) <= MOST_CHOSEN else names[:1]

    def choose(self, names: Sequence[str]) -> None:
        """Choose hosts. It may take as long as it takes to connect.

        Raises UsageError for an empty choice, for too many hosts, and for an unknown host. Raises
        ProbedeckError if a single host does not answer. An error keeps the earlier choice.
        """
        known = [host.name for host in self.fleet.hosts]
        for name in names:
            if name not in known:
                raise UsageError(f"no host {name!r}", hint=did_you_mean(name, known))
        if not 0 < len(set(names)) <= MOST_CHOSEN:
            text = f"{len(set(names))} hosts cannot be shown at once"
            raise UsageError(text, hint=f"choose 1 to {MOST_CHOSEN}")
        self.by_name = self.planes_of([name for name in known if name in names])

    def planes_of(self, names: Sequence[str]) -> dict[str, ControlPlane]:
        """Return the control planes of other chosen hosts, which are in the order of the file."""
        raise NotImplementedError


class ChosenHosts(HostChoice):
    """The chosen hosts, of all hosts that a hub follows.

    A single host is followed as by `console --connect`, with whole windows; of several, the hub's
    streams have the largest flows. A single host that does not answer at the start is followed by
    the hub's stream, too. The hub's thread publishes.
    """

    def __init__(self, fleet: Fleet, hub: Hub) -> None:
        super().__init__(fleet)
        self._hub = hub
        self._hosts: Mapping[str, FleetHost] = {host.name: host for host in fleet.hosts}
        try:
            self.choose(self.first)
        except ProbedeckError:
            # The screens of a fleet open without the host: they show its state, and the reason.
            self.by_name = {name: self._opened(name, several=True) for name in self.first}
        hub.listen(self._heard)

    def states(self) -> tuple[HostState, ...]:
        return self._hub.states()

    def choose(self, names: Sequence[str]) -> None:
        before = self.by_name
        super().choose(names)
        for plane in before.values():
            if plane not in self.by_name.values():
                plane.close()

    def planes_of(self, names: Sequence[str]) -> dict[str, ControlPlane]:
        before, several = self.by_name, len(names) > 1
        planes: dict[str, ControlPlane] = {}
        for name in names:
            known = before.get(name)
            same = known is not None and isinstance(known, _HubPlane) == several
            planes[name] = known if known and same else self._opened(name, several=several)
        return planes

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
