"""Conversations that fail, wait, rest or are limited, each for a known reason."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from app.lab import netns
from app.lab.plan import CLIENT
from tests.app.explain.stage import RATE, Stage

_QUERY = b"\x01\0\0\x01\0\0\0\0\0\0\3www\7example\3com\0\0\1\0\1"


def sink(end: socket.socket) -> None:
    while end.recv(1 << 18):
        pass


def bulk(end: socket.socket) -> None:
    while True:
        end.sendall(bytes(1 << 15))


def hold(stage: Stage) -> Callable[[socket.socket], object]:
    return lambda end: stage.over.wait()


def read_slowly(stage: Stage, size: int, every: float) -> Callable[[socket.socket], object]:
    def read(end: socket.socket) -> None:
        while end.recv(size) and not stage.over.wait(every):
            pass

    return read


def upload(stage: Stage, rcvbuf: int = 0) -> None:
    stage.serve(sink, rcvbuf)
    stage.go(bulk, stage.connect())


def chunks(stage: Stage, size: int, every: float) -> None:
    near = stage.connect()
    stage.every(every, lambda: near.sendall(bytes(size)))


def refused(stage: Stage) -> None:
    stage.every(0.3, stage.attempt)


def unreachable(stage: Stage) -> None:
    stage.network.run("r3", f"ip route add unreachable {stage.address}/32")
    stage.every(0.5, stage.attempt)


def prohibited(stage: Stage) -> None:
    rule = f"ip daddr {stage.address} reject with icmp type admin-prohibited"
    stage.network.rules("r2", "filter forward 1", rule)
    stage.every(0.5, stage.attempt)


def black_hole(stage: Stage) -> None:
    stage.network.run("r3", f"ip route add blackhole {stage.address}/32")
    stage.every(0.1, stage.attempt)


def loops(stage: Stage) -> None:
    stage.network.run("r4", f"ip route add {stage.address}/32 via 10.94.3.1")
    stage.every(0.3, stage.attempt)


def backlog_full(stage: Stage) -> None:
    stage.listen(backlog=1)
    for _ in range(5):
        stage.every(0.2, stage.attempt)


def breaks(stage: Stage) -> None:
    """The route ends while data goes over it."""
    stage.serve(sink)
    chunks(stage, 2000, 0.05)

    stage.later(3, lambda: stage.network.run("r3", f"ip route add blackhole {stage.address}/32"))


def large_packets_vanish(stage: Stage) -> None:
    rule = f"ip daddr {stage.address} meta length > 1000 drop"
    stage.network.rules("r4", "filter forward 0", rule)
    stage.serve(sink)
    near = stage.connect()
    near.sendall(bytes(200))
    stage.later(1, lambda: near.sendall(bytes(5000)))


def resets(stage: Stage) -> None:
    def answer(end: socket.socket) -> None:
        stage.watched.wait()
        stage.over.wait(6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()

    stage.serve(answer)
    chunks(stage, 1000, 0.05)


def dns(stage: Stage, think: float, answers: bool = True) -> None:
    near, far = stage.datagrams()

    def serve() -> None:
        while answers:
            query, sender = far.recvfrom(2000)
            stage.over.wait(think)
            far.sendto(query[:2] + b"\x81\x80" + query[4:], sender)

    def ask(number: int = 0) -> None:
        while not stage.over.wait(0.1):
            number += 1
            near.send(number.to_bytes(2, "big") + _QUERY)
            with suppress(TimeoutError):
                near.recv(2000)

    stage.go(serve)
    stage.go(ask)


def udp_one_way(stage: Stage) -> None:
    near, _ = stage.datagrams()
    stage.every(0.05, lambda: near.send(bytes(300)))


def udp_refused(stage: Stage) -> None:
    near, far = stage.datagrams()
    far.close()
    stage.every(0.1, lambda: near.send(bytes(300)))


def udp_answers(stage: Stage) -> None:
    near, far = stage.datagrams()

    def serve() -> None:
        while True:
            data, sender = far.recvfrom(2000)
            stage.over.wait(0.6)
            far.sendto(data, sender)

    stage.go(serve)
    stage.every(0.01, lambda: (near.send(bytes(300)), near.recv(2000)))


def asks(stage: Stage, request: int, answer: int, think: float) -> None:
    """Send requests over one connection; the server thinks before each answer."""

    def serve(end: socket.socket) -> None:
        while True:
            rest = request
            while rest:
                rest -= len(end.recv(min(rest, 1 << 16)) or bytes(rest))
            stage.over.wait(think)
            end.sendall(bytes(answer))

    stage.serve(serve)
    near = stage.connect()

    def ask() -> None:
        while not stage.over.wait(0.05):
            near.sendall(bytes(request))
            rest = answer
            while rest:
                rest -= len(near.recv(rest))

    stage.go(ask)


def greets(stage: Stage) -> None:
    """Open connections as TLS does: the first answer of each takes long."""

    def serve(end: socket.socket) -> None:
        end.recv(2000)
        stage.over.wait(2.5)
        end.sendall(bytes(4000))

    def greet() -> None:
        # A watch that saw only the end of a connection could not know its first answer.
        stage.watched.wait()
        with netns.inside(stage.network.nodes[CLIENT]):
            near = socket.socket()
        with near:
            near.connect((stage.address, stage.port))
            near.sendall(bytes(517))
            near.recv(4000, socket.MSG_WAITALL)
            stage.over.wait(0.3)

    stage.serve(serve)
    stage.every(0.1, greet)


def rests(stage: Stage) -> None:
    """One request and its answer, then nothing."""
    stage.serve(lambda end: (end.send(end.recv(100)), stage.over.wait()))
    near = stage.connect()
    stage.later(1, lambda: (near.send(bytes(100)), near.recv(100)))


def is_not_answered(stage: Stage) -> None:
    stage.serve(hold(stage))
    near = stage.connect()
    stage.later(1, lambda: near.sendall(bytes(100)))


def slow_reader(stage: Stage) -> None:
    stage.serve(read_slowly(stage, 20_000, 0.1))
    chunks(stage, 50_000, 0.05)


def small_window(stage: Stage) -> None:
    upload(stage, rcvbuf=8192)


def slow_sender(stage: Stage) -> None:
    stage.serve(sink)
    chunks(stage, 2000, 0.1)


def reads_slowly(stage: Stage) -> None:
    stage.serve(bulk)
    stage.go(read_slowly(stage, 20_000, 0.1), stage.connect())


def download(stage: Stage) -> None:
    def serve(end: socket.socket) -> None:
        while not stage.over.wait(0.05):
            end.sendall(bytes(5000))

    stage.serve(serve)
    stage.go(sink, stage.connect())


def queue_there(stage: Stage) -> None:
    stage.slow("r2", "right", f"tcp dport {stage.port}")
    upload(stage)


def queue_of_window(stage: Stage) -> None:
    """The receiver's window is full all the time: it waits in the queue."""
    stage.slow("r3", "right", f"tcp dport {stage.port}")
    stage.network.run("r3", f"tc qdisc change dev right parent 1:{stage.port} bfifo limit 900000")
    upload(stage, rcvbuf=90_000)


def queue_behind_translation(stage: Stage) -> None:
    """r1 translates the flow's address and drops guarded probes; another transfer fills a queue."""
    ours = f"ip daddr {stage.address}"
    stage.network.rules("r1", "nat postrouting 100", f'oifname "right" {ours} masquerade')
    stage.network.rules("r1", "filter forward 0", f"{ours} meta l4proto udp ct state invalid drop")
    stage.slow("r2", "right", ours, f"tcp dport {stage.port}")
    udp_one_way(stage)
    other = f"10.99.1.{stage.port % 256}"
    stage.network.run(stage.far, f"ip addr add {other}/32 dev lo")

    def fill() -> None:
        listener = stage.open(stage.far)
        listener.bind((other, stage.port))
        listener.listen()
        near = stage.open(CLIENT)
        near.connect((other, stage.port))
        stage.go(sink, stage.opened.enter_context(listener.accept()[0]))
        bulk(near)

    stage.later(6, fill)


def own_queue(stage: Stage) -> None:
    stage.slow(CLIENT, stage.network.interface, f"tcp dport {stage.port}")
    upload(stage)


def queue_back(stage: Stage) -> None:
    # Routers' answers to the probes of this flow take the same way.
    quoted = f"icmp type time-exceeded @th,240,16 {stage.port}"
    stage.slow("r3", "left", f"tcp sport {stage.port}", quoted)
    stage.serve(bulk)
    stage.go(sink, stage.connect())


def loses(stage: Stage) -> None:
    rule = f"ip daddr {stage.address} numgen random mod 100 < 2 drop"
    stage.network.rules("r5", "filter forward 0", rule)
    stage.serve(sink)
    near = stage.connect()
    near.setsockopt(socket.SOL_SOCKET, 47, struct.pack("=Q", 2 * RATE))  # SO_MAX_PACINGRATE
    stage.go(bulk, near)
