"""Round trips of ICMP echo, DNS and QUIC, packet by packet, and the limits of the tables."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from probes.path.marks import request_mark
from probes.path.records import MeasuredBy, ProbeOutcome
from probes.path.round_trips import EXCHANGE, EXCHANGES, SAMPLE, RoundTrips
from tests.probes.path.round_trips.conftest import TIMEOUT_S
from tests.probes.path.round_trips.peers import Connection, Peers, wait_ms

DNS, QUIC = (4000, 53), (4001, 443)
MARK = request_mark(1, key=3)
"""In the payload of a tracer's echo request."""


def query(number: int, *, answer: bool = False) -> bytes:
    return struct.pack(">HH", number, 0x8180 if answer else 0x0100) + bytes(20)


def short(spin: int) -> bytes:
    """A packet of an open QUIC connection."""
    return bytes([0x40 | spin << 5]) + bytes(30)


def initial(version: int = 1) -> bytes:
    """The first packet of a QUIC connection."""
    return b"\xc0" + struct.pack(">I", version) + bytes(1195)


@pytest.mark.slow
def test_an_echo_and_its_reply(peers: Peers) -> None:
    peers.echo(7)
    wait_ms(1)
    peers.echo(6, reply=True)
    assert not len(peers.rows())
    peers.echo(7, reply=True, ttl=55)
    row = peers.one()
    assert (row["measured_by"], row["ttl"]) == (MeasuredBy.ICMP_ECHO, 55)
    assert row["received_ns"] - row["sent_ns"] >= 1_000_000
    kind = 8 if peers.version == 4 else 128
    assert (row["source_port"], row["destination_port"]) == (0x1234, kind << 8)
    peers.echo(7, reply=True)  # a duplicate
    assert not len(peers.rows())


def test_probes_and_the_packets_of_other_tracers_are_not_timed(peers: Peers) -> None:
    peers.echo(1, MARK)
    peers.echo(1, MARK, reply=True)
    peers.echo(2, ttl=32)
    peers.echo(2, reply=True)
    assert not len(peers.rows())
    peers.echo(3)
    peers.echo(3, MARK, reply=True)  # of a probe that has the number of its cause
    assert not len(peers.rows())
    peers.echo(3, reply=True)
    assert len(peers.rows()) == 1


def test_a_ping_without_a_reply_is_lost_once_and_the_next_ones_are_timed(peers: Peers) -> None:
    peers.echo(1)
    for number in (2, 3, 4):
        peers.echo(number)
        peers.echo(number, reply=True)
    assert (peers.rows()["outcome"] == ProbeOutcome.ANSWERED).tolist() == [True] * 3
    wait_ms(TIMEOUT_S * 1e3 + 10)
    row = peers.one()
    assert (row["outcome"], row["received_ns"]) == (ProbeOutcome.UNANSWERED, 0)
    peers.echo(1, reply=True)  # too late
    assert not len(peers.rows())


def test_a_loss_that_nobody_read_in_time_is_told_by_the_next_packet(peers: Peers) -> None:
    peers.echo(1)
    wait_ms(TIMEOUT_S * 1e3 + 1010)
    peers.echo(9)  # of the same exchange
    peers.echo(9, reply=True)
    lost, answered = sorted(peers.rows(), key=lambda row: int(row["sent_ns"]))
    assert (lost["outcome"], answered["outcome"]) == (
        ProbeOutcome.UNANSWERED,
        ProbeOutcome.ANSWERED,
    )


def test_dns(peers: Peers) -> None:
    peers.datagram(DNS, query(0xABCD))
    wait_ms(1)
    for ports, data in (
        (DNS, query(0xABCE, answer=True)),
        (DNS, query(0xABCD)),
        ((4009, 53), query(0xABCD, answer=True)),
        (DNS, b"\xab\xcd"),
    ):
        peers.datagram(ports, data, back=True)
    assert not len(peers.rows())
    peers.datagram(DNS, query(0xABCD, answer=True), back=True)
    row = peers.one()
    assert row["measured_by"] == MeasuredBy.DNS
    assert (row["source_port"], row["destination_port"]) == DNS
    assert row["received_ns"] - row["sent_ns"] >= 1_000_000


def test_a_dns_server_that_had_to_ask_others_has_the_time_of_its_answer(peers: Peers) -> None:
    for port, pause in ((4000, 0), (4010, 20)):
        peers.pace()
        peers.datagram((port, 53), query(port))
        wait_ms(pause)
        peers.datagram((port, 53), query(port, answer=True), back=True)
        row = peers.one()
        assert (row["outcome"], row["source_port"]) == (ProbeOutcome.ANSWERED, port)
        assert row["received_ns"] - row["sent_ns"] >= pause * 1e6


def spinning(peers: Peers, ports: tuple[int, int], turns: int, run: int = 12) -> None:
    """A client and a server that keep to RFC 9000."""
    spin = 0
    for _ in range(turns):
        peers.datagram(ports, short(spin))
        for _ in range(run - 1):
            wait_ms(0.3)
            peers.datagram(ports, short(spin ^ 1), back=True)
            peers.datagram(ports, short(spin))
        peers.datagram(ports, short(spin), back=True)
        spin ^= 1


def test_the_spin_bit_counts_after_regular_edges(peers: Peers) -> None:
    peers.pace()
    spinning(peers, QUIC, 12)
    rows = peers.rows()
    assert 4 <= len(rows) <= 10
    assert (rows["measured_by"] == MeasuredBy.QUIC_SPIN).all()
    rtts = rows["received_ns"] - rows["sent_ns"]
    assert (rtts >= 3_000_000).all()


def test_quic_on_any_port_is_known_by_its_first_packet(peers: Peers) -> None:
    spinning(peers, (4002, 9000), 8)
    assert not len(peers.rows())
    peers.datagram((4003, 9000), initial(0xBAD))
    spinning(peers, (4003, 9000), 8)
    assert not len(peers.rows())
    peers.datagram((4003, 9000), initial())
    spinning(peers, (4003, 9000), 8)
    assert len(peers.rows())


@pytest.mark.parametrize("way", ["server constant", "server random", "client random", "both"])
def test_a_bit_that_does_not_spin_is_no_round_trip(peers: Peers, way: str) -> None:
    """RFC 9000, section 17.4: an endpoint that disables it may send any bits."""
    dice = random.Random(15)
    heard = 0
    for _ in range(3000):
        sent = dice.getrandbits(1) if way in ("client random", "both") else heard ^ 1
        peers.datagram((4004, 443), short(sent))
        if way == "server constant":
            heard = 1
        elif way != "client random":
            heard = dice.getrandbits(1)
        else:
            heard = sent
        peers.datagram((4004, 443), short(heard), back=True)
    assert not len(peers.rows())


def test_packets_of_other_protocols_are_not_timed(peers: Peers) -> None:
    for ports in ((4005, 9), (4005, 123)):
        peers.datagram(ports, short(0))
        peers.datagram(ports, short(0), back=True)
    assert not peers.exchanges["flow"].any()


def test_more_flows_than_places_take_turns(peers: Peers) -> None:
    """An idle flow leaves its place to others; one that waits for an answer does not."""
    flows = [Connection(peers, port) for port in range(20_000, 20_000 + 3 * EXCHANGES)]
    for flow in flows:
        flow.open()
    known = int((peers.exchanges["flow"] > 0).sum())
    assert EXCHANGES // 2 < known <= EXCHANGES
    for flow in flows:
        flow.out(bytes(9))
        flow.back()
    assert len(peers.rows()) == known
    peers.exchanges["seen_ns"] = 0
    for flow in reversed(flows):
        flow.open()
    ports = set(peers.exchanges["source_port"].tolist())
    peers.pace()
    for flow in flows:
        flow.out(bytes(9))
        flow.back()
    again = peers.rows()
    assert len(again) == int((peers.exchanges["flow"] > 0).sum())
    assert not {int(row["source_port"]) for row in again} <= ports


class Ring:
    """A ring of eight samples that the test writes as the kernel does."""

    def __init__(self) -> None:
        self.samples = np.zeros(8, SAMPLE)
        self.head = np.zeros(1, "u8")
        self.reader = RoundTrips(10**9, np.zeros(EXCHANGES, EXCHANGE), self.samples, self.head)

    def write(self, count: int, *, whole: bool = True) -> None:
        for _ in range(count):
            number = int(self.head[0])
            self.head[0] += 1
            sample = self.samples[number % 8]
            sample["sent_ns"] = number + 1
            sample["number"] = number + 1 if whole else 0

    def read(self) -> list[int]:
        sent: list[int] = self.reader._new_samples()["sent_ns"].tolist()
        return sent


def test_each_sample_is_read_once_and_overwritten_ones_are_counted() -> None:
    ring = Ring()
    assert ring.read() == []
    ring.write(3)
    assert ring.read() == [1, 2, 3]
    assert ring.read() == []
    ring.write(20)
    assert ring.read() == list(range(16, 24))
    assert ring.reader.overrun == 12


def test_a_sample_that_is_being_written_is_read_later() -> None:
    ring = Ring()
    ring.write(2)
    ring.write(1, whole=False)
    ring.write(1)
    assert ring.read() == [1, 2]
    ring.samples["number"][2] = 3
    assert ring.read() == [3, 4]
    assert ring.reader.overrun == 0
