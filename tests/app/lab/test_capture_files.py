"""Capture files of both formats: what is read, converted, counted and refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Ether
from scapy.layers.ppp import PPP, PPPoE
from scapy.utils import PcapNgWriter, PcapWriter

from app.lab.capture import CaptureFile
from app.lab.frames import CapturedFrame
from app.recording.frames import zstd
from bpf.errors import UsageError
from tests.app.lab.captures import (
    ETHER,
    HOST,
    PEER,
    START_NS,
    block,
    described,
    enhanced,
    frames_of,
    pcap,
    section,
)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [True, False])
def test_pcap_in_both_orders_and_units(order: str, nano: bool) -> None:
    sent = [(START_NS, b"\1" * 60), (START_NS + 1, b"\2" * 61)]
    found, capture = frames_of(pcap(*sent, order=order, nano=nano))
    times = [ns if nano else ns // 1000 * 1000 for ns, _ in sent]
    assert found == [
        CapturedFrame(ns, data, len(data)) for ns, (_, data) in zip(times, sent, strict=True)
    ]
    assert not capture.broken


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_several_clocks_sections_and_kinds_of_blocks(order: str) -> None:
    frame = b"\7" * 61
    old = struct.pack(order + "HH4I", 1, 5, 0, 2048, len(frame), len(frame)) + frame
    text = section(order) + described(order=order) + block(5, b"statistics", order)
    # The second one counts in 1/1024 s, a minute later.
    text += described(1, 0x80 | 10, 60, order) + enhanced(0, 1_500_000, frame, order=order)
    text += block(2, old, order) + block(3, struct.pack(order + "I", 61) + frame, order)
    other = ">" if order == "<" else "<"
    text += section(other) + described(1, 9, 0, other) + enhanced(0, 7, frame, 9, other)
    found, capture = frames_of(text)
    assert [each.time_ns for each in found] == [1_500_000_000, 62 * 10**9, 62 * 10**9, 7]
    assert {each.data for each in found} == {frame}
    assert [each.length for each in found] == [61, 61, 61, 70]
    assert not capture.broken


def test_what_others_write_is_read(tmp_path: Path) -> None:
    packets = [ETHER / IP(dst=HOST) / UDP() / bytes(n) for n in range(5)]
    for writer in (PcapWriter, PcapNgWriter):
        with writer(str(tmp_path / "x")) as out:
            for number, packet in enumerate(packets):
                packet.time = 1_700_000_000 + number / 8
                out.write(packet)
        found, _ = frames_of((tmp_path / "x").read_bytes())
        assert [each.data for each in found] == [bytes(packet) for packet in packets]
        assert [b.time_ns - a.time_ns for a, b in pairwise(found)] == [125_000_000] * 4


SESSION = PPPoE(sessionid=1) / PPP(proto=0x57)


@pytest.mark.parametrize(
    ("link", "head"),
    [
        (101, b""), (12, b""), (228, b""), (0, struct.pack("<I", 2)),
        (113, bytes(CookedLinux(src=b"\2\0\0\0\0\7", proto=0x800))),
        (276, bytes(CookedLinuxV2(src=b"\2\0\0\0\0\7", proto=0x800))),
        (9, b"\xff\3\0\x21"), (9, b"\0\x21"), (50, b"\xff\3\x21"), (9, b"\x0f\0\x08\0"),
        (104, b"\x8f\0\x08\0"), (166, b"\1\3\0\x21"), (204, b"\0\xff\3\0\x21"),
    ],
)  # fmt: skip
def test_other_link_types_become_ethernet(link: int, head: bytes) -> None:
    packet = IP(src=PEER, dst=HOST) / UDP(sport=1, dport=2) / b"payload"
    (frame,), _ = frames_of(pcap((START_NS, head + bytes(packet)), link=link))
    assert bytes(Ether(frame.data)[IP]) == bytes(packet)
    assert frame.length == len(frame.data) == 14 + len(packet)


@pytest.mark.parametrize(("link", "head"), [(101, b""), (9, b"\0\x57"), (51, bytes(SESSION))])
def test_ipv6_becomes_ethernet(link: int, head: bytes) -> None:
    packet = IPv6(src="2001:db8::1", dst="2001:db8::2") / UDP(sport=1, dport=2)
    (frame,), _ = frames_of(pcap((START_NS, head + bytes(packet)), link=link))
    assert bytes(Ether(frame.data)[IPv6]) == bytes(packet)
    assert frame.length == len(frame.data)


def test_other_protocols_of_ppp_are_not_ip() -> None:
    (frame, empty), _ = frames_of(pcap((1, b"\xff\3\xc0\x21" + bytes(8)), (2, b""), link=9))
    assert frame.data[12:] == b"\xff\xff" + bytes(8)
    assert (empty.data[12:], empty.length) == (b"\xff\xff", 14)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "x.pcap is neither a pcap nor a pcapng file"),
        (b"\x1f\x8b\x08\x00" * 9, "x.pcap has no frame: its compression is broken: Error -3"),
        (pcap()[:20], "x.pcap has no frame: it breaks off"),
        (pcap(link=105), "x.pcap has link type 105 (802.11); Ethernet, raw IP, "),
        (section() + described(147), "x.pcap has link type 147; Ethernet, raw IP, "),
        (section()[:20], "x.pcap has no frame: it breaks off"),
        (b"\n\r\r\n" + bytes(40), "x.pcap has no frame: a section has no byte order"),
    ],
)
def test_what_is_no_capture_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        frames_of(data)
    assert str(caught.value).startswith(words)


WHOLE = section() + described() + enhanced(0, 1, bytes(60)) + enhanced(0, 2, bytes(60))


@pytest.mark.parametrize(
    ("data", "count", "words"),
    [
        (pcap((1, bytes(60)), (2, bytes(60)))[:-1], 1, "it breaks off"),
        (pcap((1, bytes(60)))[:-60], 0, "it breaks off"),
        (pcap((1, bytes(60))) + b"\1", 1, "it breaks off"),
        (WHOLE[:-1], 1, "it breaks off"),
        (WHOLE[:-93], 0, "it breaks off"),
        (
            pcap() + struct.pack("<4I", 0, 0, 1 << 25, 60),
            0,
            "a frame claims to have 33554432 bytes",
        ),
        (WHOLE + struct.pack("<2I", 6, 7), 2, "a block claims to have 7 bytes"),
        (WHOLE + block(6, bytes(8)), 2, "a block is shorter than its contents"),
        (WHOLE + enhanced(1, 1, b""), 2, "a frame is of interface 1, and there are 1"),
    ],
)
def test_frames_before_the_fault_are_read_and_the_fault_is_told(
    data: bytes, count: int, words: str
) -> None:
    found, capture = frames_of(data)
    assert (len(found), capture.broken) == (count, words)


def test_frames_of_other_links_are_counted() -> None:
    text = section() + described(105) + described(1)
    found, capture = frames_of(text + enhanced(0, 1, bytes(60)) + enhanced(1, 2, bytes(60)))
    assert (len(found), capture.left_out) == (1, {105: 1})


def _write(fd: int, data: bytes) -> None:
    with open(fd, "wb") as file:
        file.write(data)


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_packed_files_are_read_from_a_pipe(pack: Callable[[bytes], bytes]) -> None:
    whole = pcap(*((START_NS + n, random.Random(n).randbytes(200)) for n in range(3000)))
    for cut, words in ((0, ""), (9, "it breaks off")):
        packed, (read, write) = pack(whole), os.pipe()
        thread = Thread(target=_write, args=(write, packed[: len(packed) - cut]))
        thread.start()
        with open(read, "rb") as file:
            capture = CaptureFile(file, "x.pcap")
            count = sum(1 for _ in capture)
        thread.join()
        assert (count == 3000, capture.broken) == (not cut, words)
        assert count > 1000


def test_other_packed_files_are_named() -> None:
    for pack, form in ((bz2.compress, "bzip2"), (lzma.compress, "xz")):
        with pytest.raises(UsageError, match=f"x.pcap is packed by {form}; unpack it before"):
            frames_of(pack(pcap()))
