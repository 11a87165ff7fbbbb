"""The search for owners, on a host without a kernel: each answer, its source and its reason."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.sockets.diag import SocketState
from probes.sockets.owners.known import Known
from probes.sockets.owners.resolver import ONLY_SYN, Resolver
from probes.sockets.owners.rows import OwnerAnswers, questions_of
from probes.sockets.records import By, Reason
from tests.probes.flow.test_grouping import HERE, IN, OUT, THERE, both, flow
from tests.probes.sockets.fakes import INSIDE, FakeHost, a_tuple, closes, event, held

UDP, ICMP = socket.IPPROTO_UDP, socket.IPPROTO_ICMP
NEAR, FAR = (HERE, 40001), (THERE, 443)
FLOWS = both(HERE, THERE, 40001, 443)
BEGAN_S = 99.0


class Case:
    """A resolver with its host and knowledge."""

    def __init__(self) -> None:
        self.host, self.known = FakeHost(), Known()
        self.resolver = Resolver(self.known, self.host, 10)

    def look(self, *rows: Array) -> OwnerAnswers:
        return self.resolver.resolve(questions_of(np.concatenate(rows)), BEGAN_S)

    def only(self, *rows: Array) -> tuple[int, By, Reason]:
        """The owner, the source and the reason of the only question."""
        answers = self.look(*rows)
        assert len(answers.owner) == 1
        return answered(answers, 0)

    def learn(self, rows: Array) -> None:
        self.known.take_events(rows, self.host.now_s)

    def hold(self, *rows: Array) -> None:
        self.known.take_holders(np.concatenate(rows), self.known.passes + 1)


def answered(answers: OwnerAnswers, at: int) -> tuple[int, By, Reason]:
    who = answers.owner[at]
    return who.tgid if who else 0, By(answers.by[at]), Reason(answers.reason[at])


@pytest.fixture
def case() -> Case:
    return Case()


def test_the_best_source_names_the_owner(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    case.learn(closes(cookie, 3))
    assert case.only(FLOWS) == (3, By.CLOSED, Reason.OWNED)
    case.learn(event(cookie, 2))
    assert case.only(FLOWS) == (2, By.OPENED, Reason.OWNED)
    case.hold(held([cookie], 1234))
    assert case.only(FLOWS) == (1234, By.HOLDS, Reason.OWNED)


def test_the_opener_owns_what_several_hold(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    case.hold(held([cookie], 20), held([cookie], 10), held([cookie], 30))
    assert case.only(FLOWS) == (10, By.HOLDS, Reason.SEVERAL)
    case.learn(event(cookie, 30))
    answers = case.look(FLOWS)
    assert (answered(answers, 0), answers.holders[0]) == ((30, By.HOLDS, Reason.OWNED), 3)


def test_init_gave_its_socket_to_a_service(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    case.hold(held([cookie], 1), held([cookie], 500))
    case.learn(event(cookie, 1))
    assert case.only(FLOWS) == (500, By.HOLDS, Reason.OWNED)


def test_a_number_of_a_process_comes_again(case: Case) -> None:
    first = case.host.own.open(NEAR, FAR)
    second = case.host.own.open((HERE, 40002), FAR)
    case.learn(event(first, 9, start_ns=10_000_000, comm="old"))
    case.learn(event(second, 9, start_ns=20_000_000, comm="new"))
    answers = case.look(FLOWS, both(HERE, THERE, 40002, 443))
    assert {who.comm for who in answers.owner if who} == {b"old", b"new"}


def test_a_closed_socket_is_told_by_its_ends(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    case.host.own.close(*(NEAR, FAR))
    case.host.waiting.append(event(cookie, 8))
    answers = case.look(FLOWS)
    assert answered(answers, 0) == (8, By.OPENED, Reason.OWNED)
    assert (answers.info["cookie"][0], answers.info["state"][0]) == (cookie, SocketState.CLOSE)


def test_time_wait_has_its_closed_socket_and_else_is_the_kernels(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    case.learn(event(cookie, 8))
    case.host.own.close(NEAR, FAR)
    case.host.own.open(NEAR, FAR, state=SocketState.TIME_WAIT)
    case.host.own.open((HERE, 40002), FAR, state=SocketState.TIME_WAIT)
    answers = case.look(FLOWS, flow(OUT, HERE, THERE, 40002, 443, bytes=1))
    assert answered(answers, 0) == (8, By.OPENED, Reason.OWNED)
    assert answered(answers, 1) == (0, By.NONE, Reason.KERNEL)
    # The event of its closed socket may come later.
    assert case.resolver.late(answers).tolist() == [1]


def test_a_socket_without_a_process_has_its_cgroup_until_nobody_holds_it(case: Case) -> None:
    case.host.own.open((HERE, 4789), protocol=UDP)
    rows = flow(IN, THERE, HERE, 4789, 4789, UDP)
    answers = case.look(rows)
    owner = answers.owner[0]
    assert owner
    assert (owner.tgid, owner.cgroup, answers.by[0]) == (0, 77, By.CGROUP)
    for _ in range(2):
        case.hold(held([4], 4))
    assert case.only(rows) == (0, By.NONE, Reason.KERNEL)


def test_without_cgroups_the_socket_of_no_process_is_said(case: Case) -> None:
    case.host.own.open(NEAR, FAR, cgroup=1)
    assert case.only(FLOWS) == (0, By.NONE, Reason.UNSEEN)


def test_a_container_is_asked_in_its_namespace_whatever_end_it_is(case: Case) -> None:
    cookie = case.host.container.open((INSIDE, 40001), FAR)
    case.learn(event(cookie, 71))
    uplink = both(INSIDE, THERE, 40001, 443)
    bridge = np.concatenate(
        [flow(IN, INSIDE, THERE, 40001, 443), flow(OUT, THERE, INSIDE, 443, 40001)]
    )
    for rows in (uplink, bridge):
        answers = case.look(rows)
        assert answered(answers, 0) == (71, By.OPENED, Reason.OWNED)
        assert (answers.space[0], case.host.own.asked) == (2, 0)
    case.host.container.refuses = True
    assert case.only(uplink) == (0, By.NONE, Reason.OTHER_NAMESPACE)


def test_translated_ends_are_asked_for_inside(case: Case) -> None:
    cookie = case.host.container.open((INSIDE, 5555), FAR)
    case.learn(event(cookie, 72))
    case.host.translate(a_tuple(NEAR, FAR), a_tuple((INSIDE, 5555), FAR))
    answers = case.look(FLOWS)
    assert answered(answers, 0) == (72, By.OPENED, Reason.OWNED)
    assert (answers.nat[0], answers.inside[0]) == (True, 2)
    case.host.translate(a_tuple(NEAR, FAR), a_tuple(("10.9.9.9", 5555), FAR))
    assert case.only(FLOWS) == (0, By.NONE, Reason.FORWARDED)
    case.host.tracks = False
    assert case.only(FLOWS) == (0, By.NONE, Reason.NAT_UNRESOLVED)


def test_a_proxy_that_listens_on_a_translated_port_is_no_owner(case: Case) -> None:
    proxy = case.host.own.listen((HERE, 8080))
    served = case.host.container.open((INSIDE, 80), (THERE, 5000))
    case.learn(event(proxy, 50))
    case.learn(event(served, 73))
    case.host.translate(a_tuple((HERE, 8080), (THERE, 5000)), a_tuple((INSIDE, 80), (THERE, 5000)))
    assert case.only(both(HERE, THERE, 8080, 5000)) == (73, By.OPENED, Reason.OWNED)


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", HERE])
def test_a_closed_socket_without_a_far_end_only_in_its_window(case: Case, bound: str) -> None:
    far = ("::" if bound == "::" else "0.0.0.0", 0)
    cookie = case.host.own.open((bound, 5353), far, UDP)
    case.learn(event(cookie, 11))
    case.host.own.close((bound, 5353), far, UDP)
    rows = both(HERE, THERE, 5353, 53, UDP)
    assert case.only(rows) == (11, By.OPENED, Reason.OWNED)
    late = case.resolver.resolve(questions_of(rows), case.host.now_s + 1)
    assert answered(late, 0) == (0, By.NONE, Reason.NO_SOCKET)


def test_refused_and_unanswered(case: Case) -> None:
    tcp = both(HERE, THERE, 81, 5000, tcp_flags=0x14)
    assert case.only(tcp) == (0, By.NONE, Reason.REFUSED)
    udp = flow(IN, THERE, HERE, 5000, 82, UDP)
    assert case.only(udp) == (0, By.NONE, Reason.NO_SOCKET)
    error = flow(OUT, HERE, THERE, 0, 3 << 8 | 3, ICMP, bytes=1)
    answers = case.look(udp, error)
    assert answered(answers, 0) == (0, By.NONE, Reason.REFUSED)
    assert answered(answers, 1) == (0, By.NONE, Reason.KERNEL)
    reset = both(HERE, THERE, 40001, 443, tcp_flags=0x1E)
    assert case.only(reset) == (0, By.NONE, Reason.CLOSED_UNSEEN)
    case.host.losing = True
    assert case.only(udp) == (0, By.NONE, Reason.CLOSED_UNSEEN)


@pytest.mark.parametrize(("since_s", "reasons"), [
    (BEGAN_S + 0.5, {Reason.CLOSED_UNSEEN, Reason.REFUSED}),
    (BEGAN_S, {Reason.NO_SOCKET, Reason.KERNEL, Reason.REFUSED}),
])  # fmt: skip
def test_sockets_may_have_closed_before_the_sources_were_ready(
    case: Case, since_s: float, reasons: set[Reason]
) -> None:
    case.host.since_s = since_s
    case.host.own.open(NEAR, FAR, state=SocketState.TIME_WAIT)
    refused = both(HERE, THERE, 81, 5000, tcp_flags=0x14)
    answers = case.look(FLOWS, refused, flow(IN, THERE, HERE, 5000, 82, UDP))
    assert {Reason(each) for each in answers.reason} == reasons


def test_a_late_source_is_asked_again(case: Case) -> None:
    cookie = case.host.own.open(NEAR, FAR)
    home = case.host.own
    home.close(NEAR, FAR)
    home.is_late = True
    answers = case.look(FLOWS)
    assert answered(answers, 0) == (0, By.NONE, Reason.NO_SOCKET)
    assert case.resolver.late(answers).tolist() == [0]
    home.is_late = False
    case.host.waiting.append(event(cookie, 5))
    case.resolver.look_again(answers, BEGAN_S)
    assert answered(answers, 0) == (5, By.OPENED, Reason.OWNED)
    assert not len(case.resolver.late(answers))


def test_forwarded_flows_and_unreadable_namespaces(case: Case) -> None:
    rows = both("192.0.2.99", THERE, 1, 2)
    assert case.only(rows) == (0, By.NONE, Reason.FORWARDED)
    case.host.unreadable = True
    assert case.only(rows) == (0, By.NONE, Reason.OTHER_NAMESPACE)
    assert case.host.own.asked == 0


def test_the_largest_flows_are_asked_and_the_others_counted(case: Case) -> None:
    case.host.own.open(NEAR, FAR)
    small = [flow(OUT, HERE, THERE, port, 443) for port in range(1, 21)]
    large = both(HERE, THERE, 40001, 443)
    large["bytes"] = 10**6
    answers = case.look(*small, large)
    assert (answers.listed.sum(), answers.listed[0]) == (10, True)
    assert answers.info["found"][0]
    assert (answers.reason == Reason.NOT_ASKED).sum() == 11


def test_a_flood_of_syn_is_not_asked_for(case: Case) -> None:
    flood = [flow(IN, THERE, HERE, port, 80, tcp_flags=0x02) for port in range(2000, 2000 + 300)]
    case.look(*flood)
    assert case.host.own.asked == ONLY_SYN


ECHO = 8 << 8


def ping(direction: int, identifier: int) -> Array:
    asks, tells = (HERE, THERE) if direction == OUT else (THERE, HERE)
    request = flow(direction, asks, tells, identifier, ECHO, ICMP)
    answer = flow(1 - direction, tells, asks, identifier, 0, ICMP)
    return np.concatenate([request, answer])


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_RAW])
def test_an_echo_is_of_the_process_with_its_identifier(case: Case, kind: int) -> None:
    fields: dict[str, Any] = {"protocol": ICMP, "type": kind}
    rows = [held([tgid], tgid, port=tgid, **fields) for tgid in (77, 78)]
    case.hold(*rows)
    assert case.only(ping(OUT, 78)) == (78, By.HOLDS, Reason.OWNED)
    assert case.only(ping(IN, 78)) == (0, By.NONE, Reason.KERNEL)


def test_a_short_ping_is_of_the_only_one_who_opened_a_socket_for_it(case: Case) -> None:
    case.learn(event(1, 90, protocol=ICMP))
    assert case.only(ping(OUT, 5)) == (90, By.OPENED, Reason.OWNED)
    case.learn(event(2, 91, protocol=ICMP))
    assert case.only(ping(OUT, 5))[2] is Reason.SEVERAL


def test_other_protocols_are_the_kernels_or_of_who_has_a_raw_socket(case: Case) -> None:
    rows = both(HERE, THERE, 0, 0, 89)
    assert case.only(rows) == (0, By.NONE, Reason.KERNEL)
    case.hold(held([5], 55, protocol=89, type=socket.SOCK_RAW))
    assert case.only(rows) == (55, By.HOLDS, Reason.OWNED)


def test_answers_take_a_share_of_a_core_in_a_flood_and_count_the_rest(case: Case) -> None:
    """D8: 9,000 new flows of UDP a second took 962 ms of it, and then nothing was told."""
    case.resolver = Resolver(case.known, case.host)
    flood = [flow(IN, THERE, HERE, port, 9, protocol=UDP) for port in range(2000, 3500)]

    def asked() -> int:
        answers = case.look(*flood)
        reasons = answers.reason == Reason.NOT_ASKED
        assert (~answers.listed == reasons).all()
        return len(reasons) - int(reasons.sum())

    assert asked() == 1500
    case.resolver.spend(spent_s=0.5, window_s=1.0)
    assert asked() == 1000
    case.resolver.spend(spent_s=5.0, window_s=1.0)
    assert asked() == 200, "never less"
    for often in range(1, 6):
        case.resolver.spend(spent_s=0.001, window_s=1.0)
        assert asked() == min(200 << often, 1500), "and more again, once there is time"
