"""The lab's ground truth against the real kernel: who answers at each hop, how late, by which way.

Lines of the checklist that lean on it: S3.9 (a silent hop), S3.20 (route change, load-balanced
paths), S3.22 (IPv4 and IPv6).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from app.lab.network import Lab
from app.lab.plan import LIMITED_SECONDS, MAX_DETOUR, TWIN_LINKS, Detour, LabPlan
from bpf.errors import UsageError
from tests.support.lab_truth import delay, hops, interface_counters, silence
from tests.support.sight import assert_gone, becomes, namespaces_of, node

FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
SO_RCVBUFFORCE = 33
PORT = 33434
DELAYS = {1: 0.002, 3: 0.010, 5: 0.005}
PLAN = LabPlan(delays=DELAYS, twin=3, detour=Detour(4), silent=("r6",), limited=("r2",))
SILENT_HOP = 6
SERVER_HOP = 7
TOLERANCE = 0.0005
"""Seconds; more than the cables' error on a machine that is shared."""
EXTENDED_ERROR = struct.Struct("@IBBBBII")
"""struct sock_extended_err; the responder's struct sockaddr follows."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(PLAN, traffic=False) as lab:
        yield lab


class Tracer:
    """A UDP flow from the client to the server, which reads its ICMP errors."""

    def __init__(self, lab: Lab, family: socket.AddressFamily, port: int = 0) -> None:
        six = family == socket.AF_INET6
        self._level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
        self._ttl = socket.IPV6_UNICAST_HOPS if six else socket.IP_TTL
        with node(lab):
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
        # IPV6_RECVERR and IP_RECVERR.
        self._socket.setsockopt(self._level, 25 if six else 11, 1)
        self._socket.bind(("", port))
        self._socket.connect((lab.server_ipv6 if six else lab.server_ipv4, PORT))

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def probe(self, hop: int, wait: float = 1.0) -> tuple[str, float]:
        """The address that answers at `hop`, and the seconds until then; "" without an answer."""
        self._socket.setsockopt(self._level, self._ttl, hop)
        self._forget()
        sent = time.monotonic()
        self._socket.send(b"probe")
        poll = select.poll()
        poll.register(self._socket, 0)
        while poll.poll(wait * 1000):
            seconds = time.monotonic() - sent
            with contextlib.suppress(BlockingIOError):
                _, ancillary, _, _ = self._socket.recvmsg(64, 512, socket.MSG_ERRQUEUE)
                break
            self._forget()
        else:
            return "", wait
        address = ancillary[0][2][EXTENDED_ERROR.size :]
        packed = address[8:24] if self._level == socket.IPPROTO_IPV6 else address[4:8]
        return str(ip_address(packed)), seconds

    def _forget(self) -> None:
        """Take the error that the kernel may set once more after its message was read."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def truth(lab: Lab, name: str, family: socket.AddressFamily) -> str:
    addresses = lab.plan.addresses(name)
    return addresses.ipv6 if family == socket.AF_INET6 else addresses.ipv4


def expected(lab: Lab, family: socket.AddressFamily, detour: bool = False) -> list[set[str]]:
    return [{truth(lab, name, family) for name in hop} for hop in hops(lab.plan, detour)]


def test_the_plan_tells_the_path() -> None:
    assert hops(PLAN) == (
        ("r1",), ("r2",), ("r3", "r3b"), ("r4",), ("r5",), ("r6",), ("server",),
    )  # fmt: skip
    assert hops(PLAN, detour=True)[3:6] == (("r4",), ("d1",), ("d2",))
    assert hops(PLAN, detour=True)[6:] == (("r5",), ("r6",), ("server",))
    assert [delay(PLAN, hop) for hop in (1, 2, 3, 4, 7)] == pytest.approx(
        [0, 0.004, 0.004, 0.024, 0.034]
    )
    assert PLAN.addresses("r3b").ipv4 == "10.94.100.2"
    assert LabPlan.parse(PLAN.dump()) == PLAN
    assert LabPlan.parse(LabPlan().dump()) == LabPlan()


@FAMILIES
def test_hops_answer_as_the_plan_says(lab: Lab, family: socket.AddressFamily) -> None:
    with Tracer(lab, family) as tracer:
        for hop, who in enumerate(expected(lab, family), 1):
            if hop != SILENT_HOP:
                assert tracer.probe(hop)[0] in who, hop


@FAMILIES
@pytest.mark.timing
def test_delay_is_as_asked_for(lab: Lab, family: socket.AddressFamily) -> None:
    through = truth(lab, "r3", family)
    # Only flows through r3 pass link 3.
    port = next(port for port in range(40000, 40064) if at(lab, family, port, 3) == through)
    with Tracer(lab, family, port) as tracer:
        for hop in (1, 3, 4, 5, SERVER_HOP):
            # The client's own system calls count too, and are not the cable's.
            tracer.probe(hop)
            seconds = [tracer.probe(hop)[1] for _ in range(15)]
            error = statistics.median(seconds) - delay(lab.plan, hop)
            print(f"hop {hop}: {delay(lab.plan, hop) * 1e3:.0f} ms, error {error * 1e6:.0f} us")
            assert -TOLERANCE < error < TOLERANCE


def at(lab: Lab, family: socket.AddressFamily, port: int, hop: int) -> str:
    with Tracer(lab, family, port) as tracer:
        return tracer.probe(hop)[0]


@FAMILIES
def test_flows_are_shared_out_and_stay(lab: Lab, family: socket.AddressFamily) -> None:
    """S3.20: the two ways agree with the routers' own counters."""
    count, size = 10, 5 + (48 if family == socket.AF_INET6 else 28) + 14
    before = [interface_counters(lab, "r2", name) for name in ("right", "right2")]
    seen: Counter[str] = Counter()
    for port in range(41000, 41024):
        with Tracer(lab, family, port) as tracer:
            answers = {tracer.probe(3)[0] for _ in range(count)}
        assert len(answers) == 1, "a flow keeps its path"
        seen.update(answers)
    ways = [truth(lab, name, family) for name in ("r3", "r3b")]
    assert set(seen) == set(ways)
    after = [interface_counters(lab, "r2", name) for name in ("right", "right2")]
    for way, old, new in zip(ways, before, after, strict=True):
        # Neighbour discovery adds a packet or two.
        assert 0 <= new.sent_packets - old.sent_packets - seen[way] * count <= 8
        assert 0 <= new.sent_bytes - old.sent_bytes - seen[way] * count * size <= 8 * 100


@FAMILIES
def test_a_silent_hop_says_nothing_and_passes_all(lab: Lab, family: socket.AddressFamily) -> None:
    """S3.9."""
    with Tracer(lab, family) as tracer:
        assert tracer.probe(SILENT_HOP, 0.1)[0] == ""
        assert tracer.probe(SERVER_HOP)[0] == truth(lab, "server", family)
        silence(lab, "r4", True)
        try:
            assert tracer.probe(4, 0.1)[0] == ""
            assert tracer.probe(5)[0] == truth(lab, "r5", family)
        finally:
            silence(lab, "r4", False)
        assert tracer.probe(4)[0] == truth(lab, "r4", family)


@FAMILIES
def test_a_limited_hop_answers_now_and_then(lab: Lab, family: socket.AddressFamily) -> None:
    with Tracer(lab, family) as tracer:
        # The first six are let through at once.
        for _ in range(10):
            tracer.probe(2, 0.01)
        began = time.monotonic()
        answers = [tracer.probe(2, 0.01)[0] for _ in range(80)]
        often = (time.monotonic() - began) / LIMITED_SECONDS
    assert set(answers) == {"", truth(lab, "r2", family)}
    # For IPv6, some kernels divide the time by four.
    most = often * (4 if family == socket.AF_INET6 else 1)
    assert often - 2 <= sum(map(bool, answers)) <= most + 2


def numbers(receiver: socket.socket) -> list[int]:
    """Numbers in the datagrams that have arrived, or arrive soon."""
    found = []
    receiver.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        while True:
            found.append(int.from_bytes(receiver.recv(64), "big"))
    return found


@contextlib.contextmanager
def nothing_lost(lab: Lab, family: socket.AddressFamily) -> Iterator[None]:
    """Send about a thousand datagrams a second to the server: each one arrives, and once."""
    address = lab.server_ipv6 if family == socket.AF_INET6 else lab.server_ipv4
    with node(lab, "server"):
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with node(lab):
        sender = socket.socket(family, socket.SOCK_DGRAM)
    end = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not end.wait(0.001):
            sender.send(sent.to_bytes(4, "big"))
            sent += 1

    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        receiver.bind((address, 7))
        sender.connect((address, 7))
        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        arrived = numbers(receiver)
    assert sent > 50
    assert sorted(arrived) == list(range(sent))


@FAMILIES
def test_a_detour_makes_the_path_longer(lab: Lab, family: socket.AddressFamily) -> None:
    """S3.20: the route changes while packets are under way."""
    with Tracer(lab, family) as tracer:

        def see(detour: bool) -> None:
            for hop, who in enumerate(expected(lab, family, detour), 1):
                if who not in unsure:
                    assert tracer.probe(hop)[0] in who, hop

        unsure = [{truth(lab, name, family)} for name in ("r2", "r6")]
        see(detour=False)
        with nothing_lost(lab, family):
            time.sleep(0.05)
            before = time.monotonic_ns()
            assert before < lab.detour(True) < time.monotonic_ns()
            time.sleep(0.05)
            see(detour=True)
            lab.detour(False)
            time.sleep(0.05)
        see(detour=False)


def test_twins_and_detours_may_be_as_long_as_it_gets() -> None:
    plan = LabPlan(30, twin=2, detour=Detour(29, MAX_DETOUR), delays={TWIN_LINKS[1]: 0.003})
    with Lab(plan, traffic=False) as lab, Tracer(lab, socket.AF_INET6) as tracer:
        lab.detour(True)
        hops = expected(lab, socket.AF_INET6, detour=True)
        assert len(hops) == 31 + MAX_DETOUR
        assert tracer.probe(len(hops))[0] == lab.server_ipv6
        assert tracer.probe(35)[0] in hops[34]


@pytest.mark.timing
def test_cables_carry_five_thousand_packets_a_second() -> None:
    plan = LabPlan(2, bottleneck_bits=0, delays={1: 0.010})
    with Lab(plan, traffic=False) as lab:
        with node(lab, "server"):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with node(lab):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiver, sender:
            receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
            receiver.bind((lab.server_ipv4, 7))
            sender.connect((lab.server_ipv4, 7))
            began = time.monotonic()
            for number in range(2500):
                sender.send(number.to_bytes(4, "big"))
                while number / 5000 > time.monotonic() - began:
                    time.sleep(0.0001)
            assert numbers(receiver) == list(range(2500)), "all arrive, in order"


@pytest.mark.slow
def test_a_killed_carrier_is_replaced() -> None:
    with Lab(PLAN, traffic=False) as lab:
        first = lab.pids
        spaces = namespaces_of(first[:1])
        os.kill(first[1], signal.SIGKILL)
        assert becomes(lambda: len(lab.pids) == 2 and lab.pids != first)
        second = lab.pids
        with Tracer(lab, socket.AF_INET) as tracer:
            assert tracer.probe(4)[0] == lab.plan.addresses("r4").ipv4
    assert_gone(first + second, spaces, len(PLAN.nodes))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (LabPlan(0), "a lab of 0 routers is not possible; 1 to 30"),
        (LabPlan(bottleneck_bits=-1), "a bottleneck below zero"),
        (LabPlan(twin=1), "a twin of r1 is not possible; 2 to 5"),
        (LabPlan(twin=6), "a twin of r6"),
        (LabPlan(detour=Detour(0)), "a detour of link 0 is not possible; 1 to 5"),
        (LabPlan(detour=Detour(6)), "a detour of link 6"),
        (LabPlan(detour=Detour(3, 0)), "a detour of 0 routers"),
        (LabPlan(detour=Detour(3), twin=3), "a detour beside the twin"),
        (LabPlan(delays={0: 0.1}), "a delay of link 0"),
        (LabPlan(delays={TWIN_LINKS[0]: 0.1}), "a delay of link 100"),
        (LabPlan(delays={3: 0}), "a delay of 0 s"),
        (LabPlan(silent=("client",)), "'client' as a silent"),
        (LabPlan(limited=("r7",)), "'r7' as a silent or limited router"),
    ],
)
def test_impossible_plans_are_refused(plan: LabPlan, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Lab(plan)


def test_what_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match="no interface 'eth0'"):
        interface_counters(lab, "r1", "eth0")
    with pytest.raises(UsageError, match="no node 'r7'"):
        silence(lab, "r7", True)
    with pytest.raises(UsageError, match="no detour"), Lab(traffic=False) as plain:
        plain.detour(True)
