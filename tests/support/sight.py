"""A lab seen from outside: namespaces, processes and frames."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from app.lab import netns
from app.lab.network import Lab

SO_NETNS_COOKIE = 71
"""Identifies a namespace for ever, where an inode number may be used again at once."""
ETH_P_ALL = 3


@contextlib.contextmanager
def node(lab: Lab, name: str = "client") -> Iterator[None]:
    fd = lab.open_namespace(name)
    try:
        with netns.inside(fd):
            yield
    finally:
        os.close(fd)


def own_cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), "little")


def cookie(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        with netns.inside(fd):
            return own_cookie()
    finally:
        os.close(fd)


def namespaces() -> set[int]:
    """Cookies of all namespaces that processes, descriptors and pins hold."""
    found = _held("[0-9]*")
    if Path("/run/netns").is_dir():
        found |= {cookie(pin) for pin in Path("/run/netns").iterdir()}
    return found


def namespaces_of(pids: Iterable[int]) -> set[int]:
    """Cookies of the namespaces that processes and their descriptors hold, but this one's."""
    return set().union(*(_held(str(pid)) for pid in pids)) - {own_cookie()}


def _held(processes: str) -> set[int]:
    """Cookies of the namespaces of processes (glob of pids) and their descriptors."""
    paths: set[str] = set()
    found = set()
    for path in itertools.chain(
        Path("/proc").glob(f"{processes}/task/*/ns/net"), Path("/proc").glob(f"{processes}/fd/*")
    ):
        try:
            target = os.readlink(path)
            if target.startswith("net:[") and target not in paths:
                paths.add(target)
                found.add(cookie(path))
        except OSError:
            continue  # The process has ended.
    return found


def alive(pids: tuple[int, ...]) -> set[int]:
    """The running ones of `pids`; a zombie does not run."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            continue
        if state not in "ZX":
            running.add(pid)
    return running


def becomes(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until the condition holds; returns whether it does. A busy machine takes seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def assert_gone(pids: tuple[int, ...], spaces: set[int], count: int = 8) -> None:
    assert len(spaces) == count
    assert becomes(lambda: not alive(pids))
    assert becomes(lambda: not spaces & namespaces())


def sniff(lab: Lab, seconds: float, where: str = "client") -> Iterator[bytes]:
    """Frames on the interface of the client or the server."""
    with node(lab, where):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.bind((lab.interface, 0))
    with tap:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            tap.settimeout(left)
            try:
                yield tap.recv(65536)
            except TimeoutError:
                return


def flow(frame: bytes) -> tuple[str, bytes, bytes] | None:
    """Kind of traffic, addresses and the bytes after the IP header; None for anything else."""
    ethertype = frame[12:14]
    if ethertype == b"\x08\x00":
        version, protocol, addresses, rest = "4", frame[23], frame[26:34], frame[34:]
    elif ethertype == b"\x86\xdd":
        version, protocol, addresses, rest = "6", frame[20], frame[22:54], frame[54:]
    else:
        return None
    if protocol == socket.IPPROTO_TCP:
        return "tcp" + version, addresses, rest
    if protocol == socket.IPPROTO_UDP:
        ports = set(struct.unpack("!2H", rest[:4]))
        name = "dns" if 53 in ports else "quic" if 443 in ports else "voice"
        return name + version, addresses, rest
    if (protocol, rest[0]) in {(1, 8), (1, 0), (58, 128), (58, 129)}:
        return f"echo{version} {'asked' if rest[0] in (8, 128) else 'answered'}", addresses, rest
    return None
