"""Round trips of TCP, segment by segment: losses, options, and numbers that wrap around."""

from __future__ import annotations

import itertools
import struct

import pytest

from bpf.arrays import Array
from probes.path.planning.flow_lengths import FlowLengths
from probes.path.records import DESTINATION_HOP, MeasuredBy, ProbeOutcome
from tests.probes.path.round_trips.conftest import TIMEOUT_S
from tests.probes.path.round_trips.peers import (
    ACK,
    LOCAL,
    NEVER,
    RST,
    SYN,
    Connection,
    Peers,
    clock,
    wait_ms,
)
from tests.probes.path.wire.frames import PEER, TCP, packed

NOP = b"\1"
SACK = struct.pack(">BBBBII", 1, 1, 5, 10, 5000, 6000)
TIMESTAMP = struct.pack(">BBII", 8, 10, 77, 50)
SHAPES = {
    "usual": (clock(77, 50), 77),
    "behind selective acknowledgements": (SACK + clock(77, 50), 77),
    "first": (TIMESTAMP + NOP * 2, 77),
    "behind one NOP": (NOP + TIMESTAMP + NOP, 77),
    "last of forty bytes": (NOP * 28 + clock(77, 50), 77),
    "behind an unknown option": (b"\xfd\6abcd" + TIMESTAMP, 77),
    "behind the end of options": (b"\0" + TIMESTAMP + NOP, 0),
    "longer than the header": (b"\xfd\xc8" + TIMESTAMP, 0),
    "without a length": (b"\xfd\0" + TIMESTAMP, 0),
    "cut short": (NOP * 2 + b"\x08\x0a\0\0\0\1\0\0"[:2], 0),
    "of four bytes": (b"\x08\4ab" + NOP * 4, 0),
    "only NOPs": (NOP * 40, 0),
    "none": (b"", 0),
}


def test_the_extent_of_the_path_is_judged_by_them_too(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: dict[bytes, Array] = {}

    def judge(self: FlowLengths, rows: Array, *others: object) -> Array:
        if len(trips := rows[rows["hop"] == DESTINATION_HOP]):
            judged[self._destination.tobytes()] = trips
        return take(self, rows, *others)  # type: ignore[arg-type]

    take = FlowLengths.take
    monkeypatch.setattr(FlowLengths, "take", judge)
    connection.out(bytes(100))
    wait_ms(1)
    connection.back(options=clock(77, 1))
    row = connection.peers.one()
    (trips,) = judged.values()
    assert row in trips
    assert list(judged) == [row["destination"].tobytes()]


def test_the_columns_of_a_row(connection: Connection) -> None:
    peers = connection.peers
    connection.out(bytes(100))
    wait_ms(1)
    connection.back(options=clock(77, 1))
    row = peers.one()
    assert row["measured_by"] == MeasuredBy.TCP_ACK
    assert (row["outcome"], row["version"]) == (ProbeOutcome.ANSWERED, peers.version)
    assert 1_000_000 <= row["received_ns"] - row["sent_ns"] < 1_000_000_000
    size = 4 if peers.version == 4 else 16
    assert bytes(row["source"])[:size] == packed(LOCAL[peers.version])
    for name in ("destination", "responder"):
        assert bytes(row[name])[:size] == packed(PEER[peers.version])
    assert (row["source_port"], row["destination_port"]) == (connection.port, 80)
    assert (row["protocol"], row["ttl"], row["remote_clock"]) == (TCP, 57, 77)
    assert row["packet_bytes"] == (40 if peers.version == 4 else 60) + 100


@pytest.mark.parametrize("shape", SHAPES)
def test_options_of_all_shapes(connection: Connection, shape: str) -> None:
    options, expected = SHAPES[shape]
    connection.out(bytes(9))
    connection.back(options=options)
    row = connection.peers.one()
    assert (row["outcome"], row["remote_clock"]) == (ProbeOutcome.ANSWERED, expected)


def test_headers_that_end_early_are_no_answers(connection: Connection) -> None:
    peers = connection.peers
    connection.out(bytes(9))
    whole = connection._header(80, connection.port, 7, connection.next, ACK, clock(1, 2))
    for length in range(len(whole)):
        peers.back(TCP, whole[:length].ljust(18, b"\0") if length < 18 else whole[:length])
    assert not len(peers.rows())
    for words in (0, 4, 15):
        peers.back(TCP, whole[:12] + bytes([words << 4]) + whole[13:])
    assert not len(peers.rows())
    peers.back(TCP, whole)
    assert len(peers.rows()) == 1


@pytest.mark.parametrize("first", [0xFFFFFFFF, 0xFFFFFFF6, 0x7FFFFFF6])
def test_sequence_numbers_wrap_around(peers: Peers, first: int) -> None:
    connection = Connection(peers, 3000, next=first - 10 & 0xFFFFFFFF)
    connection.open()
    connection.out(bytes(20))
    connection.back(first)  # of earlier data
    assert not len(peers.rows())
    connection.back()
    assert peers.one()["outcome"] == ProbeOutcome.ANSWERED


def test_an_acknowledgement_of_data_that_was_not_sent_is_no_answer(connection: Connection) -> None:
    connection.out(bytes(20))
    connection.back(connection.next + 1)
    assert not len(connection.peers.rows())


def test_a_retransmitted_segment_was_lost_and_has_no_time(connection: Connection) -> None:
    start = connection.next
    connection.out(bytes(20))
    wait_ms(2)
    connection.out(bytes(20), at=start)
    wait_ms(2)
    connection.back()
    row = connection.peers.one()
    assert (row["outcome"], row["received_ns"]) == (ProbeOutcome.UNANSWERED, 0)


def test_a_retransmission_by_mistake_is_no_loss(connection: Connection) -> None:
    """The destination says that it had the data twice, or answers the first of the two; or its
    answer is too fast for the second."""
    peers = connection.peers
    for options, pause, least_ns in (("duplicate", 2, NEVER), ("clock", 2, NEVER), ("", 0, 10**9)):
        peers.exchanges["least_ns"] = least_ns
        peers.pace()
        start = connection.next
        with_clock = options == "clock"
        connection.out(bytes(20), clock(2**32 - 1) if with_clock else b"")
        wait_ms(2)
        connection.out(bytes(20), clock(3) if with_clock else b"", at=start)
        wait_ms(pause)
        twice = struct.pack(">BBBBII", 1, 1, 5, 10, start, connection.next)
        answers = {"duplicate": twice, "clock": clock(1, 2**32 - 1), "": b""}
        connection.back(options=answers[options])
        row = peers.one()
        assert (row["outcome"], row["received_ns"]) == (ProbeOutcome.ANSWERED, 0)


def test_an_answer_that_waited_for_an_earlier_segment_has_no_time(connection: Connection) -> None:
    peers = connection.peers
    connection.out(bytes(20))
    connection.back()
    assert peers.one()["received_ns"] > 0
    first = connection.next
    peers.exchanges["due_ns"] = NEVER
    connection.out(bytes(20))  # not timed
    peers.pace()
    connection.out(bytes(20))
    connection.out(bytes(20), at=first)
    connection.back()
    row = peers.one()
    assert (row["outcome"], row["received_ns"]) == (ProbeOutcome.ANSWERED, 0)


def test_a_handshake(peers: Peers) -> None:
    connection = Connection(peers, 3001)
    connection.out(flags=SYN, options=b"\2\4\5\xb4" + b"\4\2" + TIMESTAMP)
    wait_ms(1)
    connection.back(flags=SYN | ACK)
    row = peers.one()
    assert row["measured_by"] == MeasuredBy.TCP_HANDSHAKE
    assert row["received_ns"] - row["sent_ns"] >= 1_000_000


def test_a_repeated_request_for_a_connection_is_a_loss_without_time(peers: Peers) -> None:
    connection = Connection(peers, 3002)
    connection.out(flags=SYN)
    wait_ms(1)
    connection.out(flags=SYN, at=1000)
    wait_ms(1)
    connection.back(flags=SYN | ACK)
    row = peers.one()
    assert (row["outcome"], row["received_ns"]) == (ProbeOutcome.UNANSWERED, 0)
    peers.pace()
    connection.out(bytes(9))
    connection.back()
    assert peers.one()["outcome"] == ProbeOutcome.ANSWERED


def test_a_request_without_an_answer_is_lost_once(peers: Peers) -> None:
    connection = Connection(peers, 3003)
    connection.out(flags=SYN)
    wait_ms(TIMEOUT_S * 1e3 / 2)
    assert not len(peers.rows())
    wait_ms(TIMEOUT_S * 1e3 / 2 + 10)
    row = peers.one()
    assert (row["outcome"], row["measured_by"]) == (
        ProbeOutcome.UNANSWERED,
        MeasuredBy.TCP_HANDSHAKE,
    )
    connection.back(flags=SYN | ACK)  # too late
    connection.out(flags=SYN, at=9000)
    assert not len(peers.rows())


@pytest.mark.parametrize("by_host", [True, False], ids=["host", "destination"])
def test_a_reset_connection_is_neither_answered_nor_lost(
    connection: Connection, by_host: bool
) -> None:
    connection.out(bytes(9))
    if by_host:
        connection.out(flags=RST)
    else:
        connection.back(flags=RST | ACK)
    connection.back()
    wait_ms(TIMEOUT_S * 1e3 + 10)
    assert not len(connection.peers.rows())


def test_data_without_an_answer_is_no_loss_unless_it_is_sent_again(connection: Connection) -> None:
    """Its acknowledgements may take another interface."""
    start = connection.next
    connection.out(bytes(9))
    wait_ms(TIMEOUT_S * 1e3 + 10)
    assert not len(connection.peers.rows())
    connection.out(bytes(9), at=start)
    assert connection.peers.one()["outcome"] == ProbeOutcome.UNANSWERED


def test_a_late_answer_to_a_lone_segment_has_no_time_unless_many_came_together(
    connection: Connection,
) -> None:
    """The destination may delay an acknowledgement of one segment, not of two, unless its process
    reads slowly: then its window is small before or after."""
    peers = connection.peers
    for segments, before, after, timed in ((1, 9, 9, False), (2, 9, 9, True), (2, 9, 6, False),
                                           (2, 6, 9, False), (2, 9, 9, True)):  # fmt: skip
        peers.pace()
        connection.out(bytes(9))
        connection.window = before
        connection.back()
        assert peers.one()["received_ns"] > 0 or before < 9
        peers.pace()
        connection.out(bytes(1000 * segments), segment=1000 if segments > 1 else 0)
        wait_ms(30)
        connection.window = after
        connection.back()
        row = peers.one()
        assert row["outcome"] == ProbeOutcome.ANSWERED
        assert (row["received_ns"] > 0) == timed


def test_a_late_answer_counts_if_it_left_before_the_next_segment_arrived(
    connection: Connection,
) -> None:
    peers = connection.peers
    for covered, timed in ((True, False), (False, True)):
        peers.exchanges["least_ns"] = 1  # no time is near it
        peers.pace()
        connection.out(bytes(9))
        first = connection.next
        connection.out(bytes(9))
        wait_ms(60)
        connection.back(None if covered else first)
        row = peers.one()
        assert row["outcome"] == ProbeOutcome.ANSWERED
        assert (row["received_ns"] > 0) == timed


def test_a_flow_has_at_most_a_hundred_samples_a_second(connection: Connection) -> None:
    for _ in range(50):
        connection.out(bytes(9))
        connection.back()
        wait_ms(0.3)
    rows = connection.peers.rows()
    sent = sorted(rows["sent_ns"].tolist())
    assert len(sent) > 1
    assert min(later - sooner for sooner, later in itertools.pairwise(sent)) >= 10_000_000


def test_echoes_of_timestamps_count_while_the_destination_sends(connection: Connection) -> None:
    peers = connection.peers
    for pause, expected in ((0, 1), (20, 0)):
        peers.exchanges["least_ns"] = 1  # no time is near it
        peers.pace()
        connection.out(options=clock(100 + pause))
        for _ in range(40):
            wait_ms(1)
            connection.back(options=clock(9, 99), data=b"x")
        wait_ms(pause)
        connection.back(options=clock(9, 100 + pause), data=b"x")
        rows = peers.rows()
        assert len(rows) == expected
        assert (rows["measured_by"] == MeasuredBy.TCP_TIMESTAMP).all()


def test_a_timestamp_that_was_skipped_is_no_answer(connection: Connection) -> None:
    connection.out(options=clock(500))
    connection.back(options=clock(9, 501), data=b"x")
    connection.back(options=clock(9, 500), data=b"x")
    assert not len(connection.peers.rows())
