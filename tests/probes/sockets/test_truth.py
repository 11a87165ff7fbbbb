"""Owners of a workload that logs whose each connection is: what the probe says must be true."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from app.lab.netns import fresh, inside, write_sysctls
from bpf.compiler import Compiler
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.flow.records import FlowDirection
from probes.sockets import probe as sockets_probe
from probes.sockets.records import By, Reason
from tests.bpf.cgroups import cgroup, python_in
from tests.bpf.sockets.tools import ip, loopback_up
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.sockets.test_sockets_probe import WORKER, Window, Worker
from tests.probes.sockets.test_sockets_probe import folder as folder
from tests.support.compiling import Shared
from tests.support.veth import veth_pair

Key = tuple[int, int, str, int]
"""Protocol, port here, address and port there."""
# Of several namespaces with an address the first one is asked, and another run may have some.
_OF_RUN = f"10.{128 + os.getpid() // 128 % 128}"
PRIVATE, ROUTED = (f"{_OF_RUN}.{os.getpid() % 128 * 2 + each}" for each in (0, 1))
NOBODY = f"{ROUTED}.77"
RULES = f"""
table ip truth {{
  chain out {{
    type nat hook postrouting priority 100; ip saddr {PRIVATE}.0/24 oifname "right" masquerade;
  }}
}}
"""
WORK = """
import threading
log = []

def note(sock, *pids, far=None):
    protocol = 6 if sock.type == socket.SOCK_STREAM else 17
    far = far or sock.getpeername()
    address = far[0].removeprefix("::ffff:")
    log.append([protocol, sock.getsockname()[1], address, far[1], pids or [os.getpid()]])

def serve(sock):
    sock.recv(4096)
    sock.sendall(b"y" * 1000)

def call(address, count):
    for _ in range(count):
        with socket.create_connection(address) as sock:
            note(sock)
            sock.sendall(b"x" * 500)
            sock.recv(1000, socket.MSG_WAITALL)

def threaded(listener, count):
    def answer(sock):
        with sock:
            note(sock)
            serve(sock)
            sock.recv(1)
    threads = [threading.Thread(target=answer, args=(listener.accept()[0],)) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def forking(listener, pairs):
    # The first child inherits the connection of the second one, and closes it last.
    for _ in range(pairs):
        (first, _), (second, _) = listener.accept(), listener.accept()
        wait_fd, go_fd = os.pipe()
        elder = os.fork()
        if not elder:
            os.read(wait_fd, 1)
            serve(first)
            os._exit(0)
        younger = os.fork()
        if not younger:
            serve(second)
            os._exit(0)
        note(first, os.getpid(), elder)
        note(second, os.getpid(), younger)
        first.close(), second.close()
        os.waitpid(younger, 0)
        os.write(go_fd, b"x")
        os.waitpid(elder, 0)
        os.close(wait_fd), os.close(go_fd)

def datagrams(address, count):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    for _ in range(count):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            note(sock)
            sock.send(b"x" * 300)
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x" * 300, address)
            note(sock, far=address)

def echo(sock, count):
    for _ in range(count):
        data, far = sock.recvfrom(4096)
        note(sock, far=far)
        sock.sendto(data, far)

def activate(listener, folder):
    # As socket activation: the maker of the listener is not the process that accepts.
    (wait_fd, told_fd), (life_fd, end_fd) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(end_fd)
        with open(folder + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        with listener.accept()[0] as short:
            serve(short)
        long = listener.accept()[0]
        serve(long)
        os.write(told_fd, b"x")
        os.read(life_fd, 1)
        os._exit(0)
    os.read(wait_fd, 1)
    note(listener, child, far=("", 0))

    def end():
        os.close(end_fd)
        os.waitpid(child, 0)
    return end
"""


class Outside:
    """The other host: servers that answer, and clients, without a process in its namespace."""

    def __init__(self, stack: ExitStack, ns: int, addresses: Sequence[tuple[int, str]]) -> None:
        self._stack, self._ns = stack, ns
        for (family, address), number in product(addresses, (1, 2)):
            with inside(ns):
                listener = stack.enter_context(
                    socket.create_server((address, 8000 + number), family=family, backlog=100)
                )
                sink = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                sink.bind((address, 9000 + number))
            threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)

    @staticmethod
    def _answer(listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock, suppress(ConnectionError):
                sock.recv(4096)
                sock.sendall(b"y" * 1000)
                while sock.recv(1 << 16):
                    pass

    def call(self, address: tuple[str, int], count: int) -> None:
        """Keep all connections open at once, as two children of a forking server need it."""
        with ExitStack() as stack:
            with inside(self._ns):
                made = [socket.create_connection(address, timeout=5) for _ in range(count)]
            for sock in made:
                stack.enter_context(sock).sendall(b"x" * 500)
            for sock in made:
                assert len(sock.recv(1000, socket.MSG_WAITALL)) == 1000

    def connect(self, address: tuple[str, int]) -> socket.socket:
        with inside(self._ns):
            return self._stack.enter_context(socket.create_connection(address, timeout=5))

    def send(self, address: tuple[str, int], count: int = 1) -> socket.socket:
        with inside(self._ns):
            sock = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for _ in range(count):
            sock.sendto(b"x" * 300, address)
        return sock


@dataclass
class Host:
    """The watched host, and its workers' folder of cgroup2."""

    deck: Deck
    folder: Path
    stack: ExitStack

    def worker(self, ns: int) -> Worker:
        with inside(ns):
            process = self.stack.enter_context(python_in(self.folder, WORKER))
        worker = Worker(process)
        worker.do(WORK)
        return worker

    def container(self, name: str, network: str) -> int:
        """Make a namespace behind the host; the caller is in the host's."""
        ns = fresh()
        self.stack.callback(os.close, ns)
        ip(
            f"link add {name} type veth peer name eth netns /proc/{os.getpid()}/fd/{ns}",
            f"addr add {network}.1/24 dev {name}", f"link set {name} up",
        )  # fmt: skip
        with inside(ns):
            loopback_up()
            ip(
                f"addr add {network}.2/24 dev eth", "link set eth up",
                f"route add default via {network}.1",
            )  # fmt: skip
        return ns


@pytest.fixture
def host(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Host]:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    monkeypatch.setattr(sockets_probe, "LATE_S", 0.2)
    with veth_pair() as (left, right), inside(right.ns), ExitStack() as stack:
        write_sysctls(right.ns, {"net/ipv4/ip_forward": "1"})
        with inside(left.ns):
            ip(f"route add {ROUTED}.0/24 via {right.ipv4}")
        deck = Deck(left, right)
        with deck.controller:
            deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=0))
            deck.controller.switch("sockets", True)
            Window(deck)  # It began before the sources were ready.
            yield Host(deck, folder, stack)


@contextmanager
def in_background(work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, *arguments)
        yield
        done.result(timeout=10)


def log_of(worker: Worker, path: Path) -> dict[Key, set[int]]:
    """Return the processes that may be the owner of each connection of a worker."""
    worker.do(f"with open({str(path)!r}, 'w') as file: json.dump(log, file)\nlog.clear()")
    return {tuple(key): set(pids) for *key, pids in json.loads(path.read_text())}


def key_of(flow: Any) -> Key:
    sides = ["source", "destination"]
    near, far = sides if flow["direction"] == FlowDirection.EGRESS else reversed(sides)
    size = 4 if flow["version"] == 4 else 16
    address = ipaddress.ip_address(flow[far][:size].tobytes())
    return int(flow["protocol"]), int(flow[f"{near}_port"]), str(address), int(flow[f"{far}_port"])


def near_of(flow: Any) -> str:
    name = "source" if flow["direction"] == FlowDirection.EGRESS else "destination"
    return str(ipaddress.ip_address(flow[name][:4].tobytes())) if flow["version"] == 4 else ""


def check(window: Window, log: Mapping[Key, set[int]]) -> set[Key]:
    """Compare all owners and reasons with the log; return the connections of the window."""
    window.check_sums()
    local = owned = 0
    wrong: list[tuple[Key, int, By | Reason, set[int]]] = []
    seen = set()
    for flow, at, tgid in zip(window.flows.rows, window.at, window.tgid.tolist(), strict=True):
        key = key_of(flow)
        reason = Reason(int(window.sockets["reason"][at]))
        if key in log:
            seen.add(key)
            local += int(flow["bytes"])
            owned += int(flow["bytes"]) * (reason in (Reason.OWNED, Reason.SEVERAL))
            if reason is Reason.OWNED and tgid not in log[key]:
                wrong.append((key, tgid, By(int(window.sockets["by"][at])), log[key]))
        elif reason not in _reasons_without_socket(flow, key):
            wrong.append((key, tgid, reason, set()))
    assert not wrong
    assert owned >= 0.99 * local > 0, set(map(Reason, window.ownership["reason"].tolist()))
    return seen


def _reasons_without_socket(flow: Any, key: Key) -> tuple[Reason, ...]:
    protocol, port, *_ = key
    if protocol in (1, 58):
        return (Reason.KERNEL,)
    if near_of(flow) == NOBODY:
        # The second one on a host where this process may not look into all others.
        return Reason.FORWARDED, Reason.OTHER_NAMESPACE
    return (Reason.REFUSED,) if (protocol, port) in ((6, 81), (17, 82)) else ()


@pytest.mark.slow
def test_a_workload_is_owned_by_the_processes_of_its_own_log(host: Host, tmp_path: Path) -> None:
    left, right = host.deck.left, host.deck.right
    addresses = [(socket.AF_INET, left.ipv4), (socket.AF_INET6, left.ipv6)]
    outside = Outside(host.stack, left.ns, addresses)
    client, server = host.worker(right.ns), host.worker(right.ns)
    routed = host.worker(host.container("routed", ROUTED))
    for _, address in addresses:
        client.do(f"call(({address!r}, 8001), 20); datagrams(({address!r}, 9001), 10)")
    # The log has no address of this end, so its ports tell its lines apart.
    routed.do(f"call(({left.ipv4!r}, 8002), 10); datagrams(({left.ipv4!r}, 9002), 5)")
    client.do(f"long = socket.create_connection(({left.ipv4!r}, 8001)); note(long)")

    server.do(
        "listeners = [socket.create_server(('::', port), family=10, dualstack_ipv6=True, "
        "backlog=100) for port in (8080, 8081)]"
    )
    for address in (right.ipv4, right.ipv6):
        with in_background(outside.call, (address, 8080), 20):
            server.do("threaded(listeners[0], 20)")
        with in_background(outside.call, (address, 8081), 4):
            server.do("forking(listeners[1], 2)")
    server.do(f"udp = socket.socket(2, 2); udp.bind(({right.ipv4!r}, 9000))")
    outside.send((right.ipv4, 9000), 10)
    server.do("echo(udp, 10)")

    outside.send((right.ipv4, 82), 3)
    outside.send((NOBODY, 83), 2)
    with inside(left.ns), socket.socket() as refused:
        assert refused.connect_ex((right.ipv4, 81)) == 111

    client.do("long.send(b'x' * 50_000)")
    log: dict[Key, set[int]] = {}
    for worker in (client, server, routed):
        log |= log_of(worker, tmp_path / "log")
    window = Window(host.deck)
    assert check(window, log) == log.keys()
    reasons = {Reason(int(each)) for each in window.ownership["reason"]}
    assert reasons >= {Reason.OWNED, Reason.REFUSED, Reason.KERNEL}
    client.do("long.send(b'x')")
    check(Window(host.deck), log)


def test_a_container_behind_masquerade_owns_its_flows(host: Host, tmp_path: Path) -> None:
    if not shutil.which("nft"):
        pytest.skip("needs nft")
    nft = subprocess.run(["nft", "-f", "-"], input=RULES, text=True, capture_output=True)
    if nft.returncode:
        pytest.skip(f"the kernel translates no addresses: {nft.stderr}")
    left = host.deck.left
    Outside(host.stack, left.ns, [(socket.AF_INET, left.ipv4)])
    inner = host.worker(host.container("private", PRIVATE))
    inner.do(f"call(({left.ipv4!r}, 8001), 20); datagrams(({left.ipv4!r}, 9001), 5)")
    log = log_of(inner, tmp_path / "log")
    window = Window(host.deck)
    assert check(window, log) == log.keys()
    assert window.sockets["nat"].all()


def test_the_holders_cgroup_is_that_of_an_activated_service(host: Host, tmp_path: Path) -> None:
    left, right = host.deck.left, host.deck.right
    outside = Outside(host.stack, left.ns, [])
    service = host.stack.enter_context(cgroup(host.folder))
    maker = host.worker(right.ns)
    maker.do("listener = socket.create_server(('', 8082))")

    def traffic() -> None:
        outside.call((right.ipv4, 8082), 1)
        outside.connect((right.ipv4, 8082)).sendall(b"x")

    with in_background(traffic):
        maker.do(f"end = activate(listener, {str(service)!r})")
    ((child,),) = log_of(maker, tmp_path / "log").values()
    window = Window(host.deck)
    window.check_sums()
    window.check_owner(8082, child, By.CLOSED)
    assert set(window.sockets["by"].tolist()) == {By.HOLDS, By.CLOSED}
    assert set(window.sockets["cgroup"].tolist()) == {service.stat().st_ino}
    maker.do("end()")
