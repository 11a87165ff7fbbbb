"""Drops of the kernel, made for real between two namespaces: counted by flow and reason."""

from __future__ import annotations

import csv
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.lab.netns import inside
from bpf.attach.interface import find
from bpf.compiler import Compiler
from bpf.errors import KernelError
from probes.control import controller as controllers
from probes.control.controller import Controller
from probes.drops import probe as module
from probes.drops.counted import Dropped, by_reason, of_flow, summed
from probes.drops.probe import DropsProbe, drops_config, prepare, reason_names
from probes.hooks import Hooks
from probes.path.marks import request_mark
from probes.snapshot import LossReason, Snapshot
from tests.support.compiling import Shared
from tests.support.runs import deck_ends
from tests.support.veth import End, veth_pair

CLOSED = 9999
UDP_HEADER = 8


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


@pytest.fixture
def probe(compiler: Compiler) -> Iterator[DropsProbe]:
    hooks = Hooks(lambda point: point.attach())
    with closing(prepare(compiler, hooks, find("lo"), 0)()) as probe:
        yield probe


def export(probe: DropsProbe) -> tuple[Snapshot, Snapshot]:
    flows, reasons = (item for item in probe.export() if isinstance(item, Snapshot))
    return flows, reasons


def udp(end: End, version: int = 4) -> socket.socket:
    """A socket on the end's address and a free port."""
    with inside(end.ns):
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.bind((end.ipv4 if version == 4 else end.ipv6, 0))
        return made


def port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


@pytest.mark.parametrize("version", [4, 6])
def test_datagrams_to_a_closed_port_have_no_socket(
    probe: DropsProbe, pair: tuple[End, End], version: int
) -> None:
    left, right = pair
    one, other = (left.ipv4, right.ipv4) if version == 4 else (left.ipv6, right.ipv6)
    with udp(left, version) as sender:
        for _ in range(7):
            try:
                sender.sendto(bytes(100), (other, CLOSED))
            except ConnectionRefusedError:
                pytest.fail("an unconnected socket hears no ICMP error")
        ports = (port(sender), CLOSED)
        flows, reasons = export(probe)
    expected = (Dropped("no_socket", 7, 7 * (UDP_HEADER + 100)),)
    assert of_flow(flows, packed(one), packed(other), ports) == expected
    assert of_flow(flows, packed(other), packed(one), ports[::-1]) == expected
    assert of_flow(flows, packed(one), packed(other), (1, CLOSED)) == ()
    (row,) = flows.rows[flows.rows["key"]["source_port"] == socket.htons(ports[0])]
    assert (row["key"]["protocol"], row["key"]["version"]) == (17, version)
    assert row["key"]["interface"] == right.ifindex
    assert row["key"]["namespace"] == os.fstat(right.ns).st_ino
    assert {each.reason: each.packets for each in by_reason(reasons)}["no_socket"] >= 7
    assert by_reason(flows) == of_flow(reasons, packed(one), packed(other), ports) == ()
    assert export(probe)[0].window == 2, "each window begins empty"


def test_a_full_buffer_drops_what_the_reader_misses(
    probe: DropsProbe, pair: tuple[End, End]
) -> None:
    left, right = pair
    with udp(left) as sender, udp(right) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(30):
            sender.sendto(bytes(1000), receiver.getsockname())
        ports = (port(sender), port(receiver))
        flows, _ = export(probe)
        got = 0
        receiver.setblocking(False)
        while True:
            try:
                receiver.recv(2000)
            except BlockingIOError:
                break
            got += 1
    (dropped,) = of_flow(flows, packed(left.ipv4), packed(right.ipv4), ports)
    assert got > 0
    assert (dropped.reason, dropped.packets) == ("socket_rcvbuff", 30 - got)


def test_a_wrong_checksum_is_told_and_a_normal_end_is_not(
    probe: DropsProbe, pair: tuple[End, End]
) -> None:
    left, right = pair
    with udp(left) as sender, udp(right) as receiver:
        for _ in range(20):
            sender.sendto(b"good", receiver.getsockname())
            assert receiver.recv(100) == b"good"
        good = (port(sender), port(receiver))
        with inside(left.ns):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        with raw:
            bad = struct.pack("!4H", 7, CLOSED, UDP_HEADER + 4, 0xBAD) + b"evil"
            for _ in range(3):
                raw.sendto(bad, (right.ipv4, 0))
        flows, _ = export(probe)
    one, other = packed(left.ipv4), packed(right.ipv4)
    assert of_flow(flows, one, other, good) == ()
    (dropped,) = of_flow(flows, one, other, (7, CLOSED))
    assert (dropped.reason, dropped.packets) == ("udp_csum", 3)


def test_packets_of_path_tracing_are_no_drops_of_their_flow(
    probe: DropsProbe, pair: tuple[End, End]
) -> None:
    """A probe with a TTL ends at a router; it may be a namespace of this host."""
    left, right = pair
    marked = request_mark(1, 0x5EC1)
    one, other = packed(left.ipv4), packed(right.ipv4)
    with udp(left) as sender, inside(left.ns):
        for data in (marked, marked + bytes(1000), b"x" + marked, marked[:3]):
            sender.sendto(data, (right.ipv4, CLOSED))
        ports = (port(sender), CLOSED)
        with inside(right.ns):
            listener = socket.create_server((right.ipv4, CLOSED))
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        with listener, raw:  # a listener drops segments without a flag, and does not answer
            for urgent, data in ((7, b""), (0, b""), (7, b"x")):
                raw.sendto(tcp_without_flags(one, other, urgent, data), (right.ipv4, 0))
    flows, _ = export(probe)
    assert [each.packets for each in of_flow(flows, one, other, ports)] == [2]
    assert sum(each.packets for each in of_flow(flows, one, other, (7, CLOSED))) == 2
    key, value = flows.rows["key"], flows.rows["value"]
    mine = key["destination_port"] == socket.htons(CLOSED)
    assert value["packets"][mine & (key["tracing"] == 1)].sum() == 3


def tcp_without_flags(source: bytes, destination: bytes, urgent: int, data: bytes) -> bytes:
    header = struct.pack("!HHIIBBHHH", 7, CLOSED, 0, 0, 5 << 4, 0, 0, 0, urgent) + data
    pseudo = source + destination + struct.pack("!HH", socket.IPPROTO_TCP, len(header))
    words = pseudo + header + bytes(len(header) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xFFFF) + (total >> 16)
    check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return header[:16] + struct.pack("!H", check) + header[18:]


def test_more_flows_than_the_table_holds_are_lost_by_flow_and_whole_by_reason(
    compiler: Compiler, pair: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = drops_config(0)
    assert config.event is not None
    small = config.event.source.replace("#define ENTRIES 16384", "#define ENTRIES 8")
    monkeypatch.setattr(module, "drops_config", lambda _: config.with_source("event", small))
    left, right = pair
    hooks = Hooks(lambda point: point.attach())
    with closing(prepare(compiler, hooks, find("lo"), 0)()) as probe, udp(left) as sender:
        before = {each.reason: each.packets for each in by_reason(export(probe)[1])}
        assert before.get("no_socket", 0) < 50
        for number in range(100):
            sender.sendto(b"x", (right.ipv4, 20000 + number))
        flows, reasons = export(probe)
    (total,) = [each.packets for each in by_reason(reasons) if each.reason == "no_socket"]
    assert total >= 100
    kept = sum(each.packets for each in _of_rows(flows))
    lost = flows.losses[LossReason.TABLE_FULL].packets
    everything = sum(each.packets for each in summed(by_reason(reasons)))
    assert (len(flows.rows), lost >= 92) == (8, True)
    # The host's other drops go on: losses of the next window may be among these.
    assert kept + lost >= everything


def _of_rows(flows: Snapshot) -> list[Dropped]:
    return [Dropped("", int(each["packets"]), 0) for each in flows.rows["value"]]


def test_reasons_have_the_kernel_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = reason_names()
    assert {"no_socket", "netfilter_drop", "not_specified", "udp_csum"} <= set(names.values())

    class Old:
        def enumerators(self, name: str) -> dict[int, str]:
            raise KernelError(name)

        def offset(self, type_: str, member: str) -> int:
            return 0

    monkeypatch.setattr(module, "kernel_types", Old)
    assert reason_names.__wrapped__() == {0: "not_specified"}
    monkeypatch.setattr(module, "reason_names", reason_names.__wrapped__)
    assert drops_config(1.0).event is not None


def test_a_source_without_reasons_compiles(
    compiler: Compiler, pair: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for kernels before 5.17."""
    monkeypatch.setattr(module, "reason_names", lambda: {0: "not_specified"})
    left, right = pair
    hooks = Hooks(lambda point: point.attach())
    with closing(prepare(compiler, hooks, find("lo"), 0)()) as probe, udp(left) as sender:
        sender.sendto(b"x", (right.ipv4, CLOSED))
        flows, _ = export(probe)
        ports = (port(sender), CLOSED)
    (dropped,) = of_flow(flows, packed(left.ipv4), packed(right.ipv4), ports)
    assert (dropped.reason, dropped.packets) == ("not_specified", 1)


def test_a_controller_counts_drops_until_it_is_told_to_stop(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with Controller() as controller:
        controller.switch("drops", True)
        controller.switch("drops", True)
        (info,) = controller.probes()
        assert (info.name, info.builtin) == ("drops", True)
        assert len(controller.export("drops")) == 2
        controller.switch("drops", False)
        controller.switch("drops", False)
        assert controller.probes() == ()


def test_a_run_writes_the_tables(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    with udp(left) as sender:
        sender.sendto(b"x", (right.ipv4, CLOSED))
        arguments = ("run", "-i", right.ifname, "--headless", "--drops", "--format", "csv")
        code, _, err = deck_ends(
            *arguments, "-o", f"{tmp_path}/", "--duration", "0.5", "--interval", "0.2",
            ns=right.ns,
        )  # fmt: skip
    assert code == 0, err
    with open(tmp_path / "drops.event.drops.csv", newline="") as file:
        header = next(csv.reader(file))
    assert {"key.source", "key.reason", "value.packets"} <= set(header)
    assert (tmp_path / "drops.event.drop_reasons.csv").exists()
