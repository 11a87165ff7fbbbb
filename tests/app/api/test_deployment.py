"""The paper's figure 1: an analyser asks for finer features, and gets them where it matters."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from app.lab import netns
from probes.config.model import ProbeConfig, parse
from probes.control.controller import Controller
from probes.snapshot import Snapshot
from probes.tables.conversion import objects
from tests.support.sight import becomes
from tests.support.veth import veth_pair


class Node:
    """A monitored host: its controller's API, and the host on its cable that sends to it."""

    def __init__(self, stack: contextlib.ExitStack, path: Path) -> None:
        left, right = stack.enter_context(veth_pair())
        for end in (left, right):
            netns.write_sysctls(end.ns, {"net/ipv6/conf/all/disable_ipv6": "1"})
        with netns.inside(left.ns):
            controller = stack.enter_context(Controller())
            stack.enter_context(ApiListener(controller, Api("1", socket=str(path))))
        self.client = stack.enter_context(contextlib.closing(Client(Remote(f"unix:{path}"))))
        self._to = left.ipv4
        with netns.inside(right.ns):
            self._sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def receive(self, ports: range) -> None:
        """A datagram to each port."""
        for port in ports:
            self._sender.sendto(b"x", (self._to, port))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with contextlib.ExitStack() as stack:
        yield Node(stack, tmp_path / "quiet"), Node(stack, tmp_path / "busy")


def features(*names: str) -> ProbeConfig:
    direction = {"interface": "left", "netflow": {"features": list(names)}}
    return parse({"name": "netflow", "interval": 0, "ingress": direction}, "analyser")


def packets(tables: tuple[Snapshot, ...]) -> int:
    return int(tables[0].rows["value"]["IN_PKTS"].sum())


@pytest.mark.slow
def test_an_analyser_gets_finer_features_from_the_node_concerned(nodes: tuple[Node, Node]) -> None:
    """S1.29: coarse counts everywhere; at run time, only the busy node gets a probe that counts
    ports."""
    quiet, busy = nodes
    coarse = features("IN_PKTS", "PROTOCOL")
    fine = features("IN_PKTS", "PROTOCOL", "IPV4_SRC_ADDR", "L4_DST_PORT")
    for node in nodes:
        node.client.add(coarse)
    quiet.receive(range(5000, 5003))
    busy.receive(range(6000, 6200))
    collected = {node: packets(node.client.export("netflow")) for node in nodes}

    def arrived() -> bool:
        for node in nodes:
            collected[node] += packets(node.client.export("netflow"))
        udp = [collected[node] for node in nodes]
        return udp[0] >= 3 and udp[1] >= 200

    assert becomes(arrived)
    concerned = [node for node in nodes if collected[node] > 100]
    assert concerned == [busy]
    for node in concerned:
        node.client.replace(fine)

    quiet.receive(range(5000, 5003))
    busy.receive(range(7000, 7005))
    assert busy.client.probes()[0].generation == 2
    assert quiet.client.probes()[0].generation == 1
    found: set[int] = set()

    def seen() -> bool:
        table = busy.client.export("netflow")[0]
        assert table.schema is not None
        found.update(row["key"]["L4_DST_PORT"] for row in objects(table.schema, table.rows))
        return found >= set(range(7000, 7005))

    assert becomes(seen)
    assert "L4_DST_PORT" not in str(quiet.client.export("netflow")[0].rows.dtype)
