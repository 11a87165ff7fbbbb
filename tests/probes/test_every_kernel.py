"""Each supported kernel must load every program that comes with probedeck, and count.

`.ci/kernels` runs this module on other kernels, where an emulated machine is slow: no test depends
on time. Tests with the mark `repeats` run in no other way unless this file is named: on the host's
own kernel the tests of the probe promise the same.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.doctor.host import kernel, try_features
from app.doctor.owners import owner_sources
from app.lab.netns import fresh, inside, write_sysctls
from bpf import features
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface, cgroup2
from bpf.compiler import Compiler, client
from bpf.errors import KernelError
from bpf.kernel_types import kernel_types
from bpf.maps.kinds import unlock
from bpf.requirements import Status
from bpf.syscall import opened, prog_test_run
from probes.config.model import load
from probes.control import controller as controllers
from probes.control.builtin_probes import FLOW_PROBE
from probes.drops.counted import of_flow
from probes.flow.kinds import REPEATED
from probes.flow.options import FlowOptions
from probes.flow.records import FlowDirection
from probes.hooks import Hooks
from probes.monitor.actions.capture import MOST_SECONDS
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.policy import BUILT_IN, Policy
from probes.monitor.probe import MonitorProbe
from probes.monitor.state import METRICS_TABLE, PROBE, TRIGGERS_TABLE
from probes.names.learned import learned
from probes.path.events.words import address_of
from probes.path.options import PathOptions
from probes.path.records import HOPS_TABLE
from probes.segment.options import SegmentOptions
from probes.segment.records import DIGESTS_TABLE
from probes.snapshot import Snapshot
from probes.sockets.holders import Holders, SocketEvents
from probes.tunnels import Tunnels
from tests.bpf.cgroups import cgroup, python_in
from tests.bpf.tools import descriptor_numbers, send
from tests.probes.conftest import EMULATED_S, MakeProbe
from tests.probes.deck import UDP, Deck, deck, published, udp
from tests.probes.flow.bonded_host import FAR, NEAR, bonded_host
from tests.probes.flow.pod_host import ip, path, ping
from tests.probes.flow.test_interfaces import watching
from tests.probes.names.tools import DNS_FRAME, TLS_FRAME
from tests.probes.test_examples import CONFIGS
from tests.support.compiling import Shared
from tests.support.kernel import name_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

__all__ = ["deck"]

PACKETS = 300
MANY = 100_000
"""Packets that the kernel runs through a hook."""
PORT = 9
"""Where `send` sends to."""
FRAME = 14 + 20 + 8 + 4
"""Bytes of such a packet's frame."""
IP_IN_IP = (
    bytes(12)
    + struct.pack("!HBBHIBBHII", 0x0800, 0x45, 0, 48, 0, 64, 4, 0, 1, 2)
    + struct.pack("!BBHIBBHII", 0x45, 0, 28, 0, 64, 17, 0, 3, 4)
    + struct.pack("!HHHH", 1000, PORT, 8, 0)
)
MANY_FRAME = (
    bytes(12)
    + struct.pack("!HBBHIBBHII", 0x0800, 0x45, 0, 32, 0, 64, 17, 0, 0x0A5F0003, 0x0A5F0002)
    + struct.pack("!HHHH", 1000, PORT, 12, 0)
    + bytes(4)
)
PATIENCE_S = 60.0
ROOM = 800_000
"""Of a million instructions; an older verifier follows more of the same program."""
LIBBPF = """\
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} packets SEC(".maps");

SEC("xdp") int count(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data;
    __u32 zero = 0;
    __u64 *n = bpf_map_lookup_elem(&packets, &zero);

    if (frame + 34 > (__u8 *)(long)ctx->data_end || frame[12] != 8 || frame[13] || frame[23] != 17)
        return XDP_PASS;
    if (n)
        __sync_fetch_and_add(n, 1);
    return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
"""
"""The program `UDP` for libbpf."""
COUNTED = "counted: packets on proto:udp >= {} and sources on proto:udp < 3 -> accounting"
"""A policy whose condition is true of so many packets of a host."""
REPEATS = pytest.mark.repeats
INGRESS = pytest.mark.parametrize("ingress", [Hook.XDP, Hook.TC_INGRESS], ids=["xdp", "tc"])


def triggered(deck: Deck) -> set[str]:
    """Names of policies whose condition has become true."""
    return {name.decode() for name in published(deck, PROBE, TRIGGERS_TABLE)["policy"]}


def has_atomic_exchange() -> bool:
    try:
        features.try_atomic_exchange()
    except OSError:
        return False
    return True


def test_the_compile_helper_works(deck: Deck) -> None:
    """Other tests may find their sources compiled, by another kernel's machine."""
    with client.Compiler(cpu_limit=EMULATED_S) as compiler:
        deck.controller._compiler = compiler
        deck.controller.add(deck.config())
    deck.run(PACKETS, udp())
    (packets,) = deck.controller.export("probe")
    assert packets.rows["value"].sum() == PACKETS


@INGRESS
def test_flows_are_counted_and_packets_kept_to_the_packet(deck: Deck, ingress: Hook) -> None:
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=300, ingress=name_of(ingress)))
    deck.controller.paths.configure("right", PathOptions())
    deck.controller.keep_packets(f"udp dport:{PORT}")
    deck.receive(PACKETS)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    (kept,) = deck.controller.ring().selections
    assert (kept.kept, kept.missed) == (2 * PACKETS, 0)
    newest = deck.controller.kept_packets(2 * PACKETS)
    assert [each.outgoing for each in newest] == [False] * PACKETS + [True] * PACKETS
    assert {each.length for each in newest} == {FRAME}
    sent = [int.from_bytes(bytes.fromhex(each.data)[-4:], "little") for each in newest]
    assert sent == [*range(PACKETS)] * 2
    prog_test_run(deck.fd(ingress), MANY_FRAME, repeat=MANY)
    deck.controller.packets.save = lambda capture: ""
    ledger = deck.controller.write_packets(seconds=MOST_SECONDS).ledger
    assert ledger.selected == ledger.written + ledger.overwritten == 2 * PACKETS + MANY
    deck.controller.remove("flow")
    rows = published(deck, "flow")
    rows = rows[rows["destination_port"] == PORT]
    for direction in FlowDirection:
        one = rows[rows["direction"] == direction]
        sent_so = PACKETS + MANY * (direction == FlowDirection.INGRESS)
        assert one["packets"].sum() == sent_so
        assert one["bytes"].sum() == sent_so * FRAME


@REPEATS
@pytest.mark.parametrize("source", [UDP, LIBBPF], ids=["bcc", "libbpf"])
def test_own_programs_are_swapped_while_packets_come(deck: Deck, source: str) -> None:
    """Both generations together count each packet once."""
    deck.controller.add(deck.config(source))
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(deck.run, MANY, MANY_FRAME)
        deck.controller.replace(deck.config(source.replace("34 >", "35 >")))
        sent.result()
    deck.controller.export("probe")
    assert published(deck, "probe", "packets")["value"].sum() == MANY
    assert deck.info().generation == 2


@REPEATS
@INGRESS
def test_flows_of_tunnels(make_probe: MakeProbe, ingress: Hook) -> None:
    """The largest of all programs."""
    loose = make_probe(ingress, tunnels=Tunnels.BOTH)
    prog_test_run(loose.fd, IP_IN_IP)
    assert sorted(loose.probe.poll().rows["protocol"]) == [4, 17]


@INGRESS
def test_the_monitor_looks_into_tunnels(compiler: Compiler, ingress: Hook) -> None:
    hooks = Hooks(lambda point: None)
    options = MonitorOptions(bits=8, ingress=ingress, tunnels=Tunnels.INNER)
    with closing(MonitorProbe(compiler, Interface("test", 0, True), hooks, options)) as monitor:
        (point,) = hooks.in_use()
        prog_test_run(point.chain.fd, IP_IN_IP)
        (row,) = next(each.rows for each in monitor.export() if isinstance(each, Snapshot))
        assert row["packets"] == row["udp_packets"] == 1


def followed() -> int:
    """Most instructions that the verifier followed for a program of ours; 0 before Linux 5.16."""
    return max(descriptor_numbers("verified_insns", os.getpid()), default=0)


@INGRESS
def test_the_monitor_counts_and_hands_packets_to_every_application(
    deck: Deck, ingress: Hook
) -> None:
    controller = deck.controller
    controller.watch_metrics("right", MonitorOptions(bits=8, interval=300, ingress=ingress))
    controller.set_policy(
        Policy.parse_short(f"all: always -> {', '.join(BUILT_IN)} on proto:udp dport:{PORT}")
    )
    controller.set_policy(Policy.parse_short(COUNTED.format(PACKETS)))
    deck.receive(PACKETS)
    info = controller.monitor()
    assert info
    assert {app.name: app.packets for app in info.applications} == dict.fromkeys(BUILT_IN, PACKETS)
    assert followed() < ROOM
    controller.remove(PROBE)
    assert published(deck, PROBE, METRICS_TABLE)["udp_packets"].sum() == PACKETS
    assert "counted" in triggered(deck)


@REPEATS
@INGRESS
def test_actions_take_packets(deck: Deck, ingress: Hook) -> None:
    options = MonitorOptions(bits=8, interval=300, ingress=ingress, allow_actions=True)
    deck.controller.watch_metrics("right", options)
    deck.controller.set_policy(Policy.parse_short(f"taken: always -> drop on udp dport:{PORT}"))
    prog_test_run(deck.fd(ingress), MANY_FRAME, repeat=MANY)
    deck.controller.export(PROBE)
    monitored = deck.controller.monitor()
    assert monitored
    (taken,) = (each.action for each in monitored.policies)
    assert taken
    assert taken.packets == MANY
    for action, arrives in (("drop", 0), ("limit 0.01pps", 1), ("dry drop", 2)):
        text = f"taken: always -> {action} on udp dport:{PORT}"
        deck.controller.set_policy(Policy.parse_short(text))
        assert send(deck.left, deck.right, 2) == arrives
    deck.controller.set_policy(Policy.parse_short(f"taken: always -> drop on udp dport:{PORT}"))
    assert deck.controller.stop_actions() == 1
    deck.receive(PACKETS)
    deck.controller.remove(PROBE)
    packets = published(deck, PROBE, METRICS_TABLE)["udp_packets"].sum()
    assert packets == MANY + 1 + 2 + 2 + PACKETS


@pytest.mark.timeout(600)  # Its programs may be verified for the first time.
@pytest.mark.parametrize("interface", ["any", "any,bond0,bond0.5"])
def test_each_packet_counts_once_with_bonds_and_vlans(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with bonded_host() as (host, peer):
        ping(host, FAR, 4)  # Neighbours are known then.
        with watching(host, interface) as window:
            for sender, address in ((host, FAR), (peer, NEAR)):
                window()
                ping(sender, address, 20)
                found = window()
                assert sum(found.echoes().values()) == 20
                assert found.total == 40
                again = sum(found.echoes(REPEATED).values())
                assert again == (0 if interface == "any" else 40)
                links = [found.both_ways(name) for name in ("eth0", "eth1")]
                assert sum(links) == 40
                assert min(links) > 0


@INGRESS
def test_telemetry_records_are_handed_to_every_application(deck: Deck, ingress: Hook) -> None:
    controller = deck.controller
    receiver = Receiver(deck.left.ipv4, PORT, deck.right.ipv4, PORT)
    options = MonitorOptions(
        bits=8, interval=300, ingress=ingress, input=Input.TELEMETRY, receivers=(receiver,)
    )
    controller.watch_metrics("right", options)
    takers = [name for name in BUILT_IN if name != "tcp_health"]  # records have no sequence numbers
    controller.set_policy(Policy.parse_short(f"all: always -> {', '.join(takers)}"))
    controller.set_policy(Policy.parse_short(COUNTED.format(2 * PACKETS)))
    record = struct.pack("!4s4sHHIQHHHBB", b"\x0a" * 4, b"\x0b" * 4, 1, 2, 0, 0, 0, 100, 0, 17, 0)
    with inside(deck.left.ns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.bind((deck.left.ipv4, PORT))
        for _ in range(PACKETS):
            sender.sendto(struct.pack("!HH", 1, 2) + record * 2, (deck.right.ipv4, PORT))
    info = controller.monitor()
    assert info
    assert {a.name: a.packets for a in info.applications} == dict.fromkeys(takers, 2 * PACKETS)
    assert followed() < ROOM
    controller.remove(PROBE)
    assert published(deck, PROBE, METRICS_TABLE)["udp_packets"].sum() == 2 * PACKETS
    assert "counted" in triggered(deck)


@contextmanager
def beyond(deck: Deck) -> Iterator[str]:
    """The address of a host behind the left end, which is a router then."""
    with opened(fresh()) as far:
        ip(deck.left.ns, f"link add far type veth peer name near netns {path(far)}",
           "addr add 10.96.0.1/24 dev far", "link set far up")  # fmt: skip
        ip(far, "addr add 10.96.0.2/24 dev near", "link set near up",
           "route add default via 10.96.0.1")  # fmt: skip
        write_sysctls(deck.left.ns, {"net/ipv4/ip_forward": "1"})
        ip(deck.right.ns, f"route add 10.96.0.0/24 via {deck.left.ipv4}")
        yield "10.96.0.2"


@REPEATS
@INGRESS
def test_a_path_is_traced_through_a_router(
    deck: Deck, ingress: Hook, record_property: Callable[[str, object], None]
) -> None:
    """Without atomic exchanges in the kernel, tracing fails with that reason."""
    deck.controller.paths.configure("right", PathOptions(ingress=ingress))
    with beyond(deck) as destination:
        if not has_atomic_exchange():
            with pytest.raises(KernelError, match="path tracing needs atomic exchanges") as refused:
                deck.controller.trace(destination)
            record_property("refused", str(refused.value))
            return
        deck.controller.trace(destination)
        with inside(deck.right.ns):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def routers() -> set[str]:
            sender.sendto(b"x", (destination, PORT))
            deck.controller.export("path")
            hops = published(deck, "path", HOPS_TABLE)
            return {address_of(hop, "responder") for hop in hops}

        with sender:
            wait_for(lambda: deck.left.ipv4 in routers(), PATIENCE_S)


@REPEATS
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_example_runs(deck: Deck, path: Path) -> None:
    """Each loads, and each but those that want TCP has rows of UDP traffic."""
    config = load(path).on("right")
    if config.event:
        must_describe_types()
    deck.controller.add(config)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    if path.stem != "dropper":
        deck.receive(PACKETS)
    rows = [len(snapshot.rows) for snapshot in deck.controller.export(config.name)]
    assert any(rows) or path.stem in ("dns", "events", "retransmissions")


def must_describe_types() -> None:
    """Skip a test of events on a kernel without BTF or cgroup2."""
    try:
        kernel_types()
        cgroup2()
    except KernelError as error:
        pytest.skip(str(error))


@REPEATS
def test_sockets_are_told_with_their_processes(compiler: Compiler) -> None:
    must_describe_types()
    unlock()
    with cgroup() as folder, SocketEvents(compiler, folder) as events:
        with python_in(folder, "import socket; socket.socket().close()") as process:
            process.wait()
        made, closed = events.read()
    assert (made["tgid"], made["cookie"]) == (closed["tgid"], closed["cookie"])
    assert made["tgid"] == process.pid
    assert made["netns"] == os.stat("/proc/self/ns/net").st_ino


@REPEATS
def test_holders_of_sockets_are_found(compiler: Compiler) -> None:
    with Holders(compiler) as holders, socket.socket(type=socket.SOCK_DGRAM) as held:
        found: list[Any] = []
        while not holders.passes:
            rows = holders.read(PATIENCE_S)
            found += rows[rows["inode"] == os.fstat(held.fileno()).st_ino].tolist()
        assert len(found) == 1
        # bpf_sock_from_file
    assert not holders.why_proc or "older than helper 162 of" in holders.why_proc


@REPEATS
def test_drops_are_counted(deck: Deck) -> None:
    must_describe_types()
    deck.controller.switch("drops", True)
    ends = [socket.inet_aton(end.ipv4) for end in (deck.left, deck.right)]
    with inside(deck.left.ns), socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind((deck.left.ipv4, 0))
        ports = sender.getsockname()[1], PORT
        for _ in range(5):
            sender.sendto(b"x", (deck.right.ipv4, PORT))
        flows, _ = deck.controller.export("drops")
    (dropped,) = of_flow(flows, ends[0], ends[1], ports)
    assert dropped.packets == 5
    assert dropped.reason in ("no_socket", "not_specified")


@REPEATS
def test_the_doctor_names_missing_features(
    record_property: Callable[[str, object], None],
) -> None:
    for check in (*kernel(), *try_features(), *owner_sources()):
        if check.status is not Status.OK:
            record_property(check.name, f"{check.detail}; {check.remedy}".removesuffix("; "))


@REPEATS
def test_names_are_learned(deck: Deck) -> None:
    deck.controller.paths.configure("right", PathOptions())
    deck.controller.switch("names", True)
    prog_test_run(deck.fd(Hook.TC_INGRESS), DNS_FRAME)
    prog_test_run(deck.fd(Hook.TC_EGRESS), TLS_FRAME)
    (ingress, egress) = deck.controller.export("names")
    assert {name.name for name in learned(ingress)} == {"www.example"}
    assert {name.name for name in learned(egress)} == {"shop.example"}


@REPEATS
def test_packets_have_digests(deck: Deck) -> None:
    deck.controller.paths.configure("right", PathOptions())
    options = SegmentOptions("secret", capture=f"proto:udp dport:{PORT}", interval=300)
    deck.controller.measure_segment(options)
    deck.receive(PACKETS)
    assert send(deck.right, deck.left, PACKETS) == PACKETS
    for table in deck.controller.export("segment"):
        if table.metric == DIGESTS_TABLE:
            assert len(set(table.rows["value"]["digest"].tolist())) == PACKETS, table.side
