"""Large segments (TSO, GSO, GRO) in every probe: the packets and bytes that are on the wire."""

from __future__ import annotations

import ctypes as ct
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from scapy.layers.inet import GRE, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, PadN
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from bpf.abi import BpfCommand, InfoByFd
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.syscall import call, prog_test_run
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.state import METRICS_TABLE
from probes.netflow.generator import source as netflow
from probes.snapshot import LossReason, Snapshot
from tests.probes.conftest import MakeProbe
from tests.probes.monitor.bed import Bed, application, frame, records
from tests.probes.running import running, sk_buff

TC = [Hook.TC_INGRESS, Hook.TC_EGRESS]
MSS, PACKETS, LAST = 200, 6, 73
PAYLOAD = (PACKETS - 1) * MSS + LAST
_VERIFIED_INSTRUCTIONS = 216
"""Place in `struct bpf_prog_info`; 0 is there before kernel 5.16."""
COUNTER = """\
#include "probe.h"
BPF_ARRAY(seen, u64, 2);
int count(CONTEXT *ctx) {
    u32 packets = 0, bytes = 1;
    seen.atomic_increment(packets, packets_of(ctx));
    seen.atomic_increment(bytes, bytes_of(ctx));
    return VERDICT_PASS;
}
"""


def ethernet() -> Packet:
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def geneve(options: int) -> Packet:
    """The header of a tunnel that carries Ethernet frames, with words of options."""
    header = struct.pack("!BBHI", options, 0, 0x6558, 7 << 8) + bytes(4 * options)
    return UDP(sport=40000, dport=6081) / Raw(header)


def stacks() -> Iterable[tuple[str, bytes]]:
    """The headers of a segment, with a name."""
    tcp = TCP(sport=1000, dport=2000)
    options = TCP(options=[("Timestamp", (1, 2)), ("NOP", None), ("NOP", None)])
    four, six = IP(src="192.0.2.1", dst="192.0.2.2"), IPv6(src="2001:db8::1", dst="2001:db8::2")
    pad = PadN(optdata=b"\0" * 12)
    inner = ethernet() / four / options
    tagged = ethernet() / Dot1Q(vlan=7)
    yield "TCP", ethernet() / four / tcp
    yield "TCP with options", ethernet() / four / options
    yield "IP with options", ethernet() / IP(options=[b"\x01" * 8]) / tcp
    yield "IPv6", ethernet() / six / options
    yield "UDP", ethernet() / four / UDP(sport=1000, dport=2000)
    yield "SCTP", ethernet() / six / SCTP(sport=7, dport=8)
    yield "VLAN", tagged / four / options
    yield "QinQ", ethernet() / Dot1AD(vlan=5) / Dot1Q(vlan=7) / six / tcp
    yield "three tags", tagged / Dot1Q(vlan=8) / Dot1Q(vlan=9) / four / tcp
    yield (
        "extension headers",
        ethernet() / six / IPv6ExtHdrHopByHop(options=[pad]) / IPv6ExtHdrDestOpt(options=[pad])
        / IPv6ExtHdrRouting(addresses=["2001:db8::5"]) / options,
    )  # fmt: skip
    yield "IP in IP", ethernet() / four / IP() / tcp
    yield "6in4", ethernet() / four / six / options
    yield "4in6", ethernet() / six / four / tcp
    yield "GRE", ethernet() / four / GRE() / four / options
    yield "GRE with a key", ethernet() / six / GRE(key_present=1, seqnum_present=1) / six / tcp
    yield "Ethernet in GRE", ethernet() / four / GRE(proto=0x6558) / inner
    yield "VXLAN", ethernet() / four / UDP(dport=4789) / VXLAN(vni=7) / inner
    yield "VXLAN by Linux", tagged / six / UDP(dport=8472) / VXLAN(vni=7) / tagged / six / tcp
    yield "Geneve", ethernet() / four / geneve(0) / inner
    yield "Geneve with options", ethernet() / six / geneve(5) / inner


STACKS = {name: bytes(headers) for name, headers in stacks()}
Counts = tuple[int, int]


def on_wire(headers: bytes) -> Counts:
    """Packets and bytes of the segment that `segment` builds."""
    return PACKETS, PAYLOAD + PACKETS * len(headers)


def segment(headers: bytes) -> bytes:
    return headers + bytes(PAYLOAD)


def contexts() -> list[Any]:
    """A segment with its number of packets, and one of a virtual machine."""
    return [
        pytest.param(sk_buff(segments=PACKETS, segment_size=MSS), id="gso_segs"),
        pytest.param(sk_buff(segment_size=MSS), id="gso_size"),
    ]


@pytest.mark.parametrize("context", contexts())
@pytest.mark.parametrize("hook", TC)
def test_each_packet_of_a_segment_has_all_its_headers(
    compiler: Compiler, hook: Hook, context: bytes
) -> None:
    """In a user's probe, by `packets_of` and `bytes_of`."""
    with running(compiler, COUNTER, hook) as probe:
        before = 0, 0
        for name, headers in STACKS.items():
            probe.send(segment(headers), context=context)
            after = dict(probe.entries("seen"))
            counted = after[0] - before[0], after[1] - before[1]
            before = after[0], after[1]
            assert counted == on_wire(headers), name


@pytest.mark.parametrize("hook", TC)
def test_the_verifier_does_not_follow_each_sequence_of_headers(
    make_probe: MakeProbe, hook: Hook
) -> None:
    """Its limit is a million instructions. It looks at 100,000, on Linux 6.1 at 270,000, and
    without `forget` at 800,000."""
    (side,) = make_probe(hook).probe._hooks
    info = ct.create_string_buffer(256)
    call(BpfCommand.OBJ_GET_INFO_BY_FD, InfoByFd(side.active.fd, len(info), ct.addressof(info)))
    (verified,) = struct.unpack_from("I", info, _VERIFIED_INSTRUCTIONS)
    assert verified < 300_000


@pytest.mark.parametrize("hook", TC)
@pytest.mark.parametrize("payload", [1, MSS - 1, MSS, MSS + 1, 2 * MSS, 2 * MSS + 1])
def test_a_segment_of_a_virtual_machine_has_as_many_packets_as_its_payload_needs(
    compiler: Compiler, hook: Hook, payload: int
) -> None:
    headers = STACKS["TCP with options"]
    with running(compiler, COUNTER, hook) as probe:
        probe.send(headers + bytes(payload), context=sk_buff(segment_size=MSS))
        packets = -(-payload // MSS)
        assert dict(probe.entries("seen")) == {0: packets, 1: payload + packets * len(headers)}


def test_a_packet_with_a_number_of_segments_but_no_size_is_one_packet(compiler: Compiler) -> None:
    """TCP sets gso_segs = 1 for packets that need no segmentation; the kernel asks for gso_size."""
    data = segment(STACKS["TCP"])
    with running(compiler, COUNTER, Hook.TC_EGRESS) as probe:
        probe.send(data, context=sk_buff(segments=3))
        assert dict(probe.entries("seen")) == {0: 1, 1: len(data)}


def test_on_egress_the_kernel_has_the_bytes_of_tunnels_that_nobody_knows(
    compiler: Compiler,
) -> None:
    headers = bytes(ethernet() / IP() / UDP(dport=9999) / Raw(bytes(44)))
    context = sk_buff(segments=PACKETS, segment_size=MSS, wire_len=on_wire(headers)[1])
    for hook, bytes_ in (
        (Hook.TC_EGRESS, on_wire(headers)[1]),
        # On ingress it does not tell: the tunnel's headers are missing but once.
        (Hook.TC_INGRESS, on_wire(headers)[1] - (PACKETS - 1) * 44),
    ):
        with running(compiler, COUNTER, hook) as probe:
            probe.send(segment(headers), context=context)
            assert dict(probe.entries("seen")) == {0: PACKETS, 1: bytes_}


@pytest.mark.parametrize("context", contexts())
@pytest.mark.parametrize("hook", TC)
def test_flows(make_probe: MakeProbe, hook: Hook, context: bytes) -> None:
    loose = make_probe(hook)
    data = segment(STACKS["TCP with options"])
    for _ in range(3):
        prog_test_run(loose.fd, data, context=context)
    prog_test_run(loose.fd, segment(bytes(ethernet()) + bytes(60)), context=context)
    snapshot = loose.probe.poll()
    packets, bytes_ = on_wire(STACKS["TCP with options"])
    assert snapshot.rows[["packets", "bytes"]].tolist() == [(3 * packets, 3 * bytes_)]
    assert snapshot.losses[LossReason.NOT_IP].packets > 1


@pytest.mark.parametrize("context", contexts())
def test_the_monitor_its_policies_and_applications(compiler: Compiler, context: bytes) -> None:
    options = MonitorOptions(bits=8, seed="test", ingress=Hook.TC_INGRESS)
    packets, bytes_ = on_wire(STACKS["IPv6"])
    with Bed(compiler, options) as bed:
        bed.add(application("counting"))
        bed.set("p: always -> counting on proto:tcp")
        bed.run(segment(STACKS["IPv6"]), context=context)
        assert bed.counted("counting") == (packets, bytes_)
        assert bed.monitor.router.given() == {"counting": packets}
        assert bed.monitor.router.selected() == {"p": packets}
        window = bed.window()
        assert window["policies"]["selected"].tolist() == [packets]
        assert window["metrics"][["packets", "bytes", "tcp_packets", "tcp_bytes"]].tolist() == [
            (packets, bytes_, packets, bytes_)
        ]


@pytest.mark.slow
def test_telemetry_datagrams_that_were_merged_are_a_loss(compiler: Compiler) -> None:
    """Only the first is read."""
    receiver = Receiver("192.0.2.1", 5000, "198.51.100.2", 6343)
    options = MonitorOptions(
        bits=8, input=Input.TELEMETRY, receivers=(receiver,), ingress=Hook.TC_INGRESS
    )
    one = records((bytes(4), bytes(4), 1, 2, 17, 1000))
    datagram = frame(layer=one)
    size = len(bytes(one)) - 8
    with Bed(compiler, options) as bed:
        bed.run(datagram + datagram[-size:] * 2, context=sk_buff(segments=3, segment_size=size))
        tables = (item for item in bed.monitor.export() if isinstance(item, Snapshot))
        (metrics,) = (table for table in tables if table.metric == METRICS_TABLE)
        assert metrics.rows["packets"].tolist() == [1]
        assert metrics.losses[LossReason.MALFORMED].packets == 2


@pytest.mark.parametrize("context", contexts())
@pytest.mark.parametrize("hook", TC)
def test_netflow(compiler: Compiler, hook: Hook, context: bytes) -> None:
    with running(compiler, netflow(["IN_PKTS", "IN_BYTES", "PROTOCOL"]), hook) as probe:
        probe.send(segment(STACKS["TCP with options"]), context=context)
        assert probe.entries("flows") == [((6,), on_wire(STACKS["TCP with options"]))]


@pytest.mark.parametrize("hook", [Hook.XDP, *TC])
def test_a_flow_of_more_packets_than_32_bits(make_probe: MakeProbe, hook: Hook) -> None:
    """Four minutes of one flow at 20 million packets a second, with its TCP flags."""
    loose = make_probe(hook)
    fin = bytes(ethernet() / IP() / TCP(flags="F") / Raw(b"payload"))
    syn = bytes(ethernet() / IP() / TCP(flags="SEC") / Raw(b"payload"))
    prog_test_run(loose.fd, syn)
    (side,) = loose.probe._hooks
    (counted,) = side.tables[side._active].records()
    counted["packets"] += (1 << 32) - 2
    prog_test_run(loose.fd, fin, repeat=3)
    (row,) = loose.probe.poll().rows
    assert row["packets"] == (1 << 32) + 2
    assert row["tcp_flags"] == 0xC3
    assert row["bytes"] == len(syn) + 3 * len(fin)
