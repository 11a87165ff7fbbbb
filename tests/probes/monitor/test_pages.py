"""The monitor for telemetry at TC, and packets with their bytes in pages."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import closing

import pytest

from bpf.abi import AttachType
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.links import link_create
from bpf.programs.program import Program
from probes.control.controller import Controller
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.state import METRICS_TABLE, PROBE
from tests.bpf.tools import read_u64
from tests.probes.path.wire.frames import HOST, PEER, TCP, UDP, Wire, ip_packet, packed, wire

PAGED = 5000
"""Bytes of payload for which a TAP allocates pages."""
LINEAR = """\
#include "probe.h"
BPF_ARRAY(linear, u64, 1);

int look(struct __sk_buff *skb) {
    u32 zero = 0;
    u64 bytes = skb->data_end - skb->data;
    linear.update(&zero, &bytes);
    return VERDICT_PASS;
}
"""
RECORD = struct.pack("!4s4sHHIQHHHBB", b"\x0a" * 4, b"\x0b" * 4, 1, 2, 0, 0, 0, 100, 0, 17, 0)


def receive(opened: Wire, protocol: int, transport: bytes) -> None:
    """Have the host receive a packet from PEER in pages, its Ethernet header in linear bytes."""
    ip = ip_packet(packed(PEER[4]), packed(HOST[4]), protocol, transport, 64)
    link = opened._mac + opened._mac + b"\x08\x00"
    os.write(opened._fd, struct.pack("<BBHHHH", 2, 0, 14, 0, 0, 0) + link + ip)


@pytest.mark.slow
def test_telemetry_is_read_whole_and_other_packets_stay_in_pages(compiler: Compiler) -> None:
    options = MonitorOptions(
        bits=8,
        interval=300,
        ingress=Hook.TC_INGRESS,
        input=Input.TELEMETRY,
        receivers=(Receiver(PEER[4], 5000, HOST[4], 6343),),
    )
    tcp = struct.pack(">HHIIBBHHH", 5000, 80, 1, 1, 5 << 4, 0x10, 9, 0, 0) + bytes(PAGED)
    payload = (struct.pack(">HH", 1, 20) + RECORD * 20).ljust(PAGED, b"\0")
    udp = struct.pack(">HHHH", 5000, 6343, 8 + PAGED, 0) + payload
    with (
        wire(ethernet=True) as opened,
        Controller() as controller,
        compiler.compile(LINEAR, Hook.TC_INGRESS.prog_type, cflags=["-DHOOK_TC_INGRESS=1"]) as code,
        closing(Program(code, "look")) as program,
    ):
        controller.watch_metrics(opened.name, options)
        index = socket.if_nametoindex(opened.name)
        link = link_create(program.fd, index, AttachType.TCX_INGRESS)  # behind the monitor
        receive(opened, TCP, tcp)
        linear = read_u64(program.map_fd("linear"))
        receive(opened, UDP, udp)
        os.close(link)
        (window,) = (s for s in controller.remove(PROBE) if s.metric == METRICS_TABLE)
    assert 54 <= linear < 1000
    assert window.rows["udp_packets"] == [20]
    assert not window.losses
