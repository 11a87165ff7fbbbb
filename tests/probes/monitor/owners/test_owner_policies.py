"""Policies that know owners: selections in the kernel, and conditions."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError, UsageError
from probes.flow.records import FLOW
from probes.monitor.control.culprits import finding_for
from probes.monitor.engine import PolicyStatus
from probes.monitor.options import MonitorOptions
from probes.monitor.owners.follow import FRESH_NS, PATIENCE, REMEMBER_NS
from probes.monitor.owners.window import LastOwners, OwnerWindow
from probes.monitor.policy import Policy
from probes.monitor.state import METRICS_TABLE, PolicyState
from probes.snapshot import Event, History, Snapshot
from probes.sockets.records import OWNER, OWNERSHIP, PROBE, SOCKET, By, Reason
from tests.probes.monitor.bed import Bed, application, frame, tcp, udp

HOST, PEER, OTHER = "198.51.100.2", "192.0.2.7", "192.0.2.8"
CONNECTION = (HOST, 40000, PEER, 443)


def socket_row(
    owner: int, near: str, near_port: int, far: str, far_port: int, by: By = By.HOLDS,
    protocol: int = 6,
) -> Array:  # fmt: skip
    row = np.zeros((), SOCKET)
    for end, address in (("near", near), ("far", far)):
        packed = ipaddress.ip_address(address).packed
        row[end][: len(packed)] = np.frombuffer(packed, "u1")
    row["near_port"], row["far_port"] = near_port, far_port
    row["protocol"], row["version"] = protocol, ipaddress.ip_address(near).version
    row["owner"], row["by"] = owner, by
    row["segments"], row["retransmitted"] = 100, owner
    return row


def owner_row(number: int, comm: str, unit: str = "", size: int = 0) -> Array:
    row = np.zeros((), OWNER)
    row["number"], row["comm"], row["unit"], row["tgid"] = number, comm, unit, 1000 + number
    row["packets"], row["bytes"], row["flows"] = size // 100, size, 1
    return row


def window(sockets: list[Array], owners: list[Array], end_ns: int = 0) -> OwnerWindow:
    ownership = np.zeros(3, OWNERSHIP)
    ownership["reason"] = Reason.OWNED, Reason.NO_SOCKET, Reason.FORWARDED
    ownership["bytes"] = 90, 10, 1000
    ownership["packets"] = 1, 1, 1
    return OwnerWindow(
        np.array(sockets, SOCKET), np.array(owners, OWNER), ownership, 1.0,
        end_ns or time.monotonic_ns(),
    )  # fmt: skip


NGINX = [
    socket_row(1, HOST, 80, PEER, 50000, By.LISTENER),
    socket_row(1, *CONNECTION),
    socket_row(2, HOST, 22, PEER, 50001),
]
OWNERS = [owner_row(1, "nginx", "web.service", 5000), owner_row(2, "sshd", "ssh.service", 900)]


class Owned(Bed):
    """A bed whose owners a test sets; each packet of a policy is counted."""

    def __init__(self, compiler: Compiler) -> None:
        super().__init__(compiler, MonitorOptions(bits=8))
        self.add(application("counting"))
        self.known: OwnerWindow | None = window(NGINX, OWNERS)
        self.monitor.owners.look = lambda: self.known

    def selects(self, *packets: bytes) -> list[bool]:
        """Which packets the policies select."""
        found = []
        for each in packets:
            self.run(each)
            found.append(self.counted("counting")[0] == 1)
        return found


@pytest.fixture
def bed(compiler: Compiler) -> Iterator[Owned]:
    with Owned(compiler) as made:
        yield made


def to(port: int, sport: int = 443, source: str = PEER) -> bytes:
    return frame(source, HOST, tcp(sport, port, "A"))


def test_an_owner_has_the_ports_of_its_services_and_its_connections(bed: Owned) -> None:
    """Of connections only their own tuples; of services any sender's packets."""
    bed.set("web: always -> counting on process:nginx")
    packets = [to(80, 999, OTHER), to(40000), to(40000, 444), to(40000, source=OTHER), to(22)]
    assert bed.selects(*packets) == [True, True, False, False, False]
    assert bed.selects(frame(PEER, HOST, udp(443, 80)), frame(PEER, OTHER, tcp(1, 80))) == [
        False, False,
    ]  # fmt: skip
    bed.set("web: always -> counting on unit:ssh.service or udp dport:53")
    assert bed.selects(to(80), to(22), frame(PEER, HOST, udp(9, 53))) == [False, True, True]


def test_the_selection_follows_a_restart_from_window_to_window(bed: Owned) -> None:
    """A service without packets is remembered, until another process has its port."""
    bed.set("web: always -> counting on process:nginx")
    restarted = [owner_row(3, "nginx", "web.service"), OWNERS[1]]
    bed.known = window([socket_row(3, HOST, 41000, PEER, 443), NGINX[2]], restarted)
    assert bed.selects(to(41000), to(40000)) == [False, True]
    bed.window()
    assert bed.selects(to(41000), to(40000), to(80)) == [True, False, True]
    bed.known = window([socket_row(2, HOST, 80, PEER, 50002)], restarted)
    bed.window()
    assert bed.selects(to(41000), to(80)) == [False, False]
    later = bed.known.end_ns + REMEMBER_NS
    bed.known = window([socket_row(3, HOST, 81, PEER, 9)], restarted)
    bed.window()
    bed.known = window([], restarted, later)
    bed.window()
    assert bed.selects(to(81)) == [True]
    bed.known = window([], restarted, later + REMEMBER_NS)
    bed.window()
    assert bed.selects(to(81)) == [False]


def test_without_owners_no_packet_is_selected_and_an_event_names_the_reason(bed: Owned) -> None:
    bed.known = None
    bed.set("web: always -> counting on process:nginx")
    bed.set("slow: rate(bytes on process:nginx) > 1 -> counting")
    assert bed.selects(to(80)) == [False]
    events = [e.text for _ in range(2 * PATIENCE) for e in bed.monitor.export() if type(e) is Event]
    assert events == [
        "web, slow: owners are unknown: the probe sockets does not run, or is cut (--cpu)"
    ]
    statuses = {each.policy.name: each for each in bed.monitor.statuses()}
    outcome = statuses["slow"].outcome
    assert outcome
    assert outcome.holds is None


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("rate(bytes on process:nginx) > 4999 and rate(bytes on process:nginx) < 5001", True),
        ("rate(packets on (unit:web or process:sshd)) > 58/s", True),
        ("rate(bytes on pid:1002) > 901", False),
        ("flows on process:nginx >= 1", True),
        ("retransmissions on process:sshd >= 2%", True),
        ("retransmissions > 1.3% and retransmissions < 1.4%", True),
        ("retransmissions on process:nobody > 0%", False),
        ("owned < 91%", True),
        ("owned < 90%", False),
    ],
)  # fmt: skip
def test_conditions_know_the_numbers_of_owners(bed: Owned, condition: str, holds: bool) -> None:
    """Owned is of bytes of this host: forwarded ones do not count."""
    bed.set(f"web: {condition} -> counting")
    bed.known = window(NGINX, OWNERS)
    assert METRICS_TABLE in bed.window()
    (status,) = bed.monitor.statuses()
    assert status.outcome
    assert status.outcome.holds is holds
    assert Policy.parse_short(status.policy.to_short()) == status.policy


def test_without_local_bytes_the_owned_share_is_unknown(bed: Owned) -> None:
    bed.set("web: owned < 100% -> counting")
    bed.known = window(NGINX, OWNERS)
    bed.known.ownership["bytes"] = 0, 0, 1000
    bed.window()
    (status,) = bed.monitor.statuses()
    assert status.outcome
    assert status.outcome.holds is None


def test_an_old_window_of_owners_is_unknown(bed: Owned) -> None:
    bed.set("web: owned < 100% -> counting")
    bed.known = window(NGINX, OWNERS, time.monotonic_ns() - FRESH_NS)
    bed.window()
    (status,) = bed.monitor.statuses()
    assert status.outcome
    assert status.outcome.holds is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("web: always -> dns on process:nginx dport:80", "owners have no 'dport'"),
        ("web: sources on process:nginx > 5 -> dns", "sources is not known of owners"),
        ("web: retransmissions on dport:80 > 1% -> dns", "retransmissions is not known of packets"),
        ("web: owned on process:nginx > 1% -> dns", "owned is of all packets"),
    ],
)
def test_mixtures_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Policy.parse_short(text)


def test_many_peers_leave_the_ports_to_decide(bed: Owned) -> None:
    peers = [
        socket_row(1, HOST, 40000 + n % 500, str(ipaddress.ip_address("10.0.0.0") + n), 443)
        for n in range(3000)
    ]
    bed.known = window(peers, OWNERS)
    bed.set("web: always -> counting on process:nginx")
    assert bed.selects(to(40499), to(40500), to(40000, 444)) == [True, False, False]


def test_the_culprit_is_among_the_flows_of_the_owner() -> None:
    rows = np.zeros(2, FLOW)
    for row, source, port in ((rows[0], PEER, 80), (rows[1], OTHER, 22)):
        for end, address in (("source", source), ("destination", HOST)):
            row[end][:4] = np.frombuffer(ipaddress.ip_address(address).packed, "u1")
        row["destination_port"], row["source_port"] = port, 50000
        row["version"], row["protocol"], row["packets"] = 4, 6, 100
    policy = Policy.parse_short("web: always -> dns on process:nginx")
    status = PolicyStatus(policy, PolicyState.ACTIVE, 0, 0)
    found = finding_for(status, rows, 1.0, owners=window(NGINX, OWNERS))
    assert PEER in found.text
    assert OTHER not in found.text
    assert "owners of flows are not known" in finding_for(status, rows, 1.0).text


def test_the_last_whole_window_counts_while_another_is_published() -> None:
    history, last = History(), None
    made = window(NGINX, OWNERS)
    tables = {"sockets": made.sockets, "owners": made.owners, "ownership": made.ownership}
    look = LastOwners(history)
    second = 10**9
    for number, length_ns in enumerate(
        (second, second, second // 100, second, *[second // 10] * 4)
    ):
        end_ns = number * second
        for metric, rows in tables.items():
            assert look() is last
            history.append(
                Snapshot(
                    PROBE, "", number, 1, end_ns - length_ns, end_ns, 0, rows, {}, 0, 0, 0,
                    metric=metric,
                )
            )  # fmt: skip
        # A short window does not count, unless all the last ones are as short.
        assert (look() is last) == (number in (2, 4, 5, 6))
        last = look()
    assert last
    assert last.seconds == 0.1
    # A window that the CPU budget cuts does not count; without any other, owners are unknown.
    for number in range(8, 13):
        assert look() is last
        for metric, rows in tables.items():
            history.append(
                Snapshot(
                    PROBE, "", number, 1, number * second, (number + 1) * second, 0, rows, {}, 0,
                    0, 0, metric=metric, cut=True,
                )
            )  # fmt: skip
        if number > 10:
            break
    assert look() is None
    assert replace(last) is not last
    with pytest.raises(ProbedeckError):
        Policy.parse_short("web: always -> dns on process:")
