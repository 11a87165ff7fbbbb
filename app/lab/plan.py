"""Plan of a lab: nodes, links, addresses, and the paths that a path tracer should find.

    client - r1 - r2 - r3 - ... - rN - server

Link i (0 at the client) is 10.94.i.0/24 and fd94:0:0:i::/64; its left end is host 1, its right
end host 2. Interfaces are `eth0` on client and server, `left` and `right` on routers, and `left2`
and `right2` for a second link of a router on that side.

A twin of r3 is r3b: r2 shares flows between the two by 5-tuple. A detour of link 3 is
r3 - d1 - ... - dN - r4, which packets take only while it is on. Packets to the client always take
the plain path.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv6Address

from app.lab.netns import MAX_MTU, MTU
from bpf.errors import UsageError

CLIENT = "client"
SERVER = "server"
HOST_INTERFACE = "eth0"
MAX_ROUTERS = 30
"""The highest hop limit of path tracing."""
MAX_DETOUR = 10
MAX_DELAY = 1.0
"""Seconds. A cable holds the packets of this time in memory."""
BOTTLENECK_BITS = 20_000_000
BOTTLENECK_SECONDS = 0.2
"""Delay of the bottleneck's full queue."""
LIMITED_SECONDS = 0.1
"""Time between two answers of a rate-limited router."""

TWIN_LINKS = (100, 101)
"""Numbers of the links left and right of the twin."""
DETOUR_LINKS = range(110, 110 + MAX_DETOUR + 1)
"""Numbers of the detour's links, from left to right."""


@dataclass(frozen=True, slots=True)
class LabLink:
    """A cable between two nodes."""

    number: int
    place: int
    """Number of the link of the plain path that this link is, or replaces."""
    left: str
    left_interface: str
    right: str
    right_interface: str
    delay: float
    """Seconds, one way; 0: a veth, which takes some microseconds."""

    def ipv4(self, host: int) -> str:
        """Address of end `host` (1 left, 2 right)."""
        return f"10.94.{self.number}.{host}"

    def ipv6(self, host: int) -> str:
        return str(IPv6Address(f"fd94:0:0:{self.number}::{host}"))


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """The addresses of a node's answers, as canonical text."""

    ipv4: str
    ipv6: str


@dataclass(frozen=True, slots=True)
class Detour:
    """A longer path beside one link."""

    link: int
    """Number of a link between two routers. A detour at the bottleneck avoids it."""
    routers: int = 2


@dataclass(frozen=True, slots=True)
class LabPlan:
    """The network of a lab; `check` validates it."""

    routers: int = 6
    mtu: int = MTU
    """Most bytes of a packet on the client's link."""
    bottleneck_bits: int = BOTTLENECK_BITS
    """Rate, bit/s, from client to server, at r3 or the last router before; 0: no bottleneck."""
    delays: Mapping[int, float] = field(default_factory=dict)
    """Seconds, one way, by number of the link, also of `TWIN_LINKS` and `DETOUR_LINKS`.

    A link with a delay is a TUN device at each end, without Ethernet; other links are a veth. See
    `app.lab.topology` for the precision. The client's own link has no delay.
    """
    twin: int = 0
    """The hop with two routers; 0: none."""
    detour: Detour | None = None
    silent: tuple[str, ...] = ()
    """Routers without ICMP errors, except for path MTU discovery; they answer pings."""
    limited: tuple[str, ...] = ()
    """Routers that send one ICMP error per `LIMITED_SECONDS`, after a burst of six.

    For IPv6, some kernels send up to four times as many: a prefix of 64 bits may be many hosts.
    """

    @staticmethod
    def parse(text: str) -> LabPlan:
        values = ast.literal_eval(text)
        detour = values.pop("detour")
        return LabPlan(**values, detour=Detour(**detour) if detour else None)

    def dump(self) -> str:
        """Return the plan as one line for `parse`."""
        return repr(asdict(self))

    def check(self) -> None:
        """Raise UsageError if the network is not possible."""
        last, detour = self.routers, self.detour or Detour(0, 0)

        def need(possible: bool, what: str, hint: str) -> None:
            if not possible:
                raise UsageError(f"{what} is not possible", hint=hint)

        need(1 <= last <= MAX_ROUTERS, f"a lab of {last} routers", f"1 to {MAX_ROUTERS}")
        need(MTU <= self.mtu <= MAX_MTU, f"an MTU of {self.mtu}", f"{MTU} to {MAX_MTU}")
        need(self.bottleneck_bits >= 0, "a bottleneck below zero", "0: none")
        need(not self.twin or 1 < self.twin < last, f"a twin of r{self.twin}", f"2 to {last - 1}")
        if self.detour:
            between = 0 < detour.link < last
            need(between, f"a detour of link {detour.link}", f"1 to {last - 1}")
            apart = not self.twin or detour.link not in (self.twin - 1, self.twin)
            need(apart, "a detour beside the twin", "choose another link")
            long = 1 <= detour.routers <= MAX_DETOUR
            need(long, f"a detour of {detour.routers} routers", f"1 to {MAX_DETOUR}")
        numbers = [link.number for link in self.links[1:]]
        for number, delay in self.delays.items():
            need(number in numbers, f"a delay of link {number}", f"one of {numbers}")
            need(0 < delay <= MAX_DELAY, f"a delay of {delay} s", f"more than 0, to {MAX_DELAY:g}")
        for name in (*self.silent, *self.limited):
            quiet = name in self.nodes and name not in (CLIENT, SERVER)
            need(quiet, f"{name!r} as a silent or limited router", "one of its routers")

    @property
    def plain(self) -> tuple[str, ...]:
        """The nodes from client to server, without twin and detour."""
        return (CLIENT, *(f"r{i}" for i in range(1, self.routers + 1)), SERVER)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes; first the nodes of the plain path."""
        return tuple(dict.fromkeys((*self.plain, *(link.right for link in self.links))))

    @property
    def links(self) -> tuple[LabLink, ...]:
        """All links; first the links of the plain path, in order."""
        return tuple(self._links())

    def _links(self) -> Iterator[LabLink]:
        plain = self.plain
        for i in range(self.routers + 1):
            near = HOST_INTERFACE if i == 0 else "right"
            far = HOST_INTERFACE if i == self.routers else "left"
            yield self._link(i, i, (plain[i], near), (plain[i + 1], far))
        if self.twin:
            before, twin, after = plain[self.twin - 1], f"r{self.twin}b", plain[self.twin + 1]
            left, right = TWIN_LINKS
            yield self._link(left, self.twin - 1, (before, "right2"), (twin, "left"))
            yield self._link(right, self.twin, (twin, "right"), (after, "left2"))
        if self.detour:
            place, count = self.detour.link, self.detour.routers
            chain = (plain[place], *(f"d{i}" for i in range(1, count + 1)), plain[place + 1])
            for i, number in enumerate(DETOUR_LINKS[: count + 1]):
                near = "right2" if i == 0 else "right"
                far = "left2" if i == count else "left"
                yield self._link(number, place, (chain[i], near), (chain[i + 1], far))

    def _link(
        self, number: int, place: int, left: tuple[str, str], right: tuple[str, str]
    ) -> LabLink:
        return LabLink(number, place, *left, *right, self.delays.get(number, 0.0))

    @property
    def bottleneck(self) -> str:
        """The router whose `right` interface is the bottleneck."""
        return f"r{min(3, self.routers)}"

    def backward(self, node: str) -> LabLink:
        """Return the link of packets from `node` to the client. `node` is not the client."""
        return next(link for link in self.links if link.right == node)

    def forward(self, node: str, detour: bool = False) -> tuple[LabLink, ...]:
        """Return the links of packets from `node` to the server; the server has no such link."""
        links = [link for link in self.links if link.left == node]
        around = [link for link in links if link.number == DETOUR_LINKS[0]]
        if not (detour and around):
            around = [link for link in links if link not in around]
        return tuple(around)

    def addresses(self, node: str) -> NodeAddresses:
        """Return the addresses of answers of `node` to the client. Raises UsageError."""
        self.require(node)
        link, host = (self.links[0], 1) if node == CLIENT else (self.backward(node), 2)
        return NodeAddresses(link.ipv4(host), link.ipv6(host))

    def require(self, node: str) -> None:
        """Raise UsageError if `node` does not exist."""
        if node not in self.nodes:
            hint = f"one of {', '.join(self.nodes)}"
            raise UsageError(f"the lab has no node {node!r}", hint=hint)
