"""A router measures the round-trip time that the sender's kernel measures."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from app.lab import netns
from app.lab.topology import open_end
from probes.control.controller import Controller
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.snapshot import Item, Snapshot

NEAR, FAR = 0.0015, 0.003
"""Seconds of the cables to the client and to the server, one way."""
CLIENT, SERVER = "10.93.1.1", "10.93.2.1"
EXCHANGES = 60
_CARRY = (
    "import sys; from app.lab.topology import Cable, carry; a = sys.argv[1:];"
    "carry([Cable(int(a[n]), int(a[n + 1]), float(a[n + 2])) for n in (0, 3)])"
)
_MIN_RTT_AT = 148
"""Offset of tcpi_min_rtt in `struct tcp_info`."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def router() -> Iterator[tuple[int, int, int]]:
    """Namespaces of a client, a router and a server, joined by cables; near is the client's."""
    with ExitStack() as stack:
        spaces = [netns.fresh() for _ in range(3)]
        for space in spaces:
            stack.callback(os.close, space)
        arguments: list[str] = []
        ends: list[int] = []
        client, middle, server = spaces
        for host, name, net, delay in ((client, "near", 1, NEAR), (server, "far", 2, FAR)):
            pair = []
            for space, address in ((host, f"10.93.{net}.1"), (middle, f"10.93.{net}.2")):
                pair.append(open_end(space, name))
                stack.callback(os.close, pair[-1])
                with netns.inside(space):
                    ip("addr", "add", f"{address}/24", "dev", name)
                    ip("link", "set", name, "up")
                    if space is host:
                        ip("route", "add", "default", "via", f"10.93.{net}.2")
            ends += pair
            arguments += [*map(str, pair), str(delay)]
        netns.write_sysctls(middle, {"net/ipv4/ip_forward": "1"})
        carrier = [sys.executable, "-I", "-c", _CARRY, *arguments]
        process = stack.enter_context(subprocess.Popen(carrier, pass_fds=ends))
        stack.callback(process.kill)
        yield client, middle, server


def least_rtt_of_sender(client: int, server: int) -> float:
    """Ask and answer over one connection; milliseconds by the client's kernel."""
    with netns.inside(server):
        listener = socket.create_server((SERVER, 80))
    with netns.inside(client):
        asking = socket.socket()

    def answer() -> None:
        answering, _ = listener.accept()
        with answering:
            while data := answering.recv(100):
                answering.sendall(data)

    thread = threading.Thread(target=answer)
    thread.start()
    with listener, asking:
        asking.settimeout(10)
        asking.connect((SERVER, 80))
        for _ in range(EXCHANGES):
            asking.sendall(b"?")
            assert asking.recv(100) == b"?"
        info = asking.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        asking.shutdown(socket.SHUT_WR)
        thread.join()
    (microseconds,) = struct.unpack_from("I", info, _MIN_RTT_AT)
    return float(microseconds) / 1000


@pytest.mark.slow
@pytest.mark.timing
def test_both_halves_add_up_to_what_the_sender_measures() -> None:
    """Within 5 % or 0.1 ms, with one interface of the router; and egress rests while asleep."""
    items: list[Item] = []
    with router() as (client, middle, server), netns.inside(middle), Controller() as controller:
        controller.listen(items.append)
        controller.watch_metrics("near", MonitorOptions(bits=8))
        controller.set_policy(Policy.parse_short("health: operator -> tcp_health on dport:80"))
        hooks = {point.hook.value: point for point in controller.hooks()}
        assert hooks["tc egress"].attachment is None
        controller.activate_policy("health")
        assert hooks["tc egress"].attachment
        whole = least_rtt_of_sender(client, server)
        controller.deactivate_policy("health")
        assert hooks["tc egress"].attachment is None
        controller.export("tcp_health")
    tables = [each for each in items if isinstance(each, Snapshot) and each.metric == "flows"]
    halves = {}
    for side, half in (("ingress", NEAR), ("egress", FAR)):
        values = [row for each in tables if each.side == side for row in each.rows["value"]]
        assert sum(row["packets"] for row in values) > EXCHANGES
        assert sum(row["rtt_samples"] for row in values) > EXCHANGES / 2
        halves[side] = min(row["rtt_least"] for row in values if row["rtt_samples"]) / 1e6
        assert halves[side] > 2000 * half - 0.5
    assert sum(halves.values()) == pytest.approx(whole, rel=0.05, abs=0.1)
