"""Network namespaces that processes of the test are in."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pytest

from app.lab import netns
from bpf.machine import enter_network
from bpf.sockets.diag import UDP, ClosingSockets
from bpf.sockets.namespaces import Namespaces
from tests.bpf.sockets.tools import cookie, ends, ip, loopback_up, of, tuples
from tests.support.nobody import without_sys_admin

PATIENCE_S = 10.0
INNER, OUTER = "10.9.0.2", "10.9.0.1"


@contextlib.contextmanager
def process_in(ns: int) -> Iterator[int]:
    """A process in a namespace; gives its number."""
    with netns.inside(ns):
        process = subprocess.Popen(["sleep", "60"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@dataclass
class Container:
    ns: int
    number: int
    tgid: int


@pytest.fixture(scope="module")
def home() -> Iterator[int]:
    """The namespace in which the tests are: a new one."""
    ns = netns.fresh()
    with netns.inside(ns):
        loopback_up()
    yield ns
    os.close(ns)


@pytest.fixture(scope="module")
def container(home: int) -> Iterator[Container]:
    """Another one with a process, joined to `home` by a veth."""
    ns = netns.fresh()
    with netns.inside(home):
        ip(
            f"link add box type veth peer name eth netns /proc/{os.getpid()}/fd/{ns}",
            f"addr add {OUTER}/24 brd + dev box", "addr add fd09::1/64 dev box nodad",
            "link set box up",
        )  # fmt: skip
    with netns.inside(ns):
        loopback_up()
        ip(
            f"addr add {INNER}/24 dev eth", "addr add fd09::2/64 dev eth nodad", "link set eth up",
        )  # fmt: skip
    with process_in(ns) as tgid:
        yield Container(ns, os.fstat(ns).st_ino, tgid)
    os.close(ns)


@pytest.fixture
def inside(home: int) -> Iterator[None]:
    """The test's thread is in `home`."""
    with netns.inside(home):
        yield


@pytest.fixture
def found(inside: None, container: Container) -> Iterator[Namespaces]:
    """Namespaces, seen from `home`, after a whole walk over the processes."""
    namespaces = Namespaces()
    walk(namespaces)
    yield namespaces
    namespaces.close()


def walk(namespaces: Namespaces) -> None:
    """Walk over all processes, from the start."""
    namespaces.look(10.0)
    namespaces.look(10.0)


def place(namespaces: Namespaces, *addresses: str) -> list[int]:
    rows = tuples(*((UDP, (address, 1), (address, 1)) for address in addresses))
    words = np.ascontiguousarray(rows["near"]).view("u8")
    numbers: list[int] = namespaces.locate(words, rows["version"]).tolist()
    return numbers


def test_addresses_say_the_namespace(found: Namespaces, container: Container) -> None:
    here, there = found.home, container.number
    assert {here, there} <= set(found.numbers)
    assert found.numbers[0] == here
    assert place(found, INNER, "fd09::2", OUTER, "fd09::1") == [there, there, here, here]
    assert place(found, "127.0.0.1", "127.0.0.53", "::1", "10.9.0.255") == [here] * 4
    assert place(found, "224.0.0.251", "255.255.255.255", "ff02::fb") == [here] * 3
    assert place(found, "10.9.0.7", "fd09::7", "240.0.0.1", "0.0.0.0") == [0] * 4
    assert place(found) == []


def test_a_new_address(found: Namespaces, container: Container) -> None:
    assert place(found, "10.9.0.3") == [0]
    with netns.inside(container.ns):
        subprocess.run(["ip", "addr", "add", "10.9.0.3/24", "dev", "eth"], check=True)
    found.look(10.0)
    assert place(found, "10.9.0.3") == [container.number]


def test_questions_in_a_namespace(found: Namespaces, container: Container) -> None:
    with netns.inside(container.ns):
        bound = socket.socket(type=socket.SOCK_DGRAM)
        bound.bind((INNER, 0))
    with bound:
        asked = of(UDP, bound, (OUTER, 9))
        assert found.ask(container.number, asked)["cookie"][0] == cookie(bound)
        assert not found.ask(found.home, asked)["found"][0]
        translated, inner = found.inner(container.number, asked)
        assert not translated[0]
        assert (inner == asked).all()
        with found.entered(container.number):
            assert os.stat("/proc/thread-self/ns/net").st_ino == container.number
        assert os.stat("/proc/thread-self/ns/net").st_ino == found.home


def test_closed_sockets_of_a_namespace(found: Namespaces, container: Container) -> None:
    with contextlib.closing(ClosingSockets(everywhere=True)) as closing:
        with netns.inside(container.ns):
            there = socket.socket(type=socket.SOCK_DGRAM)
            there.bind((INNER, 0))
        here = socket.socket(type=socket.SOCK_DGRAM)
        here.bind((OUTER, 0))
        expected = {
            (container.number, cookie(there), there.getsockname()),
            (found.home, cookie(here), here.getsockname()),
        }
        there.close()
        here.close()
        told: set[tuple[int, int, tuple[str, int]]] = set()
        while not expected <= told:
            assert select.select([closing], [], [], PATIENCE_S)[0]
            ids, rows, info = closing.read_everywhere()
            numbers = found.numbers_of(ids).tolist()
            told |= {
                (number, int(i["cookie"]), ends(row)[1])
                for number, row, i in zip(numbers, rows, info, strict=True)
            }
        assert found.numbers_of(np.array([-1, 12345])).tolist() == [found.home, 0]


@pytest.mark.usefixtures("inside")
def test_a_namespace_ends_with_its_last_process() -> None:
    """Nothing of ours keeps it alive: its veth goes, too."""
    ns = netns.fresh()
    peer = f"/proc/{os.getpid()}/fd/{ns}"
    subprocess.run(
        ["ip", "link", "add", "end", "type", "veth", "peer", "x", "netns", peer], check=True
    )
    namespaces = Namespaces()
    number = os.fstat(ns).st_ino
    with process_in(ns):
        os.close(ns)
        walk(namespaces)
        assert number in namespaces.numbers
        namespaces.ask(number, tuples((UDP, (INNER, 1), (OUTER, 1))))
    begin = time.monotonic()
    while "end" in {name for _, name in socket.if_nameindex()}:
        assert time.monotonic() < begin + PATIENCE_S
    with pytest.raises(ProcessLookupError, match=str(number)):
        namespaces.ask(number, tuples((UDP, (INNER, 1), (OUTER, 1))))
    walk(namespaces)
    assert number not in namespaces.numbers
    namespaces.close()


@pytest.mark.usefixtures("inside")
def test_a_thread_in_another_namespace(container: Container) -> None:
    """As the holders of sockets tell it; the process's main thread is elsewhere."""
    namespaces = Namespaces()
    assert namespaces.numbers == (namespaces.home,)
    leave = threading.Event()
    entered = threading.Event()

    def stay() -> None:
        enter_network(container.ns)
        entered.set()
        leave.wait(PATIENCE_S)

    namespaces.saw(container.number, os.getpid())
    with pytest.raises(ProcessLookupError):
        namespaces.ask(container.number, tuples((UDP, (INNER, 1), (OUTER, 1))))
    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(PATIENCE_S)
    namespaces.look(10.0)
    leave.set()
    thread.join()
    assert place(namespaces, INNER) == [container.number]
    namespaces.close()


def test_small_budgets_see_every_process(found: Namespaces, container: Container) -> None:
    fresh = Namespaces()
    for _ in range(20_000):
        fresh.look(0)
        if container.number in fresh.numbers:
            break
    assert place(fresh, INNER) == [container.number]
    fresh.close()


def test_new_namespaces_are_read_whatever_the_budget(
    inside: None, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpf.sockets.namespaces._processes", lambda: repeat(os.getpid()))
    namespaces = Namespaces()
    # Old ones use up the budget. No process is a way into them.
    for number in range(1, 5):
        namespaces.saw(number, os.getpid())
    namespaces.look(0)
    assert place(namespaces, INNER) == [0]
    namespaces.saw(container.number, os.getpid())  # It was in there, and has left.
    namespaces.look(0)
    assert place(namespaces, INNER) == [0]
    namespaces.saw(container.number, container.tgid)
    namespaces.look(0)
    assert place(namespaces, INNER) == [container.number]
    namespaces.close()


def test_without_the_right_to_enter(home: int, container: Container) -> None:
    """Without CAP_SYS_ADMIN the own namespace is known, and the others are refused."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            enter_network(home)
            without_sys_admin()
            namespaces = Namespaces()
            walk(namespaces)
            assert container.number in namespaces.numbers
            assert place(namespaces, OUTER, INNER) == [namespaces.home, 0]
            assert "not permitted" in namespaces.refused
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
