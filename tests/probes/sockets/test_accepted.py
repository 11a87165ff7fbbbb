"""Owners of accepted connections: who holds them, who closed them, or who listens."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from probes.sockets.holders import CLOSED
from probes.sockets.records import By, Reason
from tests.probes.flow.test_grouping import HERE, THERE, both
from tests.probes.sockets.fakes import closes, event, held
from tests.probes.sockets.test_resolver import BEGAN_S, Case, answered
from tests.probes.sockets.test_resolver import case as case


def test_an_accepted_socket_has_the_owner_of_its_listener(case: Case) -> None:
    listener = case.host.own.listen((HERE, 80))
    case.host.own.open((HERE, 80), (THERE, 5000), inode=0)
    rows = both(HERE, THERE, 80, 5000)
    case.learn(event(listener, 60))
    assert case.only(rows) == (60, By.LISTENER, Reason.SEVERAL)
    case.host.families[60] = held([listener], 60)
    assert case.only(rows) == (60, By.LISTENER, Reason.OWNED)
    # Without the connection, the listener itself answers: another process may have accepted it.
    case.host.own.is_late = True
    case.host.own.close((HERE, 80), (THERE, 5000))
    answers = case.look(rows)
    assert answered(answers, 0) == (60, By.LISTENER, Reason.SEVERAL)
    assert case.resolver.late(answers).tolist() == [0]
    case.host.own.is_late = False
    case.host.waiting.append(closes(listener + 1, 62))
    case.resolver.look_again(answers, BEGAN_S)
    assert answered(answers, 0) == (62, By.CLOSED, Reason.OWNED)


def test_connections_that_wait_for_one_of_several_listening_processes(case: Case) -> None:
    listener = case.host.own.listen((HERE, 80))
    case.host.own.open((HERE, 80), (THERE, 5000), inode=0)
    case.learn(event(listener, 60))
    case.hold(held([listener], 60), held([listener], 61))
    assert case.only(both(HERE, THERE, 80, 5000)) == (60, By.LISTENER, Reason.SEVERAL)


class Accepted:
    """An accepted connection to the listener that process 60 opened."""

    ROWS = both(HERE, THERE, 80, 5000)

    def __init__(self, case: Case) -> None:
        self.case = case
        self.listener = case.host.own.listen((HERE, 80))
        self.inode = case.host.own.open((HERE, 80), (THERE, 5000))
        case.learn(event(self.listener, 60))

    def search_finds(self, *rows: Array, complete: bool = True) -> tuple[int, By, Reason]:
        self.case.host.families[60] = np.concatenate([held([self.listener], 60), *rows])
        self.case.host.searches_all = complete
        return self.case.only(self.ROWS)


@pytest.fixture
def accepted(case: Case) -> Accepted:
    return Accepted(case)


def test_an_accepted_socket_is_of_the_descendant_that_holds_it(accepted: Accepted) -> None:
    inode = accepted.inode
    assert accepted.search_finds() == (60, By.LISTENER, Reason.SEVERAL)
    found = accepted.search_finds(held([inode], 62), complete=False)
    assert found == (62, By.HOLDS, Reason.SEVERAL)
    # It must not become the last holder of the closed socket.
    accepted.case.host.own.close((HERE, 80), (THERE, 5000))
    accepted.case.learn(event(inode, 61, CLOSED))
    served = both(HERE, THERE, 80, 5000, tcp_flags=0x1B)
    assert accepted.case.only(served) == (61, By.CLOSED, Reason.OWNED)


@pytest.mark.parametrize(
    ("tgids", "owner"),
    [((62,), (62, By.HOLDS, Reason.OWNED)), ((63, 62), (62, By.HOLDS, Reason.SEVERAL))],
)
def test_a_complete_search_is_sure(
    accepted: Accepted, tgids: tuple[int, ...], owner: tuple[int, By, Reason]
) -> None:
    found = accepted.search_finds(*(held([accepted.inode], tgid) for tgid in tgids))
    assert found == owner


def test_init_is_not_searched_beside_its_service(case: Case) -> None:
    listener = case.host.own.listen((HERE, 80))
    inode = case.host.own.open((HERE, 80), (THERE, 5000))
    case.learn(event(listener, 1))
    case.hold(held([listener], 1), held([listener], 500))
    case.host.families = {1: held([inode], 1), 500: held([inode], 500)}
    assert case.only(both(HERE, THERE, 80, 5000)) == (500, By.HOLDS, Reason.OWNED)
    assert case.host.searched == [500]


def test_a_pass_that_goes_on_is_not_sure(accepted: Accepted) -> None:
    rows = held([accepted.inode], 62)
    accepted.case.host.searches_all = False
    accepted.case.known.take_holders(rows, accepted.case.known.passes)
    assert accepted.case.only(accepted.ROWS) == (62, By.HOLDS, Reason.SEVERAL)
    accepted.case.hold(rows)
    assert accepted.case.only(accepted.ROWS) == (62, By.HOLDS, Reason.OWNED)


YOUNG = 1 << 60
"""Start of a process that is younger than any connection."""
SERVED = both(HERE, THERE, 80, 5000, tcp_flags=0x1B)


@pytest.fixture
def served(case: Case) -> int:
    """The cookie of a closed connection to the listener of process 60; nobody told who closed."""
    case.learn(event(case.host.own.listen((HERE, 80)), 60, cgroup=7))
    cookie = case.host.own.open((HERE, 80), (THERE, 5000), inode=0)
    case.host.own.close((HERE, 80), (THERE, 5000))
    return cookie


@pytest.mark.parametrize("ended", [False, True])
def test_a_child_that_closed_anothers_connection_is_not_its_owner(
    case: Case, served: int, ended: bool
) -> None:
    case.learn(event(served, 61, CLOSED, start_ns=YOUNG, cgroup=7))
    if ended:
        case.host.own.close((HERE, 80))
    assert case.only(SERVED) == (60, By.LISTENER, Reason.SEVERAL)


def test_the_closer_of_a_younger_connection_accepted_it(case: Case, served: int) -> None:
    case.learn(event(served, 61, CLOSED, cgroup=7))
    assert case.only(SERVED) == (61, By.CLOSED, Reason.OWNED)
    # Nobody knows the age of a connection whose begin no window shows.
    old = both(HERE, THERE, 80, 5000, tcp_flags=0x10)
    assert case.only(old) == (60, By.LISTENER, Reason.SEVERAL)


def test_a_listener_that_closes_its_connection_owns_it(case: Case, served: int) -> None:
    case.learn(event(served, 60, CLOSED, start_ns=600_000_000, cgroup=7))
    old = both(HERE, THERE, 80, 5000, tcp_flags=0x10)
    assert case.only(old) == (60, By.CLOSED, Reason.OWNED)


def test_one_of_several_holders_of_a_listener_closed(case: Case, served: int) -> None:
    inode = served - 1
    case.learn(event(served, 61, CLOSED, start_ns=YOUNG, cgroup=7))
    case.hold(held([inode], 60), held([inode], 61, start_ns=YOUNG))
    assert case.only(SERVED) == (61, By.CLOSED, Reason.SEVERAL)


def test_a_service_of_its_own_cgroup_owns_the_connection_that_it_closed(
    case: Case, served: int
) -> None:
    case.learn(event(served, 61, CLOSED, start_ns=YOUNG, cgroup=8))
    assert case.only(SERVED) == (61, By.CLOSED, Reason.OWNED)


def test_the_only_holder_of_a_connection_owns_it_after_its_end(case: Case) -> None:
    case.host.own.listen((HERE, 80))
    cookie = case.host.own.open((HERE, 80), (THERE, 5000))
    case.hold(held([cookie], 62))
    assert case.only(SERVED) == (62, By.HOLDS, Reason.OWNED)
    case.host.own.close((HERE, 80), (THERE, 5000))
    case.learn(event(cookie, 61, CLOSED, start_ns=YOUNG))
    assert case.only(SERVED) == (62, By.HOLDS, Reason.OWNED)
