"""The health of TCP conversations: round-trip times of both halves, and losses.

The captures are of two hosts 20 ms apart, taken in the middle, 80 bytes of each packet. The script
that made them knew which packets it dropped or delayed, before the capture or behind it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.lab.capture import CaptureFile, open_capture
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.monitor.applications import catalog
from probes.monitor.options import MonitorOptions
from probes.snapshot import Loss, LossReason
from tests.probes.monitor.bed import Bed
from tests.probes.monitor.given import NOW_NS, Flow, Given, rows_of

CAPTURES = Path(__file__).with_name("captures")
CLIENT, SERVER = "192.0.2.1", "198.51.100.2"
FIN, SYN, RST, ACK = 1, 2, 4, 16
MS = 1_000_000
ETHERNET = 14


def frame(
    source: str = CLIENT,
    destination: str = SERVER,
    *,
    sport: int = 40000,
    dport: int = 80,
    seq: int = 0,
    ack: int = 0,
    size: int = 0,
    flags: int = ACK,
    window: int = 1000,
    stamps: tuple[int, int] | None = None,
    vlan: bool = False,
) -> bytes:
    """A TCP segment with `size` bytes of data that the frame does not contain."""
    options = struct.pack("!BBBBII", 1, 1, 8, 10, *stamps) if stamps else b""
    header = 20 + len(options)
    tcp = struct.pack(
        "!HHIIBBHHH", sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, header << 2, flags, window,
        0, 0,
    ) + options  # fmt: skip
    if ":" in source:
        ends = [socket.inet_pton(socket.AF_INET6, each) for each in (source, destination)]
        ip, kind = struct.pack("!IHBB16s16s", 6 << 28, header + size, 6, 64, *ends), b"\x86\xdd"
    else:
        ends = [socket.inet_aton(each) for each in (source, destination)]
        total = 20 + header + size
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 0, 0, 64, 6, 0, *ends)
        kind = b"\x08\x00"
    tag = b"\x81\x00\x00\x07" if vlan else b""
    return (bytes(12) + tag + kind + ip + tcp).ljust(60, b"\0")


def from_server(**fields: Any) -> bytes:
    return frame(SERVER, CLIENT, sport=80, dport=40000, **fields)


def give(given: Given, frames: Sequence[bytes], times: Sequence[int], **fields: Any) -> None:
    """Give whole frames at times in ns; `fields` as in `Given.packets`."""
    flows, offsets, flags = [], [], []
    for each in frames:
        network = ETHERNET + 4 * (each[12:14] == b"\x81\x00")
        v4 = each[network] >> 4 == 4
        transport = network + ((each[network] & 15) * 4 if v4 else 40)
        family, at, width = (socket.AF_INET, 12, 4) if v4 else (socket.AF_INET6, 8, 16)
        source, destination = (
            socket.inet_ntop(family, each[network + at + n * width :][:width]) for n in range(2)
        )
        sport, dport = struct.unpack_from("!HH", each, transport)
        flows.append(Flow(source, destination, sport, dport, "tcp"))
        offsets.append((network, transport))
        flags.append(each[transport + 13])
    packets = given.packets(
        flows, now_ns=list(times), tcp_flags=flags,
        network_at=[n for n, _ in offsets], transport_at=[t for _, t in offsets], **fields,
    )  # fmt: skip
    given.run(packets, frames=frames)


def by_sender(given: Given) -> dict[str, dict[str, Any]]:
    """End the window: the counts of each sender that are not 0, by `ADDRESS:PORT`."""
    return {
        f"{row['key.source']}:{row['key.source_port']}": {
            name.removeprefix("value."): n
            for name, n in row.items()
            if n and name.startswith("value.")
        }
        for row in given.tables()["flows"]
    }


@pytest.fixture
def given(compiler: Compiler) -> Iterator[Given]:
    """The application, with the packets' times as its clock."""
    with Given(compiler, "tcp_health", EXACT_CLOCK=0) as loaded:
        yield loaded


QUIET = ("packets", "bytes", "segments", "rtt_samples", "rtt_sum", "rtt_least", "rtt_most")
EXPECTED: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    # Of the client, and of the server. tshark 4.0 has the same numbers, but in `loss`.
    "clean": ({}, {}),
    # Data packets 20, 45, 46 of the client and 12 of the server were lost before the capture; 30,
    # 60, 62, 120 and 25 behind it. tshark takes 6 and 1 of these repeats for out of order.
    "loss": (
        {"retransmitted": 7, "lost_before": 3, "holes": 2, "duplicate_acks": 21},
        {"retransmitted": 2, "lost_before": 1, "holes": 1, "duplicate_acks": 28},
    ),
    "reordering": (
        {"out_of_order": 4, "holes": 4},
        {"out_of_order": 1, "holes": 1, "duplicate_acks": 1},
    ),
    # The client's two probes of the closed window are no repeats.
    "zero_window": ({}, {"zero_windows": 2}),
    "reset": ({}, {"resets": 2}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_captures_have_the_counts_of_their_truth(given: Given, name: str) -> None:
    path = str(CAPTURES / f"{name}.pcap.gz")
    with open_capture(path) as file:
        frames = list(CaptureFile(file, path))
    give(given, [each.data for each in frames], [each.time_ns for each in frames])
    senders = by_sender(given)
    server = [counts for who, counts in senders.items() if who.partition(":")[0].endswith(".2")]
    client = [counts for who, counts in senders.items() if who.partition(":")[0].endswith(".1")]
    for rows, expected in zip((client, server), EXPECTED[name], strict=True):
        found = {
            key: sum(row.get(key, 0) for row in rows) for row in rows for key in row.keys() - QUIET
        }
        assert found == expected
    assert sum(row["packets"] for row in senders.values()) == len(frames)
    for row in senders.values():
        if "rtt_samples" in row:
            # Each half takes 10 ms; the least samples have no delayed ACKs.
            assert 10 * MS <= row["rtt_least"] < 10.5 * MS


def test_a_sample_is_the_time_from_a_segment_to_its_ack(given: Given) -> None:
    """Both halves, of the handshake and of data; ACKs of less end no sample."""
    give(
        given,
        [
            frame(seq=99, flags=SYN),
            from_server(seq=499, ack=100, flags=SYN | ACK),
            frame(seq=100, ack=500),
            frame(seq=100, ack=500, size=1000),
            frame(seq=1100, ack=500, size=1000),
            from_server(seq=500, ack=600),
            from_server(seq=500, ack=2100),
        ],
        [NOW_NS + ms * MS for ms in (0, 30, 37, 40, 45, 60, 72)],
    )
    senders = by_sender(given)
    server, client = senders[f"{SERVER}:80"], senders[f"{CLIENT}:40000"]
    assert (server["rtt_samples"], server["rtt_sum"]) == (2, (30 + 32) * MS)
    assert (server["rtt_least"], server["rtt_most"]) == (30 * MS, 32 * MS)
    assert (client["rtt_samples"], client["rtt_sum"]) == (1, 7 * MS)
    assert (client["packets"], client["segments"], server["segments"]) == (4, 3, 1)


def test_a_repeat_cancels_the_sample(given: Given) -> None:
    """Karn: nobody knows which copy was acknowledged. The next new segment is measured again."""
    data = frame(seq=100, ack=500, size=1000)
    ack = from_server(seq=500, ack=1100)
    give(given, [data, data, ack], [NOW_NS, NOW_NS + 50 * MS, NOW_NS + 51 * MS])
    senders = by_sender(given)
    assert senders[f"{CLIENT}:40000"]["retransmitted"] == 1
    assert "rtt_samples" not in senders[f"{SERVER}:80"]
    more = [frame(seq=1100, ack=500, size=10), from_server(seq=500, ack=1110)]
    give(given, more, [NOW_NS + 100 * MS, NOW_NS + 120 * MS])
    senders = by_sender(given)
    assert senders[f"{SERVER}:80"]["rtt_sum"] == 20 * MS
    assert "retransmitted" not in senders[f"{CLIENT}:40000"]


def test_repeats_are_lost_before_here_or_behind_or_had_arrived(given: Given) -> None:
    """Before: a hole showed. Had arrived: the ACK passed here. Numbers wrap around."""
    base = 2**32 - 1500
    data = [frame(seq=base + n * 1000, ack=500, size=1000) for n in range(5)]
    times = [NOW_NS + ms * MS for ms in (0, 1, 2, 30, 31, 60, 61)]
    acks = [from_server(seq=500, ack=base + 1000), from_server(seq=500, ack=base + 5000)]
    frames = [data[0], data[2], data[4], acks[0], data[1], data[3], data[4]]
    give(given, [*frames, acks[1], data[4]], [*times, NOW_NS + 70 * MS, NOW_NS + 80 * MS])
    row = by_sender(given)[f"{CLIENT}:40000"]
    assert (row["segments"], row["holes"]) == (7, 2)
    assert (row["retransmitted"], row["lost_before"], row["spurious"]) == (4, 2, 1)


def test_a_large_segment_counts_as_its_packets(given: Given) -> None:
    """If it is new in part, only the packets with old bytes are repeats."""
    times = [NOW_NS, NOW_NS + 50 * MS]
    large = [frame(seq=0, size=10_000), frame(seq=7_500, size=10_000)]
    give(given, large, times, packets=10)
    row = by_sender(given)[f"{CLIENT}:40000"]
    assert (row["packets"], row["segments"], row["retransmitted"]) == (20, 20, 3)


def test_headers_of_every_kind(given: Given) -> None:
    """IPv6, a VLAN tag, and the padding of a short frame, which is no data."""
    six = frame("2001:db8::1", "2001:db8::2", seq=5, size=700, vlan=True)
    answer = frame("2001:db8::2", "2001:db8::1", sport=80, dport=40000, ack=705)
    give(given, [six, answer, answer, frame(seq=1), frame(seq=1)], range(NOW_NS, NOW_NS + 5))
    senders = by_sender(given)
    assert senders["2001:db8::2:80"]["duplicate_acks"] == 1
    assert senders["2001:db8::2:80"]["rtt_samples"] == 1
    assert senders[f"{CLIENT}:40000"] == {"packets": 2, "bytes": 200, "duplicate_acks": 1}


def test_an_end_that_only_sends_acks_is_measured_by_timestamps(given: Given) -> None:
    """To the first data with the echo. Data that waited for its application is no answer."""

    def data(n: int, echo: int) -> bytes:
        return from_server(seq=n * 1000, ack=1, size=1000, stamps=(50 + n, echo))

    def ack(n: int, stamp: int) -> bytes:
        return frame(seq=1, ack=n * 1000, stamps=(stamp, 50))

    frames = [data(0, 7), data(1, 7), ack(1, 20), data(2, 7), data(3, 20), ack(4, 30), data(4, 30)]
    give(given, frames, [NOW_NS + ms * MS for ms in (0, 1, 10, 11, 42, 50, 950)])
    server = by_sender(given)[f"{SERVER}:80"]
    assert (server["rtt_samples"], server["rtt_sum"]) == (1, 32 * MS)
    # Within one tick everything was acknowledged, then the server waited.
    frames = [data(5, 30), data(6, 30), ack(6, 40), ack(7, 40), data(7, 40)]
    give(given, frames, [NOW_NS + ms * MS for ms in (1000, 1001, 1010, 1010, 1900)])
    assert "rtt_samples" not in by_sender(given)[f"{SERVER}:80"]


def test_answers_to_keep_alives_are_no_duplicate_acks(given: Given) -> None:
    """Nor are keep-alives repeats, with a byte or without."""
    ack = from_server(seq=1, ack=110)
    frames = [frame(seq=100, ack=1, size=10), ack]
    for size in (0, 1):
        frames += [frame(seq=109, ack=1, size=size), ack]
    give(given, frames, range(NOW_NS, NOW_NS + 6))
    senders = by_sender(given)
    assert "retransmitted" not in senders[f"{CLIENT}:40000"]
    assert "duplicate_acks" not in senders[f"{SERVER}:80"]


def test_a_full_table_is_a_counted_loss(compiler: Compiler) -> None:
    """Conversations that are known go on."""
    with Given(compiler, "tcp_health", CONVERSATIONS=4, FLOWS=8, EXACT_CLOCK=0) as given:
        frames = [frame(sport=port, seq=9, size=10) for port in range(6)]
        give(given, [*frames, frame(sport=0, seq=19, size=10)], [NOW_NS] * 7)
        window = given.window()[0]
        assert window.losses == {LossReason.TABLE_FULL: Loss(2, 200)}
        assert sum(row["value.packets"] for row in rows_of(window)) == 5


def test_ended_and_idle_conversations_are_forgotten(given: Given) -> None:
    """A reset or both FINs end one; TIMEOUT seconds without packets, too."""
    known = given._side._maps["conversations"]
    give(given, [frame(sport=1), frame(sport=2), frame(sport=2, flags=RST)], [NOW_NS] * 3)
    give(given, [frame(sport=3, flags=FIN | ACK)], [NOW_NS])
    assert len(known.read()) == 3
    given.window()
    assert len(known.read()) == 2
    given.window(seconds=61)
    assert len(known.read()) == 0


def test_the_table_shows_both_halves_and_findings_name_the_place(given: Given) -> None:
    data = [frame(seq=n * 100, ack=1, size=100) for n in range(100)]
    give(given, data, [NOW_NS + n * MS for n in range(100)])
    give(given, [from_server(seq=1, ack=10_000, size=9)], [NOW_NS + 150 * MS])
    give(given, [frame(seq=10_000, ack=10)], [NOW_NS + 155 * MS])
    give(given, data[40:60], [NOW_NS + (200 + n) * MS for n in range(20)])
    give(given, [from_server(seq=10, ack=10_000, window=0)] * 12, [NOW_NS + 300 * MS] * 12)
    window = given.window()
    (table,) = given.view(window)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["repeated"] for row in rows] == [20, 0]
    assert rows[0]["RTT src ms"] == rows[1]["RTT dst ms"] == 5
    assert rows[0]["RTT dst ms"] == rows[1]["RTT src ms"] == 150
    assert given.findings(window) == (
        f"{CLIENT} port 40000 to {SERVER} port 80: 20 of 120 segments were sent again in 1.0 s: 0 "
        "were lost before here, 0 behind, 20 had arrived",
        f"{SERVER} port 80 to {CLIENT} port 40000: 12 zero windows in 1.0 s: its application does "
        "not read",
    )


@pytest.mark.slow
def test_each_end_is_counted_where_its_first_packet_came(compiler: Compiler) -> None:
    """Ingress and egress of one interface. While the application sleeps, egress has no program."""
    with Bed(compiler, MonitorOptions()) as bed:
        app = bed.add(catalog.built_in("tcp_health", "lo"))
        bed.set("health: operator -> tcp_health on dport:80")
        bed.monitor.activate("health")
        points = {point.hook: point for point in bed.hooks.in_use()}
        egress = points[Hook.TC_EGRESS].chain

        def both(*frames: bytes) -> dict[str, list[int]]:
            """Packets by direction, of frames that go out and come in."""
            for each in frames:
                prog_test_run(egress.fd, each + bytes(100))
                prog_test_run(points[Hook.XDP].chain.fd, each + bytes(100))
            app.export()
            found: dict[str, list[int]] = {"ingress": [], "egress": []}
            for table in app.latest:
                found[table.side] += table.rows["value"]["packets"].tolist()
            return found

        asked, answered = frame(seq=1, size=100), from_server(seq=1, ack=101, size=100)
        assert both(asked, answered) == {"ingress": [1], "egress": []}
        assert len(egress) == 0
        app.wake(True)
        assert both(asked, answered, answered) == {"ingress": [1], "egress": [2]}
        app.wake(False)
        assert len(egress) == 0
        assert both(asked, answered) == {"ingress": [1], "egress": []}
