"""A host with a wire, a bridge with containers, and a tunnel to the wire's other end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from app.lab.netns import fresh, inside

WIRE, PEER = "10.96.1.1", "10.96.1.2"
"""Addresses of the wire's ends."""
BRIDGE = "10.96.2.1"
FAR = "10.96.2.50"
"""Address of the peer on the bridge's network, behind the tunnel."""
_NETWORK = "10.96.2.0/24"


@dataclass(slots=True)
class PodHost:
    """Namespaces: the host, the peer at the wire `eth0`, and containers behind `veth1`, ..."""

    host: int
    peer: int
    containers: list[int] = field(default_factory=list)

    def close(self) -> None:
        for ns in (self.host, self.peer, *self.containers):
            os.close(ns)

    def keep_neighbours(self) -> None:
        """Make the known neighbours permanent: no ARP is sent any more."""
        for ns in (self.host, self.peer, *self.containers):
            with inside(ns):
                shown = subprocess.run(["ip", "-j", "neigh"], capture_output=True, check=True)
            known = [each for each in json.loads(shown.stdout) if "lladdr" in each]
            ip(ns, *(
                f"neigh replace {each['dst']} lladdr {each['lladdr']} dev {each['dev']} "
                "nud permanent"
                for each in known
            ))  # fmt: skip

    def address(self, container: int) -> str:
        """Return the address of a container, from 1."""
        return f"10.96.2.{10 + container}"

    def add_container(self) -> int:
        """Add a container; return its namespace."""
        self.containers.append(fresh())
        number, space = len(self.containers), self.containers[-1]
        still(space)
        ip(self.host, f"link add veth{number} type veth peer name eth0 netns {path(space)}",
           f"link set veth{number} master br0 up")  # fmt: skip
        ip(space, "link set lo up", f"addr add {self.address(number)}/24 dev eth0",
           "link set eth0 up", f"route add default via {BRIDGE}")  # fmt: skip
        return space


def path(ns: int) -> str:
    """Return a path to a namespace, for commands."""
    return f"/proc/{os.getpid()}/fd/{ns}"


def ip(ns: int, *lines: str) -> None:
    """Run lines of `ip` in a namespace."""
    with inside(ns):
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def ping(ns: int, address: str, count: int, *options: str) -> None:
    """Send echo requests, and wait for all answers."""
    with inside(ns):
        asked = ["ping", "-q", "-c", str(count), "-i", "0.01", "-W", "5", *options, address]
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL)


def counters(ns: int, name: str) -> tuple[int, int]:
    """Return the packets that an interface has received and sent."""
    with inside(ns), open("/proc/thread-self/net/dev", encoding="ascii") as lines:
        fields = next(line for line in lines if line.strip().startswith(f"{name}:")).split()
    return int(fields[2]), int(fields[10])


@contextmanager
def pod_host(containers: int) -> Iterator[PodHost]:
    """Make the namespaces; all neighbours are known, so only the test's packets flow."""
    with ExitStack() as stack:
        found = PodHost(fresh(), fresh())
        stack.callback(found.close)
        for space in (found.host, found.peer):
            still(space)
        peer = path(found.peer)
        ip(found.host, "link set lo up", f"link add eth0 type veth peer name eth0 netns {peer}",
           f"addr add {WIRE}/24 dev eth0", "link set eth0 up", "link add br0 type bridge",
           f"addr add {BRIDGE}/24 dev br0", "link set br0 up",
           f"link add vx0 type vxlan id 7 dstport 4789 local {WIRE} remote {PEER}",
           "link set vx0 master br0 up")  # fmt: skip
        ip(found.peer, "link set lo up", f"addr add {PEER}/24 dev eth0", "link set eth0 up",
           f"link add vx0 type vxlan id 7 dstport 4789 local {PEER} remote {WIRE}",
           f"addr add {FAR}/32 dev vx0", "link set vx0 up",
           f"route add default via {WIRE}")  # fmt: skip
        ip(found.host, f"route add default via {PEER}")
        for _ in range(containers):
            found.add_container()
        yield found


def still(ns: int) -> None:
    """Forward, and send no IPv6 of the kernel's own."""
    with inside(ns):
        for name, value in (
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv6/conf/all/disable_ipv6", "1"),
        ):
            with open(f"/proc/sys/net/{name}", "w", encoding="ascii") as written:
                written.write(value)
