"""sock_diag against real sockets of a namespace that nothing else uses."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from app.lab import netns
from bpf.sockets.diag import INFO, TCP, TUPLE, UDP, SocketDiag, SocketState, unmap
from tests.bpf.sockets.tools import cookie, ends, loopback_up, of, tuples

DATA = b"x" * 10_000


@pytest.fixture(scope="module")
def space() -> Iterator[int]:
    """A namespace with loopback."""
    ns = netns.fresh()
    with netns.inside(ns):
        loopback_up()
    yield ns
    os.close(ns)


@pytest.fixture
def diag(space: int) -> Iterator[SocketDiag]:
    """Questions for the namespace; the test's own sockets are in it, too."""
    with netns.inside(space), closing(SocketDiag()) as asked:
        yield asked


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def connected(
    stack: ExitStack, family: int, address: str, listening: str = ""
) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Return a listener, the socket of a client, and the accepted one."""
    server_family = socket.AF_INET6 if ":" in (listening or address) else socket.AF_INET
    listener = stack.enter_context(socket.socket(server_family, socket.SOCK_STREAM))
    if server_family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((listening or address, 0))
    listener.listen(7)
    client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    client.connect((address, listener.getsockname()[1]))
    accepted = stack.enter_context(listener.accept()[0])
    return listener, client, accepted


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_both_ends_of_a_connection(
    diag: SocketDiag, stack: ExitStack, family: int, address: str
) -> None:
    listener, client, accepted = connected(stack, family, address)
    client.sendall(DATA)
    accepted.recv(4000)
    asked = np.concatenate([of(TCP, client), of(TCP, accepted)])
    found = diag.ask(asked)
    assert found["found"].all()
    assert (found["state"] == SocketState.ESTABLISHED).all()
    assert found["cookie"].tolist() == [cookie(client), cookie(accepted)]
    assert found["inode"].tolist() == [os.fstat(s.fileno()).st_ino for s in (client, accepted)]
    assert found["uid"].tolist() == [os.geteuid()] * 2
    assert (found["cgroup"] > 0).all()
    assert found["bytes_sent"].tolist() == [len(DATA), 0]
    assert found["bytes_received"].tolist() == [0, len(DATA)]
    assert found["rqueue"].tolist() == [0, len(DATA) - 4000]
    assert (found["info_bytes"] >= 224).all()
    assert (found["rtt_us"] > 0).all()
    assert found["min_rtt_us"][0] > 0
    assert found["mss"][0] == client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    assert found["sndbuf"][0] == client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert found["max_pacing_rate"].tolist() == [2**64 - 1] * 2
    everything, info = diag.dump(TCP, 4 if family == socket.AF_INET else 6)
    rows = {int(each["cookie"]): ends(row) for row, each in zip(everything, info, strict=True)}
    assert rows[cookie(client)] == ends(asked[0])
    assert rows[cookie(accepted)] == ends(asked[1])
    assert cookie(listener) in rows


def test_ipv4_over_a_dual_stack_socket_is_ipv4(diag: SocketDiag, stack: ExitStack) -> None:
    _, client, accepted = connected(stack, socket.AF_INET, "127.0.0.1", "::")
    asked = tuples((TCP, client.getpeername(), client.getsockname()))
    assert diag.ask(asked)["cookie"][0] == cookie(accepted)
    everything, info = diag.dump(TCP, 6)
    row = everything[info["cookie"] == cookie(accepted)][0]
    assert ends(row) == ends(asked[0])


def test_a_full_accept_queue(diag: SocketDiag, stack: ExitStack) -> None:
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(5)
    near = listener.getsockname()
    clients = [stack.enter_context(socket.create_connection(near)) for _ in range(3)]
    waiting = tuples(*((TCP, near, client.getsockname()) for client in clients))
    found = diag.ask(waiting)
    assert found["found"].all()
    assert (found["inode"] == 0).all()
    everything, info = diag.dump(TCP, 4, 1 << SocketState.LISTEN)
    mine = everything["near_port"] == near[1]
    assert info[mine][["rqueue", "wqueue", "cookie"]].tolist() == [(3, 5, cookie(listener))]


def test_what_answers_for_a_closed_connection(diag: SocketDiag, stack: ExitStack) -> None:
    listener, client, accepted = connected(stack, socket.AF_INET, "127.0.0.1")
    here, there = of(TCP, client), of(TCP, accepted)
    client.close()
    assert accepted.recv(1) == b""
    accepted.close()
    found = diag.ask(np.concatenate([here, there]))
    assert found["state"].tolist() == [SocketState.TIME_WAIT, SocketState.LISTEN]
    assert found["cookie"][1] == cookie(listener)
    assert found["info_bytes"][0] == 0
    listener.close()
    assert not diag.ask(there)["found"][0]


def test_udp_by_its_near_end(diag: SocketDiag, stack: ExitStack) -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        bound, other = (
            stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(2)
        )
        bound.bind((address, 0))
        other.connect(bound.getsockname())
        asked = np.concatenate(
            [
                of(UDP, other),
                of(UDP, bound, other.getsockname()),
                of(UDP, bound, (address, 9)),
                tuples((UDP, (address, 9), bound.getsockname()[:2])),
            ]
        )
        found = diag.ask(asked)
        assert found["found"].tolist() == [True, True, True, False]
        assert found["cookie"][:3].tolist() == [cookie(s) for s in (other, bound, bound)]
        states = [SocketState.ESTABLISHED, SocketState.CLOSE, SocketState.CLOSE]
        assert found["state"][:3].tolist() == states
        everything, info = diag.dump(UDP, 4 if family == socket.AF_INET else 6)
        row = everything[info["cookie"] == cookie(other)][0]
        assert ends(row) == ends(asked[0])


def test_drops_of_a_full_receive_buffer(diag: SocketDiag, stack: ExitStack) -> None:
    bound, other = (stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2))
    bound.bind(("127.0.0.1", 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    other.connect(bound.getsockname())
    for _ in range(50):
        other.send(DATA)
    found = diag.ask(of(UDP, bound, other.getsockname()))[0]
    assert 0 < found["drops"] <= 50
    assert found["rmem"] > 0


def test_many_tuples_keep_their_places(diag: SocketDiag, stack: ExitStack) -> None:
    """Several batches and blocks; every second tuple has no socket; other protocols no answer."""
    _, client, accepted = connected(stack, socket.AF_INET, "127.0.0.1")
    one = np.concatenate([of(TCP, client), of(TCP, client), of(TCP, accepted), of(TCP, accepted)])
    one["far_port"][1] ^= 0x5555
    one["protocol"][3] = 1
    asked = np.tile(one, 700)
    found = diag.ask(asked)
    assert found["cookie"][0::4].tolist() == [cookie(client)] * 700
    assert not found["found"][1::4].any()
    assert found["cookie"][2::4].tolist() == [cookie(accepted)] * 700
    assert not found["found"][3::4].any()
    assert found[1] == np.zeros((), INFO)
    assert len(diag.ask(asked[:0])) == 0


def test_a_small_receive_buffer_loses_no_answer(diag: SocketDiag, stack: ExitStack) -> None:
    _, client, _ = connected(stack, socket.AF_INET, "127.0.0.1")
    with socket.socket(fileno=os.dup(diag._netlink.fileno())) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    found = diag.ask(np.tile(of(TCP, client), 400))
    assert (found["cookie"] == cookie(client)).all()


def test_a_socket_that_is_bound_to_a_device(diag: SocketDiag, stack: ExitStack) -> None:
    bound = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    bound.bind(("127.0.0.1", 0))
    asked = of(UDP, bound, ("127.0.0.1", 9))
    assert not diag.ask(asked)["found"][0]
    assert diag.ask(asked, socket.if_nametoindex("lo"))["found"][0]


def test_an_empty_dump_and_an_unknown_protocol(diag: SocketDiag) -> None:
    everything, info = diag.dump(UDP, 4)
    assert (everything.dtype, info.dtype, len(info)) == (TUPLE, INFO, 0)
    with pytest.raises(FileNotFoundError, match="netlink"):
        diag.dump(254, 4)


def test_unmap() -> None:
    rows = tuples(
        (TCP, ("::ffff:10.0.0.1", 1), ("::ffff:10.0.0.2", 2)),
        (UDP, ("::ffff:10.0.0.1", 1), ("::", 0)),
        (UDP, ("::", 1), ("::", 0)),
        (TCP, ("fd00::1", 1), ("::ffff:10.0.0.2", 2)),
        (TCP, ("10.0.0.1", 1), ("10.0.0.2", 2)),
    )
    unmap(rows)
    assert [ends(row)[1:] for row in rows] == [
        (("10.0.0.1", 1), ("10.0.0.2", 2)),
        (("10.0.0.1", 1), ("0.0.0.0", 0)),
        (("::", 1), ("::", 0)),
        (("fd00::1", 1), ("::ffff:a00:2", 2)),
        (("10.0.0.1", 1), ("10.0.0.2", 2)),
    ]
