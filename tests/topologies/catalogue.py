"""Networks as people have them, by name, for tests and benches.

Each is the plain path of `tests.topologies.network` and a change of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.lab.plan import Detour, LabPlan
from tests.topologies.network import DELAYS, PLAIN, Topology

FORWARDED = {4: "10.94.4.2", 6: "fd94:0:0:4::2"}
"""Addresses of r5, which `forward` sends on to the server."""
PARALLEL = replace(PLAIN, detour=Detour(3, 1))
"""r3 has a second way to r4, by d1, one router longer and 2 ms shorter."""
ROUND = replace(PLAIN, detour=Detour(3, 2), delays=DELAYS | {110: 0.002})
"""r3 has a second way to r4, by d1 and d2, of the same delay."""

LONG = {more: replace(PLAIN, detour=Detour(3, more)) for more in (3, 6, 10)}
"""r3 has a second way to r4, some routers longer."""

Hops = Sequence[Mapping[int, str]]
"""The answering address, by IP version, of each hop."""


@dataclass(frozen=True)
class Layout:
    """A network, and the hops that a tracer should see."""

    change: Callable[[Topology], object] = lambda network: None
    plan: LabPlan = PLAIN
    hops: Callable[[Topology], Hops] = Topology.responders
    to: tuple[str, ...] = ()
    """Traced addresses other than the server's."""


def carrier(network: Topology) -> None:
    """A translation at home, and one at the provider."""
    network.translate("r2")
    network.translate("r4")


def firewall(network: Topology) -> None:
    """Only connections that start behind r3 pass it."""
    network.rules(
        "r3",
        "filter forward 0",
        "ct state invalid counter drop",
        "ct state established,related accept",
        'iifname "left" ct state new accept',
        policy="drop",
    )


def forward(network: Topology) -> None:
    """Packets to r5 go to the server."""
    network.rules(
        "r5",
        "nat prerouting -100",
        f"ip daddr {FORWARDED[4]} dnat ip to {network.servers[4]}",
        f"ip6 daddr {FORWARDED[6]} dnat ip6 to {network.servers[6]}",
    )


def share(network: Topology) -> None:
    """r3 shares flows between the two ways of PARALLEL; d1 counts the source ports of UDP."""
    network.run(
        "r3",
        "ip route replace default nexthop via 10.94.3.2 nexthop via 10.94.110.2",
        "ip -6 route replace default nexthop via fd94:0:0:3::2 nexthop via fd94:0:0:110::2",
    )
    rule = 'iifname "left" add @ports { udp sport }'
    network.rules("d1", "filter forward 0", rule, ports=True)


def scatter(network: Topology) -> None:
    """r3 sends each packet by one of the two ways of PARALLEL at random."""
    network.rules(
        "r3", "filter prerouting -150", 'iifname "left" meta mark set numgen random mod 2'
    )
    for family, gateway in (("-4", "10.94.110.2"), ("-6", "fd94:0:0:110::2")):
        network.run(
            "r3",
            f"ip {family} route add default via {gateway} table 100",
            f"ip {family} rule add fwmark 1 lookup 100",
        )


def back_by_detour(network: Topology) -> None:
    """Packets to the client take the detour of ROUND."""
    for link in range(3):
        network.run(
            "r4",
            f"ip route replace 10.94.{link}.0/24 via 10.94.112.1 src 10.94.3.2",
            f"ip -6 route replace fd94:0:0:{link}::/64 via fd94:0:0:112::1",
        )


def loop(network: Topology, *, healed: bool = False) -> None:
    """r4 sends packets to the server back to r3, or on to r5 again."""
    link, host = (4, 2) if healed else (3, 1)
    network.run(
        "r4",
        f"ip route replace default via 10.94.{link}.{host}",
        f"ip -6 route replace default via fd94:0:0:{link}::{host}",
    )


def hide(network: Topology) -> None:
    """A tunnel from r2 to r4 hides r3; the way back has no tunnel."""
    ends = {"r2": ("10.94.2.1", "10.94.4.1", 1), "r4": ("10.94.4.1", "10.94.2.1", 2)}
    for node, (local, remote, number) in ends.items():
        network.run(
            node,
            f"ip link add tunnel type vxlan id 5 dstport 4789 local {local} remote {remote}",
            f"ip addr add 10.99.0.{number}/24 dev tunnel",
            f"ip -6 addr add fd99::{number}/64 dev tunnel nodad",
            "ip link set tunnel up mtu 1450",
        )
    network.run(
        "r2",
        "ip route add 10.94.4.0/24 via 10.94.2.2",
        "ip route replace default via 10.99.0.2",
        "ip -6 route replace default via fd99::2",
    )


def _with_detour(network: Topology) -> Hops:
    extra = [network.plan.addresses(name) for name in ("d1", "d2")]
    plain = network.responders()
    return [*plain[:3], *({4: each.ipv4, 6: each.ipv6} for each in extra), *plain[3:]]


def _without_r3(network: Topology) -> Hops:
    hops = network.responders()
    return [*hops[:2], *hops[3:]]


LAYOUTS = {
    "plain": Layout(),
    "masquerade": Layout(lambda network: network.translate("r2")),
    "silent first": Layout(lambda network: network.translate("r1"), replace(PLAIN, silent=("r1",))),
    "carrier": Layout(carrier),
    "firewall": Layout(firewall),
    # r5 answers with the address that is traced: it is no hop, but the destination.
    "forward": Layout(
        forward, hops=lambda network: network.responders()[:-1], to=tuple(FORWARDED.values())
    ),
    "branches": Layout(share, PARALLEL),
    "scattered": Layout(scatter, PARALLEL),
    "long way back": Layout(back_by_detour, ROUND),
    "short way back": Layout(lambda network: network.lab.detour(True), ROUND, _with_detour),
    "tunnel": Layout(hide, hops=_without_r3),
    "limited": Layout(plan=replace(PLAIN, silent=("r3",), limited=("r5",))),
}
