"""The finder against real routers: who answers at which hop, and nothing beside that."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable

import pytest

from app.lab.netns import inside
from app.lab.plan import SERVER
from bpf.attach.interface import Interface, find
from probes.path.active.echo import EchoEngine, EchoOutcome
from probes.path.active.finder import Finder, FinderAnswer
from probes.path.slots import Destination
from probes.path.targets import destination_of
from tests.probes.deck import link
from tests.probes.path.active.conftest import KEY, MakeRow, Row
from tests.support.veth import join, veth_pair
from tests.support.waiting import wait_for

VERSIONS = pytest.mark.parametrize("version", [4, 6])


def found(
    finder: Finder, row: Row, version: int, hops: Iterable[int], wanted: int
) -> dict[int, FinderAnswer]:
    """Ask once, and return the answers by TTL; Exactly `wanted` come."""
    finder.ask(row.destination(version), hops)
    answers: dict[int, FinderAnswer] = {}
    deadline = time.monotonic() + 5
    while len(answers) < wanted and time.monotonic() < deadline:
        for answer in finder.answers():
            assert answer.ttl not in answers
            answers[answer.ttl] = answer
        time.sleep(0.02)
    time.sleep(0.2)
    assert finder.answers() == []
    return answers


@VERSIONS
def test_routers_and_destination_answer_but_silent_routers(make_row: MakeRow, version: int) -> None:
    row = make_row(silent=("r2",))
    finder = Finder(find(row.interface), KEY)
    try:
        answers = found(finder, row, version, range(1, 8), 6)
    finally:
        finder.close()
    assert sorted(answers) == [1, 3, 4, 5, 6, 7]
    assert {ttl: answer.is_destination for ttl, answer in answers.items()} == {
        1: False, 3: False, 4: False, 5: True, 6: True, 7: True,
    }  # fmt: skip
    assert [answers[hop].responder for hop in (1, 3, 4)] == [
        row.router(h, version) for h in (1, 3, 4)
    ]
    assert finder.failure == ""


@VERSIONS
def test_a_firewall_that_drops_echo_hides_only_the_destination(
    make_row: MakeRow, version: int
) -> None:
    row = make_row()
    kind = "icmp" if version == 4 else "icmpv6"
    row.nft(SERVER, "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
            f"add rule inet t c {kind} type echo-request drop")  # fmt: skip
    finder = Finder(find(row.interface), KEY)
    try:
        answers = found(finder, row, version, range(1, 8), 4)
    finally:
        finder.close()
    assert sorted(answers) == [1, 2, 3, 4]
    assert not any(answer.is_destination for answer in answers.values())


@VERSIONS
def test_behind_address_translation(make_row: MakeRow, version: int) -> None:
    """A masquerade at hop 2: the quotes of later routers are translated back."""
    row = make_row()
    family = "ip" if version == 4 else "ip6"
    row.nft(
        "r2",
        f"add table {family} n; "
        f"add chain {family} n p {{ type nat hook postrouting priority 100; }}; "
        f'add rule {family} n p oifname "right" masquerade',
    )
    finder = Finder(find(row.interface), KEY)
    try:
        answers = found(finder, row, version, range(1, 6), 5)
    finally:
        finder.close()
    assert [answers[hop].is_destination for hop in range(1, 6)] == [False] * 4 + [True]


def test_many_hops_are_asked_at_a_limited_rate(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    finder = Finder(find(row.interface), KEY)
    try:
        started = time.monotonic()
        answers = found(finder, row, 4, range(1, 31), 30)
        assert sorted(answers) == list(range(1, 31))
        assert time.monotonic() - started > (30 - 12) / 40
    finally:
        finder.close()


def test_nothing_is_open_until_a_hop_is_asked_and_after_the_end(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    before = set(os.listdir("/proc/self/fd"))
    finder = Finder(find(row.interface), KEY)
    assert finder.answers() == []
    assert set(os.listdir("/proc/self/fd")) == before
    found(finder, row, 4, [1], 1)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    finder.close()
    assert set(os.listdir("/proc/self/fd")) == before
    finder.ask(row.destination(4), [1])
    assert finder.answers() == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_refused_request_is_no_error_of_the_caller(make_row: MakeRow) -> None:
    row = make_row(routers=1)
    row.run("client", "ip", "route", "del", "default")
    row.run("client", "ip", "-6", "route", "del", "default")
    finder = Finder(Interface("none", 99999, ethernet=True), KEY)
    finder.ask(row.destination(4), [1, 2])
    assert finder.answers() == []
    assert finder.failure == os.strerror(19)
    finder.close()


@VERSIONS
def test_ping_beside_it_is_undisturbed(make_row: MakeRow, version: int) -> None:
    """The host's own ping gets its replies, once each, and the finder none of them."""
    row = make_row(routers=2)
    finder = Finder(find(row.interface), KEY)
    try:
        finder.ask(row.destination(version), [1])
        finder.answers()
        ping = subprocess.Popen(
            ["ping", "-c", "20", "-i", "0.02", row.server[version]],
            stdout=subprocess.PIPE,
            text=True,
        )
        count = 0
        while ping.poll() is None:
            finder.ask(row.destination(version), range(1, 5))
            count += len(finder.answers())
            time.sleep(0.05)
        out, _ = ping.communicate()
    finally:
        finder.close()
    assert "20 received, 0% packet loss" in out
    assert "DUP" not in out
    assert count > 4


@VERSIONS
def test_large_requests_are_never_fragmented(make_row: MakeRow, version: int) -> None:
    """A router reports the smaller link; a request larger than the interface's MTU is refused."""
    row = make_row()
    row.mtu(2, 1300)
    engine = EchoEngine(find(row.interface), KEY)
    try:
        with pytest.raises(OSError, match="too long"):
            engine.send(row.destination(version), 30, 1501)
        for size in (1300, 1301, 1500):
            engine.send(row.destination(version), 30, size)
        time.sleep(0.2)
        answers = {answer.request.size: answer for answer in engine.answers()}
    finally:
        engine.close()
    assert {size: answer.outcome for size, answer in answers.items()} == {
        1300: EchoOutcome.REPLY, 1301: EchoOutcome.TOO_BIG, 1500: EchoOutcome.TOO_BIG,
    }  # fmt: skip
    assert answers[1500].mtu == 1300
    assert answers[1500].responder == row.router(2, version)


def test_requests_leave_by_an_interface_that_returned() -> None:
    """Its sockets were bound to the interface before."""
    with veth_pair() as (left, right), inside(left.ns):
        used = find("left")
        finder = Finder(used, KEY)
        far = [destination_of(address) for address in (right.ipv4, right.ipv6)]
        wait_for(lambda: answered(finder, far[0]) and answered(finder, far[1]))
        link(left, "del")
        join(left, right)
        used.index = find("left").index
        wait_for(lambda: answered(finder, far[0]) and answered(finder, far[1]))
        finder.close()


def answered(finder: Finder, far: Destination) -> bool:
    finder.ask(far, [1])
    return any(answer.destination == far for answer in finder.answers())
