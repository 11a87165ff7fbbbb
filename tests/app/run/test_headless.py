"""Tables hold exactly what went over a wire, window by window, while the run goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from app.lab.netns import inside
from app.outputs.views import VIEWS
from app.run.item_loop import Mailbox
from probes.flow.kinds import KINDS
from probes.flow.records import FLOW
from probes.snapshot import Event, Snapshot
from tests.app.outputs.test_group_views import check_groups
from tests.support.kernel import TC_MODE
from tests.support.runs import Remains, Row, deck, deck_ends, measures, rows, stop
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair

UDP_HEADERS = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
SEGMENTS = slice(136, 144)
"""tcpi_segs_out and tcpi_segs_in in struct tcp_info."""


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


def family(version: int) -> int:
    return socket.AF_INET if version == 4 else socket.AF_INET6


def address(end: End, version: int) -> str:
    return end.ipv4 if version == 4 else end.ipv6


def udp(end: End, version: int, port: int) -> socket.socket:
    with inside(end.ns):
        sock = socket.socket(family(version), socket.SOCK_DGRAM)
    sock.bind((address(end, version), port))
    return sock


def send_udp(
    source: End, target: End, version: int, ports: tuple[int, int], packets: int, size: int
) -> None:
    """`size` is of the payload."""
    with udp(target, version, ports[1]), udp(source, version, ports[0]) as sock:
        sock.connect((address(target, version), ports[1]))
        for _ in range(packets):
            sock.send(bytes(size))


def ping(source: End, target: End, version: int, packets: int) -> None:
    """Returns when all are answered; 64 bytes of payload each."""
    protocol, kind = (socket.IPPROTO_ICMP, 8) if version == 4 else (socket.IPPROTO_ICMPV6, 128)
    with inside(source.ns):
        sock = socket.socket(family(version), socket.SOCK_RAW, protocol)
    with sock:
        sock.settimeout(2)
        for number in range(packets):
            message = struct.pack("!BBHHH", kind, 0, 0, 7, number) + bytes(64)
            # The kernel fills in the checksum of ICMPv6 only.
            words = struct.unpack(f"!{len(message) // 2}H", message)
            folded = sum(words) % 0xFFFF or 0xFFFF
            message = message[:2] + struct.pack("!H", 0xFFFF - folded) + message[4:]
            sock.sendto(message, (address(target, version), 0))
            header = 20 if version == 4 else 0
            while sock.recv(2048)[header] != (0 if version == 4 else 129):
                pass


def talk_tcp(client: End, server: End, version: int, ports: tuple[int, int]) -> tuple[int, int]:
    """Ten questions and answers; segments that the client sent and received."""
    with inside(server.ns):
        listening = socket.create_server(
            (address(server, version), ports[1]), family=family(version)
        )
    with inside(client.ns):
        sock = socket.socket(family(version), socket.SOCK_STREAM)

    def answer() -> None:
        with listening, listening.accept()[0] as other:
            while data := other.recv(100):
                other.send(data)

    thread = Thread(target=answer)
    thread.start()
    with sock:
        sock.bind((address(client, version), ports[0]))
        sock.connect((address(server, version), ports[1]))
        for _ in range(10):
            sock.send(bytes(50))
            sock.recv(100)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""
        thread.join()
        time.sleep(0.05)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    out, received = struct.unpack("II", info[SEGMENTS])
    return out, received


Key = tuple[str, str, str, str, str, str]


def key(row: Row) -> Key:
    return (
        row["direction"], row["protocol"], row["source"], row["source_port"],
        row["destination"], row["destination_port"],
    )  # fmt: skip


def sums(table: list[Row]) -> dict[Key, tuple[int, int]]:
    """Packets and bytes of each flow over all windows."""
    packets: Counter[Key] = Counter()
    size: Counter[Key] = Counter()
    for row in table:
        packets[key(row)] += int(row["packets"])
        size[key(row)] += int(row["bytes"])
    return {k: (packets[k], size[k]) for k in packets}


def jsonl(path: Path) -> list[Row]:
    return [
        {k: str(v) for k, v in json.loads(line).items()} for line in path.read_text().splitlines()
    ]


@pytest.mark.slow
def test_every_packet_is_in_both_ends_tables(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    began = datetime.now(UTC)
    here = (
        "run", "-i", "left", "--headless", "--interval", "0.1", "-o", str(tmp_path / "l"),
        "--views", ",".join(("flows", "windows", *KINDS)),
    )  # fmt: skip
    there = (
        "run", "-i", "right", "--headless", "--interval", "0.1", "-o", str(tmp_path / "r"),
        "--ingress", "tc",
    )  # fmt: skip
    with deck(*here, ns=left.ns) as one, deck(*there, "--format", "jsonl", ns=right.ns) as two:
        assert measures(tmp_path / "l")
        assert becomes(lambda: (tmp_path / "r/windows.jsonl").stat().st_size > 0, 10)
        segments = {}
        for version in (4, 6):
            send_udp(left, right, version, (1111, 2222), 300, 100)
            send_udp(right, left, version, (3333, 4444), 200, 1400)
            ping(left, right, version, 7)
            segments[version] = talk_tcp(left, right, version, (5555, 80))
        code, out, err = stop(one)
        assert (code, out) == (0, "")
        assert "0 lost" in err
        assert stop(two)[0] == 0

    table = rows(tmp_path / "l/flows.csv")
    found = sums(table)
    for version in (4, 6):
        a, b = address(left, version), address(right, version)
        headers = UDP_HEADERS[version]
        assert found["out", "17", a, "1111", b, "2222"] == (300, 300 * (headers + 100))
        assert found["in", "17", b, "3333", a, "4444"] == (200, 200 * (headers + 1400))
        echo = headers + 64  # an echo's header is as long as UDP's
        protocol, ask, answer = ("1", 8, 0) if version == 4 else ("58", 128, 129)
        (identifier,) = {key[3] for key in found if key[1] == protocol and key[5] == str(ask * 256)}
        assert found["out", protocol, a, identifier, b, str(ask * 256)] == (7, 7 * echo)
        assert found["in", protocol, b, identifier, a, str(answer * 256)] == (7, 7 * echo)
        sent, received = segments[version]
        assert found["out", "6", a, "5555", b, "80"][0] == sent
        assert found["in", "6", b, "80", a, "5555"][0] == received
        flags = 0
        for row in table:
            if key(row) == ("out", "6", a, "5555", b, "80"):
                assert row["ip_version"] == str(version)
                flags |= int(row["tcp_flags"])
        assert flags == 0x01 | 0x02 | 0x08 | 0x10  # FIN, SYN, PSH, ACK

    # The other end has seen the same, the other way round.
    mirrored = {
        ({"in": "out", "out": "in"}[direction], *rest): counts
        for (direction, *rest), counts in sums(jsonl(tmp_path / "r/flows.jsonl")).items()
    }
    ours = {
        k: v for k, v in found.items() if k[1] in ("1", "6", "17") or k[5] in ("32768", "33024")
    }
    assert ours
    assert ours.items() <= mirrored.items()

    ended = datetime.now(UTC)
    for row in table:
        start, first, last, end = (
            datetime.fromisoformat(row[name]) for name in ("start", "first", "last", "end")
        )
        assert began < start < end < ended
        assert start <= first <= last <= end
    windows = rows(tmp_path / "l/windows.csv")
    assert sum(int(row["packets"]) for row in windows) == sum(p for p, _ in found.values())
    assert sum(int(row["bytes"]) for row in windows) == sum(b for _, b in found.values())
    assert sum(int(row["not_ip"]) for row in windows) > 0  # ARP
    assert {row["malformed"] + row["table_full"] + row["filtered"] for row in windows} == {"000"}
    check_groups(tmp_path / "l", windows)
    services = {row["service"] for row in rows(tmp_path / "l/services.csv")}
    assert services >= {"http", "udp/1111", "udp/3333", "icmp", "icmp6"}
    assert not (tmp_path / "r/conversations.jsonl").exists()


@pytest.mark.slow
@pytest.mark.timing
def test_windows_adjoin(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    arguments = ("run", "-i", "left", "--headless", "--interval", "0.05", "-o", str(tmp_path))
    with deck(*arguments, "--duration", "1.5", ns=left.ns) as run:
        while run.poll() is None:
            send_udp(left, right, 4, (1111, 2222), 10, 10)
            time.sleep(0.01)
    table = rows(tmp_path / "windows.csv")
    assert [int(row["window"]) for row in table] == list(range(1, len(table) + 1))
    assert 25 <= len(table) <= 32
    for before, after in pairwise(table):
        assert before["end_monotonic_ns"] == after["start_monotonic_ns"]
        assert before["end"] == after["start"]
    lengths = [int(r["end_monotonic_ns"]) - int(r["start_monotonic_ns"]) for r in table[:-1]]
    assert 0.049e9 < np.median(lengths) < 0.055e9
    assert {row["schema"] for row in table} == {"windows/7"}
    assert {(row["interface"], row["probe"], row["generation"]) for row in table} == {
        ("left", "flow", "1")
    }
    flows = Counter(row["window"] for row in rows(tmp_path / "flows.csv"))
    assert all(flows[row["window"]] == int(row["rows"]) for row in table)
    told = [row["text"].split(":")[0] for row in rows(tmp_path / "events.csv")]
    # The event with the size of the tables comes before the first attachment.
    assert told[0].startswith("the tables take ")
    assert set(told[1:]) == {"tc ingress", "tc egress"}


@pytest.mark.slow
def test_a_reader_of_standard_output_gets_rows_as_windows_end(pair: tuple[End, End]) -> None:
    left, right = pair
    arguments = ("run", "-i", "left", "--headless", "--interval", "0.1", "--capture", "proto:udp")
    with deck(*arguments, ns=left.ns) as run:
        assert run.stdout
        assert run.stderr
        assert run.stderr.readline().startswith("probedeck: flow: the tables take ")
        assert run.stderr.readline().startswith(f"probedeck: left: tc ingress: {TC_MODE} ")
        poll = select.poll()
        poll.register(run.stdout, select.POLLIN)
        for _ in range(3):
            send_udp(left, right, 4, (1111, 2222), 1, 10)
            while True:
                assert poll.poll(2000)
                if (line := run.stdout.readline()).startswith("flows/3,"):
                    break
                assert line == ",".join(VIEWS["flows"].header) + "\n"
        assert run.poll() is None
        code, out, err = stop(run)
    assert code == 0
    assert all(line.startswith("flows/3,") for line in out.splitlines())
    assert err.splitlines()[-1].startswith("probedeck: ")


@pytest.mark.slow
def test_only_what_is_captured_is_in_flows(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    arguments = (
        "run", "-i", "left", "--headless", "--interval", "0.1", "-o", str(tmp_path),
        "--capture", "proto:udp dport:2222,2223 ip:4", "--views", "flows,windows",
    )  # fmt: skip
    with deck(*arguments, ns=left.ns) as run:
        assert measures(tmp_path)
        for version in (4, 6):
            for port in (2222, 2223, 2224):
                send_udp(left, right, version, (1111, port), 10, 10)
        ping(left, right, 4, 3)
        stop(run)
    a, b = left.ipv4, right.ipv4
    assert sums(rows(tmp_path / "flows.csv")) == {
        ("out", "17", a, "1111", b, "2222"): (10, 520),
        ("out", "17", a, "1111", b, "2223"): (10, 520),
    }
    filtered = sum(int(row["filtered"]) for row in rows(tmp_path / "windows.csv"))
    # Four more flows of UDP, and six of ICMP; and whatever IPv6 has to say about neighbours.
    assert 46 <= filtered < 70
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flows.csv", "windows.csv"]


@pytest.mark.slow
def test_the_lab_into_standard_output() -> None:
    with deck("lab", "--headless", "--duration", "2", "--format", "jsonl", "-o", "-") as run:
        assert run.stderr
        assert run.stderr.readline().startswith("probedeck: flow: the tables take ")
        assert run.stderr.readline().startswith("probedeck: eth0: ")
        remains = Remains(run)
        out, err = run.communicate(timeout=20)
    assert run.returncode == 0
    remains.assert_gone()
    table = [json.loads(line) for line in out.splitlines()]
    assert {row["schema"] for row in table} == {"flows/3"}
    assert {(row["ip_version"], row["protocol"]) for row in table} >= {
        (4, 1), (4, 6), (4, 17), (6, 6), (6, 17), (6, 58),
    }  # fmt: skip
    packets = sum(row["packets"] for row in table)
    assert f"{packets} packets in flows, 0 lost" in err


@pytest.mark.slow
def test_nohup_keeps_it_running(pair: tuple[End, End], tmp_path: Path) -> None:
    arguments = ("run", "-i", "left", "--headless", "--interval", "0.1", "-o", str(tmp_path))

    def as_nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with deck(*arguments, ns=pair[0].ns, preexec_fn=as_nohup) as run:
        assert measures(tmp_path)
        run.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert run.poll() is None
        assert stop(run)[0] == 0


@pytest.mark.slow
def test_views_are_chosen_once_each(pair: tuple[End, End], tmp_path: Path) -> None:
    arguments = ("run", "-i", "left", "--headless", "--duration", "0.2", "-o", str(tmp_path))
    assert deck_ends(*arguments, "--views", "windows,windows", ns=pair[0].ns)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["windows.csv"]
    assert [row["window"] for row in rows(tmp_path / "windows.csv")] == ["1"]


def window(number: int, flows: int = 100) -> Snapshot:
    now = time.monotonic_ns()
    return Snapshot(
        "flow", "left", number, 1, now - 1, now, time.time_ns(), np.zeros(flows, FLOW), {}, 0, 0, 0
    )


@pytest.mark.timing
def test_a_slow_writer_holds_windows_back_and_loses_none() -> None:
    budget = 3 * 100 * FLOW.itemsize
    mailbox = Mailbox(budget)
    given = []

    def give() -> None:
        for number in range(1, 31):
            mailbox.put(window(number))
            given.append(number)
        mailbox.put(Event.now("info", "left", "the last"))

    thread = Thread(target=give, daemon=True)
    thread.start()
    assert becomes(lambda: len(given) == 3)
    time.sleep(0.1)
    taken: list[Snapshot | Event] = []
    for item in mailbox.until_stopped(time.monotonic() + 1):
        taken.append(item)
        time.sleep(0.005)
        assert len(given) <= len(taken) + 3 + 1
        if isinstance(item, Event):
            mailbox.stop()
    thread.join()
    assert [i.window for i in taken if isinstance(i, Snapshot)] == list(range(1, 31))
    assert len(taken) == 31


def test_a_full_mailbox_does_not_keep_the_last_window_from_coming() -> None:
    mailbox = Mailbox(1)
    mailbox.put(window(1))
    thread = Thread(target=lambda: mailbox.put(window(2)), daemon=True)
    thread.start()
    mailbox.stop()
    assert list(mailbox.until_stopped(time.monotonic() + 1)) == []
    mailbox.let_all_in()
    thread.join(2)
    assert not thread.is_alive()
    assert [i.window for i in mailbox.rest() if isinstance(i, Snapshot)] == [1, 2]


@pytest.mark.timing
def test_a_signal_ends_the_mailbox_wherever_it_strikes() -> None:
    mailbox = Mailbox()
    before = signal.signal(signal.SIGUSR1, lambda *_: mailbox.stop())
    try:
        for _ in range(500):
            mailbox = Mailbox()
            thread = Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
            started = time.monotonic()
            thread.start()
            assert list(mailbox.until_stopped(started + 5)) == []
            assert time.monotonic() - started < 1
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
