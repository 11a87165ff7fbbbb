"""A row of routers between two hosts: namespaces, real kernels, no traffic."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.lab import netns
from app.lab.plan import CLIENT, HOST_INTERFACE, SERVER, LabPlan
from app.lab.topology import build
from probes.path.slots import Destination
from probes.path.targets import destination_of

KEY = 0x1234567890ABCDEF
"""Secret of marks."""


class Row:
    """A client, routers and a server. The test's thread is in the client's namespace."""

    def __init__(self, plan: LabPlan, spaces: dict[str, int]) -> None:
        self.plan, self.spaces = plan, spaces
        self.interface = HOST_INTERFACE
        last = plan.links[plan.routers]
        self.server = {4: last.ipv4(2), 6: last.ipv6(2)}

    def destination(self, version: int) -> Destination:
        return destination_of(self.server[version])

    def router(self, hop: int, version: int) -> bytes:
        """The address by which a router answers: 16 bytes."""
        found = self.plan.addresses(f"r{hop}")
        return destination_of(found.ipv4 if version == 4 else found.ipv6).address

    def run(self, node: str, *command: str) -> None:
        """Run a program in a node's namespace; it must succeed."""
        with netns.inside(self.spaces[node]):
            subprocess.run(command, check=True, capture_output=True, timeout=20)

    def nft(self, node: str, rules: str) -> None:
        self.run(node, "nft", rules)

    def mtu(self, link: int, size: int) -> None:
        """Set the MTU of both ends of a link."""
        found = self.plan.links[link]
        self.run(found.left, "ip", "link", "set", found.left_interface, "mtu", str(size))
        self.run(found.right, "ip", "link", "set", found.right_interface, "mtu", str(size))

    @contextlib.contextmanager
    def on_server(self) -> Iterator[None]:
        with netns.inside(self.spaces[SERVER]):
            yield


MakeRow = Callable[..., Row]


@pytest.fixture
def make_row() -> Iterator[MakeRow]:
    """Make rows of routers, of 4 unless the test says otherwise."""
    spaces: list[int] = []
    with contextlib.ExitStack() as stack:

        def make(**values: object) -> Row:
            plan = LabPlan(**{"routers": 4, "bottleneck_bits": 0} | values)  # type: ignore[arg-type]
            plan.check()
            with ThreadPoolExecutor(1) as thread:
                built = thread.submit(asyncio.run, build(plan)).result()
            spaces.extend(built.spaces.values())
            stack.enter_context(netns.inside(built.spaces[CLIENT]))
            return Row(plan, built.spaces)

        yield make
    for space in spaces:
        os.close(space)


def packets_of(interface: str) -> socket.socket:
    """A socket that has a copy of each packet of an interface, both ways."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    opened.bind((interface, 3))
    opened.setblocking(False)
    return opened
