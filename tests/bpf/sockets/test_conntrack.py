"""Conntrack with real translation: a container behind a host, and a host outside."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import pytest

from app.lab import netns
from bpf.machine import enter_network
from bpf.sockets.conntrack import Conntrack
from bpf.sockets.diag import TCP, UDP, SocketDiag
from tests.bpf.sockets.tools import cookie, ends, ip, loopback_up, tuples
from tests.support.nobody import become_nobody

RULES = """
table inet nat {
  chain in { type nat hook prerouting priority -100;
    meta nfproto ipv4 tcp dport 8080 dnat ip to 10.1.0.2:80
    meta nfproto ipv6 tcp dport 8080 dnat ip6 to [fd01::2]:80
    meta nfproto ipv4 udp dport 8080 dnat ip to 10.1.0.2:80
  }
  chain out { type nat hook postrouting priority 100; oifname "out" masquerade; }
  chain here { type nat hook output priority -100; tcp dport 7070 redirect to :80; }
}
"""
CONTAINER = {4: "10.1.0.2", 6: "fd01::2"}
HOST = {4: "10.2.0.1", 6: "fd02::1"}
OUTSIDE = {4: "10.2.0.2", 6: "fd02::2"}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


@dataclass
class World:
    """Descriptors of the three namespaces."""

    container: int
    host: int
    outside: int


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if not shutil.which("nft") or not shutil.which("ip"):
        pytest.skip("needs nft and ip")
    world = World(netns.fresh(), netns.fresh(), netns.fresh())
    forwarding = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    netns.write_sysctls(world.host, dict.fromkeys(forwarding, "1"))
    with netns.inside(world.host):
        loopback_up()
        for name, peer in (("in", world.container), ("out", world.outside)):
            link = f"/proc/{os.getpid()}/fd/{peer}"
            ip(f"link add {name} type veth peer name eth netns {link}")
        ip(
            "addr add 10.1.0.1/24 dev in", "addr add fd01::1/64 dev in nodad", "link set in up",
            "addr add 10.2.0.1/24 dev out", "addr add fd02::1/64 dev out nodad", "link set out up",
        )  # fmt: skip
        rules = subprocess.run(["nft", "-f", "-"], input=RULES, text=True, capture_output=True)
    for ns, address in ((world.container, CONTAINER), (world.outside, OUTSIDE)):
        with netns.inside(ns):
            loopback_up()
            ip(
                f"addr add {address[4]}/24 dev eth", f"addr add {address[6]}/64 dev eth nodad",
                "link set eth up",
            )  # fmt: skip
    with netns.inside(world.container):
        ip("route add default via 10.1.0.1", "route add default via fd01::1")
    if rules.returncode:
        pytest.skip(f"the kernel translates no addresses: {rules.stderr}")
    yield world
    for ns in (world.container, world.host, world.outside):
        os.close(ns)


@dataclass
class Opened:
    """Sockets of a connection."""

    client: socket.socket
    accepted: socket.socket


def connect(
    stack: ExitStack, version: int, client_ns: int, server_ns: int, to: tuple[str, int], port: int
) -> Opened:
    """Connect to `to` from one namespace, and accept on `port` in the other one."""
    with netns.inside(server_ns):
        family = FAMILY[version]
        listener = stack.enter_context(
            socket.create_server(("", port), family=family, reuse_port=True)
        )
    with netns.inside(client_ns):
        client = stack.enter_context(socket.create_connection(to, timeout=5))
    accepted = stack.enter_context(listener.accept()[0])
    listener.close()
    return Opened(client, accepted)


@pytest.mark.parametrize("version", [4, 6])
def test_masquerade_and_forwarded_port(world: World, version: int) -> None:
    with ExitStack() as stack:
        there = OUTSIDE[version], 90
        out = connect(stack, version, world.container, world.outside, there, 90)
        back = connect(stack, version, world.outside, world.container, (HOST[version], 8080), 80)
        masqueraded = out.accepted.getpeername()[:2]
        assert masqueraded[0] == HOST[version]
        asked = tuples(
            (1, masqueraded, there),
            (TCP, masqueraded, (there[0], 91)),
            (TCP, masqueraded, there),
            (TCP, (HOST[version], 8080), back.client.getsockname()[:2]),
        )
        with netns.inside(world.host), closing(Conntrack()) as conntrack:
            found, inner = conntrack.inner(asked)
        assert found.tolist() == [False, False, True, True]
        assert ends(inner[2]) == (TCP, out.client.getsockname()[:2], there)
        served = back.accepted.getsockname()[:2], back.client.getsockname()[:2]
        assert ends(inner[3]) == (TCP, *served)
        assert (inner[:2] == asked[:2]).all()
        with netns.inside(world.container), closing(SocketDiag()) as diag:
            cookies = diag.ask(inner[2:])["cookie"].tolist()
        assert cookies == [cookie(out.client), cookie(back.accepted)]


def test_udp(world: World) -> None:
    with ExitStack() as stack:
        with netns.inside(world.container):
            server = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            server.bind(("", 80))
        with netns.inside(world.outside):
            client = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            client.connect((HOST[4], 8080))
        client.send(b"x")
        server.settimeout(5)
        server.recv(1)
        with netns.inside(world.host), closing(Conntrack()) as conntrack:
            _, inner = conntrack.inner(tuples((UDP, (HOST[4], 8080), client.getsockname())))
        assert ends(inner[0]) == (UDP, (CONTAINER[4], 80), client.getsockname())


def test_a_connection_of_the_host_to_a_translated_service(world: World) -> None:
    """The packets of the client's socket have another far port than the socket."""
    with ExitStack() as stack:
        opened = connect(stack, 4, world.host, world.host, (HOST[4], 7070), 80)
        near = opened.client.getsockname()
        with (
            netns.inside(world.host),
            closing(Conntrack()) as conntrack,
            closing(SocketDiag()) as diag,
        ):
            shown = tuples((TCP, near, opened.accepted.getsockname()))
            assert not diag.ask(shown)["found"][0]
            found, inner = conntrack.inner(shown)
            assert found[0]
            assert diag.ask(inner)["cookie"][0] == cookie(opened.client)


def test_untranslated_connections_are_not_found(world: World) -> None:
    with ExitStack() as stack:
        with netns.inside(world.outside):
            listener = stack.enter_context(socket.create_server(("", 90)))
        with netns.inside(world.host):
            client = stack.enter_context(socket.create_connection((OUTSIDE[4], 90), timeout=5))
            with closing(Conntrack()) as conntrack:
                shown = tuples((TCP, client.getsockname(), client.getpeername()))
                found, inner = conntrack.inner(np.tile(shown, 300))
        assert not found.any()
        assert (inner == shown).all()
        listener.close()


def test_a_refused_question(world: World) -> None:
    """A process without CAP_NET_ADMIN gets the kernel's error."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            enter_network(world.host)
            become_nobody()
            with closing(Conntrack()) as conntrack:
                conntrack.inner(tuples((TCP, ("10.2.0.1", 1), ("10.2.0.2", 2))))
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
