"""A fleet without connections: a test sets the states of its hosts, and publishes their items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from app.api.address import Remote
from app.console.app import ConsoleApp
from app.fleet.host_state import HostPhase, HostState
from app.fleet.hosts import Fleet, FleetHost
from app.fleet.hub import Hub
from app.fleet.plane import ChosenHosts
from app.fleet.planes import ChosenPlane
from probes.snapshot import Item
from tests.app.console.fake import Desk

NAMES = ("ams1", "ams2", "fra1")


class FakeHub(Hub):
    """Hosts that are up, until a test says otherwise."""

    def __init__(self, remotes: Mapping[str, Remote]) -> None:
        """`remotes` has the address of each host; their labels are the first letters: `site`."""
        hosts = [FleetHost(name, of, {"site": name[:1]}) for name, of in remotes.items()]
        super().__init__(hosts)
        self.fleet = Fleet(tuple(hosts), "")
        self._fake = {
            host.name: HostState(host.name, host.labels, host.remote.url, HostPhase.UP)
            for host in hosts
        }

    def states(self) -> tuple[HostState, ...]:
        return tuple(self._fake.values())

    def turn(self, name: str, state: HostPhase = HostPhase.UP, **fields: Any) -> None:
        """Change the state of a host."""
        self._fake[name] = replace(self._fake[name], state=state, **fields)

    def publish(self, host: str, item: Item) -> None:
        for listener in self._listeners:
            listener(host, item)


@asynccontextmanager
async def fleet_desk(hub: FakeHub, width: int = 120, height: int = 40) -> AsyncIterator[Desk]:
    """A console on the hosts of a hub, on its screen of hosts."""
    chosen = ChosenHosts(hub.fleet, hub)
    app = ConsoleApp(
        lambda: ChosenPlane(chosen), lambda: None, "the fleet",
        first="hosts", names=False, fleet=True,
    )  # fmt: skip
    async with app.run_test(size=(width, height), notifications=True) as pilot:
        await app.ready.wait()
        await pilot.pause()
        yield Desk(app, cast("Any", None), pilot)
    chosen.close()
