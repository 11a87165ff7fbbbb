"""Frames for the segment probe, and runs of its hooks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run
from probes.control.builtin_probes import SEGMENT_PROBE
from probes.control.controller import Controller
from probes.segment.options import SegmentOptions
from probes.segment.records import DIGEST, DIGESTS_TABLE
from probes.snapshot import Snapshot
from tests.probes.deck import Deck
from tests.probes.running import sk_buff

HERE, THERE = "192.0.2.1", "198.51.100.7"
HERE6, THERE6 = "2001:db8::1", "2001:db8::7"
DATA = bytes(range(200))
STREAM = random.Random(1).randbytes(4096)
MSS = 100


def four(**more: Any) -> Packet:
    return IP(**{"src": HERE, "dst": THERE} | more)


def six(**more: Any) -> Packet:
    return IPv6(**{"src": HERE6, "dst": THERE6} | more)


def framed(packet: Packet, tag: int = 0) -> bytes:
    ether = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return bytes((ether / Dot1Q(vlan=tag) if tag else ether) / packet)


def tcp(**more: Any) -> Packet:
    return TCP(**{"sport": 1000, "dport": 2000, "seq": 5, "ack": 9, "flags": "A"} | more)


def udp(**more: Any) -> Packet:
    return UDP(sport=1000, dport=2000, **more)


@contextmanager
def measuring(controller: Controller, options: SegmentOptions) -> Iterator[None]:
    controller.start(SEGMENT_PROBE, "right", options)
    try:
        yield
    finally:
        controller.remove("segment")


def run(deck: Deck, hook: Hook, *frames: bytes, context: bytes = b"") -> None:
    for each in frames:
        run = prog_test_run(deck.fd(hook), each, context=context)
        assert run.data == each


def tables(deck: Deck) -> dict[tuple[str, str], Snapshot]:
    return {(item.side, item.metric): item for item in deck.controller.export("segment")}


def digests(deck: Deck, side: str = "egress") -> Array:
    table = tables(deck)[side, DIGESTS_TABLE]
    assert table.rows.dtype == DIGEST
    assert not table.lost.packets
    return table.rows["value"]


def each_digest(deck: Deck, frames: Iterable[bytes], hook: Hook = Hook.TC_EGRESS) -> list[int]:
    """One digest a frame, in order."""
    frames = list(frames)
    run(deck, hook, *frames)
    side = "egress" if hook is Hook.TC_EGRESS else "ingress"
    found: list[int] = digests(deck, side)["digest"].tolist()
    assert len(found) == len(frames)
    return found


def large(headers: Packet, size: int, step: int = MSS) -> tuple[bytes, bytes]:
    """A frame, and the context that makes it a large segment of `step` bytes a packet."""
    return framed(headers / STREAM[:size]), sk_buff(segment_size=step)
