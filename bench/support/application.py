"""Applications for benches of path tracing: senders, a receiver, and a pinger.

    python -I -m bench.support.application serve
    python -I -m bench.support.application udp|tcp|echo ADDRESS SECONDS PACKETS_PER_SECOND
    python -I -m bench.support.application bulk ADDRESS SECONDS
    python -I -m bench.support.application ping SECONDS PINGS_PER_SECOND ADDRESS...

`bulk` prints the bytes that the server took in each quarter of a second; `ping` one line an answer:
number of the address, time of sending (CLOCK_MONOTONIC) and round-trip time, both in ns.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PORT = 9009
FROM_PORT = 9010
"""Where `udp` and `tcp` come from."""
_SO_TIMESTAMPNS = 35
_ICMP = {4: (socket.IPPROTO_ICMP, 8), 6: (socket.IPPROTO_ICMPV6, 128)}
_ANSWERS_S = 0.5
"""For how long answers to the last pings are waited for."""


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve() -> None:
    """Receive by TCP and UDP, v4 and v6; prints `ready` on standard output."""
    taken = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    datagrams.bind(("::", PORT))
    print("ready", flush=True)
    with select.epoll() as poll:
        sockets = {s.fileno(): s for s in (taken, datagrams)}
        for fd in sockets:
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == taken.fileno():
                    connection, _ = taken.accept()
                    sockets[connection.fileno()] = connection
                    poll.register(connection, select.EPOLLIN)
                    continue
                data = b""
                with contextlib.suppress(OSError):
                    data = sockets[fd].recv(1 << 18)
                if not data and fd != datagrams.fileno():
                    poll.unregister(fd)
                    sockets.pop(fd).close()


def paced(kind: str, address: str, seconds: float, rate: float) -> None:
    """Send small messages at an even rate."""
    family = family_of(address)
    if kind == "echo":
        protocol, request = _ICMP[6 if family == socket.AF_INET6 else 4]
        out = socket.socket(family, socket.SOCK_DGRAM, protocol)
        message = struct.pack("!BBHHH", request, 0, 0, 0, 0) + bytes(56)
    else:
        out = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind(("", FROM_PORT))
        message = bytes(160)
    out.connect((address, PORT))
    if kind == "tcp":
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begun = time.monotonic()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        with contextlib.suppress(OSError):
            out.send(message, socket.MSG_DONTWAIT)


def bulk(address: str, seconds: float) -> None:
    """Send as fast as TCP will, and print what was acknowledged, 4 times a second."""
    out = socket.create_connection((address, PORT))
    out.setblocking(False)
    block = bytes(1 << 16)
    begun = due = time.monotonic()
    before = 0
    while (now := time.monotonic()) < begun + seconds:
        select.select([], [out], [], 0.01)
        with contextlib.suppress(BlockingIOError):
            out.send(block)
        if now >= due:
            acknowledged = struct.unpack_from("Q", out.getsockopt(socket.IPPROTO_TCP, 11, 192), 120)
            print(acknowledged[0] - before, flush=True)
            before, due = acknowledged[0], due + 0.25
    os._exit(0)  # without waiting for queued data


def ping(seconds: float, rate: float, addresses: list[str]) -> None:
    """Ping every address, as ping(8) does, with the kernel's time of arrival."""
    versions = [6 if family_of(a) == socket.AF_INET6 else 4 for a in addresses]
    sockets = []
    for address, version in zip(addresses, versions, strict=True):
        out = socket.socket(family_of(address), socket.SOCK_DGRAM, _ICMP[version][0])
        out.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        out.connect((address, 0))
        sockets.append(out)
    sent: dict[tuple[int, int], int] = {}
    offset = time.time_ns() - time.monotonic_ns()

    def receive() -> None:
        with select.epoll() as poll:
            numbers = {s.fileno(): n for n, s in enumerate(sockets)}
            for fd in numbers:
                poll.register(fd, select.EPOLLIN)
            while True:
                for fd, _ in poll.poll():
                    number = numbers[fd]
                    with contextlib.suppress(OSError):
                        data, control, _, _ = sockets[number].recvmsg(256, 256)
                        seconds_, ns = struct.unpack("qq", control[0][2])
                        at = sent.get((number, struct.unpack_from("!H", data, 6)[0]))
                        if at:
                            came = seconds_ * 1_000_000_000 + ns - offset
                            sys.stdout.write(f"{number} {at} {came - at}\n")

    threading.Thread(target=receive, daemon=True).start()
    begun = time.monotonic()
    for count in range(int(seconds * rate)):
        for number, out in enumerate(sockets):
            turn = count + number / len(sockets)
            time.sleep(max(0.0, begun + turn / rate - time.monotonic()))
            request = _ICMP[versions[number]][1]
            message = struct.pack("!BBHHH", request, 0, 0, 0, count & 0xFFFF) + bytes(16)
            sent[number, count & 0xFFFF] = time.monotonic_ns()
            with contextlib.suppress(OSError):
                out.send(message)
    time.sleep(_ANSWERS_S)
    sys.stdout.flush()
    os._exit(0)


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """A descriptor for the time of a block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def running(*arguments: object, node_fd: int = -1) -> Iterator[subprocess.Popen[str]]:
    """One of them as a process, in the namespace of `node_fd` or here; ends with the block."""
    from app.lab import netns

    command = [sys.executable, "-I", "-m", "bench.support.application", *map(str, arguments)]
    with netns.inside(node_fd) if node_fd >= 0 else contextlib.nullcontext():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        if arguments[0] == "serve":
            process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "serve":
        serve()
    elif kind == "bulk":
        bulk(rest[0], float(rest[1]))
    elif kind == "ping":
        ping(float(rest[0]), float(rest[1]), rest[2:])
    else:
        paced(kind, rest[0], float(rest[1]), float(rest[2]))


if __name__ == "__main__":
    main()
