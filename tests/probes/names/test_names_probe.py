"""The probe of names: in the kernel, on frames that a test runs through its hooks."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import pytest

from app.lab.netns import inside
from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from bpf.syscall import prog_test_run
from probes.names.learned import LearnedName, learned
from probes.path.options import PathOptions
from probes.snapshot import Item, LossReason, Snapshot
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.probes.names.tools import (
    DNS_ANSWER,
    HERE,
    HERE6,
    THERE,
    THERE6,
    client_hello,
    tcp,
    udp,
)


@pytest.fixture
def learning(deck: Deck) -> Deck:
    deck.controller.paths.configure("right", PathOptions())
    deck.controller.switch("names", True)
    return deck


def names_of(items: Iterable[Item]) -> dict[str, list[LearnedName]]:
    """Names by side."""
    snapshots = [item for item in items if isinstance(item, Snapshot)]
    assert [item.side for item in snapshots] == ["ingress", "egress"]
    return {item.side: list(learned(item)) for item in snapshots}


def run(deck: Deck, hook: Hook, *frames: bytes) -> None:
    for each in frames:
        prog_test_run(deck.fd(hook), each)


def test_dns_answers_and_client_hellos_tell_names(learning: Deck) -> None:
    hello = client_hello("shop.example")
    assert len(hello) > 200
    run(
        learning, Hook.TC_INGRESS,
        udp("192.0.2.53", HERE, (53, 40000), DNS_ANSWER),
        udp(HERE6, THERE6, (40000, 53), DNS_ANSWER),  # to port 53
        udp("192.0.2.53", HERE, (53, 40000), DNS_ANSWER[:20]),
        tcp("192.0.2.9", "127.0.0.1", client_hello("evil.example")),  # to this host
    )  # fmt: skip
    run(
        learning, Hook.TC_EGRESS,
        tcp(HERE, THERE, hello, b"\1" * 12), tcp(HERE6, THERE6, hello), tcp(HERE, THERE, hello),
        tcp(HERE, THERE, b""), tcp(HERE, THERE, b"GET / HTTP/1.1\r\n"), tcp(HERE, THERE, hello[:5]),
    )  # fmt: skip
    assert names_of(learning.controller.export("names")) == {
        "ingress": [
            LearnedName(THERE, "www.example", "dns", 30),
            LearnedName(THERE6, "www.example", "dns", 40),
        ],
        "egress": [
            LearnedName(THERE, "shop.example", "tls", 3600),
            LearnedName(THERE6, "shop.example", "tls", 3600),
        ],
    }
    assert not any(names_of(learning.controller.export("names")).values())


def test_sockets_tell_names_on_the_wire(learning: Deck) -> None:
    left, right = learning.left, learning.right
    with inside(left.ns):
        server, dns = socket.create_server((left.ipv4, 0)), socket.socket(type=socket.SOCK_DGRAM)
        dns.bind((left.ipv4, 53))
    with server, dns, socket.socket(type=socket.SOCK_DGRAM) as asking:
        asking.bind((right.ipv4, 0))
        dns.sendto(DNS_ANSWER, asking.getsockname())
        assert asking.recv(2048) == DNS_ANSWER
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
            client.sendall(client_hello("shop.example"))
            assert peer.recv(2048)
    assert names_of(learning.controller.export("names")) == {
        "ingress": [
            LearnedName(THERE, "www.example", "dns", 30),
            LearnedName(THERE6, "www.example", "dns", 40),
        ],
        "egress": [LearnedName(left.ipv4, "shop.example", "tls", 3600)],
    }


def test_packets_beyond_the_queue_are_counted_and_no_alarm(learning: Deck) -> None:
    packet = udp("192.0.2.53", HERE, (53, 40000), DNS_ANSWER)
    prog_test_run(learning.fd(Hook.TC_INGRESS), packet, repeat=300)
    (ingress, _) = learning.controller.export("names")
    assert not learning.said("warning", "names")
    assert len(list(learned(ingress))) == 2, "each name once"
    assert ingress.losses[LossReason.FILTERED].packets == 300 - 256


def test_learning_begins_and_ends(learning: Deck) -> None:
    controller = learning.controller
    controller.switch("names", True)
    assert [info.name for info in controller.probes()] == ["names"]
    assert not learning.said("error", "names")
    controller.switch("names", False)
    controller.switch("names", False)
    assert controller.probes() == ()


def test_without_an_interface_nothing_is_learned(deck: Deck) -> None:
    with pytest.raises(UsageError, match="no interface is watched"):
        deck.controller.switch("names", True)
