"""Half-open TCP (S2.18): SYNs that the kernel remembers, and the operator's view of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpf.compiler import Compiler
from bpf.machine import online_cpus
from probes.snapshot import Loss, LossReason
from tests.probes.monitor.given import NOW_NS, Flow, Given

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
SECOND = 1_000_000_000
CLIENT = Flow("192.0.2.1", "198.51.100.7", 40000, 443, "tcp")
FLOWS = [CLIENT, Flow("2001:db8::1", "2001:db8::7", 40000, 443, "tcp")]
HANDSHAKES, SOURCES, THRESHOLD = 4000, 3900, 20
"""The threshold is the application's own."""
FOR_EVER = 1e6


def forged(count: int, destination: str = "198.51.100.7", port: int = 443) -> list[Flow]:
    """Connections, each from another source."""
    return [
        Flow(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", destination, 1024 + n % 60000, port, "tcp")
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def loaded(compiler: Compiler) -> Iterator[Given]:
    sizes = {"HANDSHAKES": HANDSHAKES, "SOURCES": SOURCES}
    with Given(compiler, "half_open", records=45, **sizes) as given:
        yield given


@pytest.fixture
def given(loaded: Given) -> Given:
    """Without anything of an earlier test."""
    loaded.window(FOR_EVER)
    return loaded


def send(given: Given, flows: list[Flow], flags: int = SYN, at: float = 0) -> None:
    packets = given.packets(flows, tcp_flags=flags, now_ns=NOW_NS + round(at * SECOND))
    given.run(packets, cpu=online_cpus()[0])


def test_a_handshake_that_completes_leaves_nothing(given: Given) -> None:
    send(given, FLOWS)
    for at in range(1, 4):
        send(given, FLOWS, ACK, at)
    found = given.window(6)
    destinations, sources, oldest = given.view(found)
    assert not oldest.rows
    for table, ends in (
        (destinations, [("198.51.100.7", 443), ("2001:db8::7", 443)]),
        (sources, [("192.0.2.1",), ("2001:db8::1",)]),
    ):
        assert table.columns[len(ends[0]) :] == (
            "half-open", "over 5 s", "SYNs", "completed", "reset", "no room",
        )  # fmt: skip
        assert sorted(table.rows) == [(*end, 0, 0, 1, 1, 0, 0) for end in ends]
    assert given.tables() == {"handshakes": [], "destinations": [], "sources": []}


@pytest.mark.parametrize("flags", [RST, RST | ACK])
def test_a_client_that_gives_up_leaves_nothing(given: Given, flags: int) -> None:
    send(given, FLOWS)
    send(given, FLOWS, flags)
    found = given.tables()
    assert found["handshakes"] == []
    assert [row["value.resets"] for row in found["destinations"]] == [1, 1]
    assert [row["value.completed"] for row in found["destinations"]] == [0, 0]


def test_a_retransmitted_syn_renews_nothing(given: Given) -> None:
    """S2.18: the first one's time counts; the connection is reported once, and then forgotten."""
    for at in (0, 1, 3, 4.9):
        send(given, FLOWS, SYN, at)
    for seconds, reported in ((5, 0), (5.1, 2), (5.2, 0)):
        oldest = given.view(given.window(seconds))[2]
        assert len(oldest.rows) == reported, seconds
        if reported:
            assert oldest.columns == (
                "source", "source port", "destination", "port", "seconds", "SYNs",
            )  # fmt: skip
            assert sorted(oldest.rows) == [
                ("192.0.2.1", 40000, "198.51.100.7", 443, 5.1, 4),
                ("2001:db8::1", 40000, "2001:db8::7", 443, 5.1, 4),
            ]


@pytest.mark.parametrize("flags", [SYN | ACK, FIN | ACK, PSH | ACK, RST, FIN, 0])
def test_other_packets_begin_nothing(given: Given, flags: int) -> None:
    send(given, FLOWS, flags)
    assert given.tables() == {"handshakes": [], "destinations": [], "sources": []}


def test_what_a_server_answers_completes_nothing(given: Given) -> None:
    send(given, FLOWS)
    send(given, FLOWS, SYN | ACK)
    assert len(given.tables()["handshakes"]) == 2


def test_another_port_is_another_connection(given: Given) -> None:
    send(given, [CLIENT])
    send(given, [Flow("192.0.2.1", "198.51.100.7", 40001, 443, "tcp")], ACK)
    send(given, [Flow("192.0.2.1", "198.51.100.7", 40000, 80, "tcp")], ACK)
    assert len(given.tables()["handshakes"]) == 1


def test_a_flood_shows_by_whom_it_hits_and_who_sends_most(given: Given) -> None:
    """Sources are forged at random but for one; another server's clients go on."""
    flood = forged(3000)
    one = [Flow("192.0.2.66", "198.51.100.7", 1024 + n, 443, "tcp") for n in range(300)]
    benign = forged(500, "198.51.100.8")
    send(given, flood + one + benign)
    send(given, benign, ACK, 0.1)
    found = given.window(1)
    destinations, sources, _ = given.view(found, 5)
    assert destinations.rows == (
        ("198.51.100.7", 443, 3300, 0, 3300, 0, 0, 0),
        ("198.51.100.8", 443, 0, 0, 500, 500, 0, 0),
    )
    assert sources.rows[0] == ("192.0.2.66", 300, 0, 300, 0, 0, 0)
    assert given.findings(found) == ()
    assert found[0].losses == {}

    found = given.window(6)
    destinations, sources, oldest = given.view(found, 5)
    assert destinations.rows == (("198.51.100.7", 443, 3300, 3300, 0, 0, 0, 0),)
    assert sources.rows[0] == ("192.0.2.66", 300, 300, 0, 0, 0, 0)
    assert len(oldest.rows) == 5
    assert given.findings(found) == (
        "198.51.100.7 port 443: 3300 half-open connections, 3300 of them for over 5 s; in the "
        "last 6.0 s: 0 SYNs, 0 completed",
    )
    assert given.tables()["handshakes"] == []


def test_fewer_than_the_threshold_are_no_finding(given: Given) -> None:
    for count, findings in ((THRESHOLD - 1, 0), (THRESHOLD, 1)):
        send(given, forged(count))
        assert len(given.findings(given.window(6))) == findings


def test_a_full_table_hides_no_flood_and_accuses_nobody_else(given: Given) -> None:
    """SYNs without room are counted as lost, and by destination."""
    benign = forged(350, "198.51.100.8")
    send(given, forged(5000) + benign)
    found = given.window(1)
    destinations, _, _ = given.view(found)
    assert destinations.rows == (
        ("198.51.100.7", 443, HANDSHAKES, 0, 5000, 0, 0, 5000 - HANDSHAKES),
        ("198.51.100.8", 443, 0, 0, 350, 0, 0, 350),
    )
    lost = 5350 - SOURCES  # one table had no room for them
    assert found[0].losses == {LossReason.TABLE_FULL: Loss(lost, 100 * lost)}
    assert given.findings(found) == (
        f"198.51.100.7 port 443: {HANDSHAKES} half-open connections, 0 of them for over 5 s; "
        f"in the last 1.0 s: 5000 SYNs, 0 completed, {5000 - HANDSHAKES} SYNs without room",
    )

    found = given.window(6)
    assert "0 SYNs, 0 completed" in given.findings(found)[0]
    send(given, benign, SYN, 6)
    assert len(given.tables()["handshakes"]) == 350


def test_a_source_that_found_no_room_is_not_said_to_send_nothing(given: Given) -> None:
    send(given, forged(SOURCES + 1))
    sources = given.view(given.window(1), SOURCES + 1)[1]
    assert sorted({row[1:] for row in sources.rows}, key=str) == [
        (1, 0, "?", "?", "?", "?"), (1, 0, 1, 0, 0, 0),
    ]  # fmt: skip


def test_a_full_table_is_asked_again_in_the_next_tick(given: Given) -> None:
    """Not before: under a flood, looking for room would be what takes longest."""
    first, *others = forged(HANDSHAKES + 1)
    send(given, [first, *others])
    send(given, [first], ACK)
    send(given, FLOWS[:1])
    send(given, FLOWS[1:], at=0.004)
    found = given.tables()
    assert sum(row["value.missed"] for row in found["destinations"]) == 2
    sources = {row["key.source"] for row in found["handshakes"]}
    assert len(sources) == HANDSHAKES
    assert "2001:db8::1" in sources
