"""Networks as people have them: the lab's routers, changed by `nft`, `ip` and `tc`.

    client - r1 - r2 - r3 - r4 - r5 - server

The cables r1-r2, r2-r3, r3-r4 and r4-r5 take 0.5, 1, 2 and 3 ms one way; the client's and the
server's are veths.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from app.lab import netns
from app.lab.network import Lab
from app.lab.plan import CLIENT, SERVER, LabPlan
from tests.support.lab_truth import delay

ROUTERS = 5
DELAYS = {1: 0.0005, 2: 0.001, 3: 0.002, 4: 0.003}
PLAIN = LabPlan(ROUTERS, bottleneck_bits=0, delays=DELAYS)
VERSIONS = (4, 6)
_HOST = {
    "net/ipv4/ping_group_range": "0 2147483647",
    "net/ipv4/tcp_early_retrans": "0",
    "net/ipv4/tcp_rto_min_us": "2000000",
}
"""Any group may send pings; TCP retransmits nothing because the machine is busy."""
_REFUSALS = ("Could not process rule", "Operation not supported", "Unknown device type")
"""Words of `nft` and `ip` if the kernel lacks a feature."""


class Topology:
    """A lab whose nodes are in reach of `nft`, `ip`, `tc` and sockets."""

    def __init__(self, lab: Lab, nodes: Mapping[str, int]) -> None:
        self.lab, self.plan, self.nodes = lab, lab.plan, nodes
        self.servers = {4: lab.server_ipv4, 6: lab.server_ipv6}
        self.interface = lab.interface
        """The client's interface; a test may put another one in its place."""

    def start(self, node: str, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program in the node's namespace."""
        with netns.inside(self.nodes[node]):
            return subprocess.Popen(command, text=True, **options)

    def run(self, node: str, *commands: str, stdin: str | None = None) -> str:
        """Run programs in the node; return the output of the last one.

        Skips the test if the kernel or the machine lacks a feature.
        """
        output = ""
        for command in commands:
            pipe = subprocess.PIPE
            try:
                process = self.start(
                    node, shlex.split(command), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
                )
            except FileNotFoundError:
                pytest.skip(f"{command.split()[0]} is not installed")
            output, _ = process.communicate(stdin)
            if process.returncode:
                if any(word in output for word in _REFUSALS):
                    pytest.skip(f"this kernel refuses `{command}`: {output.splitlines()[0]}")
                raise AssertionError(f"{node}: {command}: {output}")
        return output

    def rules(
        self, node: str, hook: str, *rules: str, policy: str = "accept", ports: bool = False
    ) -> None:
        """Add a chain of nftables rules; a hook is such as `nat postrouting 100`, with priority.

        `ports`: the rules may use a set `ports`, which `counted_ports` returns.
        """
        kind, name, priority = hook.split()
        declared = "set ports { type inet_service; size 1024; flags dynamic; }" if ports else ""
        chain = f"type {kind} hook {name} priority {priority}; policy {policy};"
        lines = "\n".join(
            (f"table inet {kind}_{name} {{", declared, "chain rules {", chain, *rules)
        )
        self.run(node, "nft -f -", stdin=f"{lines}\n}}\n}}\n")

    def counted_ports(self, node: str, hook: str) -> set[int]:
        """Return the ports that the rules of a hook such as `filter forward` have seen."""
        found = json.loads(self.run(node, f"nft -j list set inet {hook.replace(' ', '_')} ports"))
        (declared,) = (each["set"] for each in found["nftables"] if "set" in each)
        return set(declared.get("elem", ()))

    def forget_routes(self, node: str, link: int) -> None:
        """Remove the node's routes to a link, such as a private network behind a translation."""
        self.run(node, f"ip route del 10.94.{link}.0/24", f"ip -6 route del fd94:0:0:{link}::/64")

    def translate(self, router: str) -> None:
        """Translate the addresses behind `router`; no node further away has a route to them."""
        self.rules(router, "nat postrouting 100", 'oifname "right" masquerade')
        place = self.plan.plain.index(router)
        for far in self.plan.plain[place + 1 : -1]:
            for link in range(place):
                # An earlier translation may have forgotten it.
                if self.run(far, f"ip route show 10.94.{link}.0/24"):
                    self.forget_routes(far, link)

    def responders(self) -> list[dict[int, str]]:
        """The answering address, by IP version, of each router of the plain path in order."""
        found = [self.plan.addresses(name) for name in self.plan.plain[1:-1]]
        return [{4: each.ipv4, 6: each.ipv6} for each in found]

    def delays_ms(self) -> list[float]:
        """Built round-trip times to each router, and to the server."""
        return [delay(self.plan, hop) * 1000 for hop in range(1, len(self.plan.plain))]


@contextmanager
def topology(plan: LabPlan = PLAIN) -> Iterator[Topology]:
    """Build the network without traffic."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(plan, traffic=False))
        nodes = {name: lab.open_namespace(name) for name in plan.nodes}
        for fd in nodes.values():
            stack.callback(partial(os.close, fd))
        for host in (CLIENT, SERVER):
            netns.write_sysctls(nodes[host], _HOST)
        yield Topology(lab, nodes)
