"""Capture files, made byte by byte."""

from __future__ import annotations

import struct
from io import BufferedReader, BytesIO

from scapy.layers.l2 import Ether

from app.lab.capture import CaptureFile
from app.lab.frames import CapturedFrame

START_NS = 1_700_000_000_123_456_789
HOST, PEER = "192.0.2.9", "198.51.100.7"
ETHER = Ether(dst="02:00:00:00:00:09", src="02:00:00:00:00:07")


def frames_of(data: bytes) -> tuple[list[CapturedFrame], CaptureFile]:
    capture = CaptureFile(BufferedReader(BytesIO(data)), "x.pcap")
    return list(capture), capture


def pcap(*frames: tuple[int, bytes], link: int = 1, order: str = "<", nano: bool = True) -> bytes:
    """Of (ns, frame)."""
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)]
    for ns, frame in frames:
        seconds, rest = divmod(ns, 10**9)
        sizes = (seconds, rest // unit, len(frame), len(frame))
        parts += [struct.pack(order + "4I", *sizes), frame]
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def described(link: int = 1, resolution: int = 6, offset: int = 0, order: str = "<") -> bytes:
    options = struct.pack(order + "HHB3xHHqHH", 9, 1, resolution, 14, 8, offset, 0, 0)
    return block(1, struct.pack(order + "HHI", link, 0, 0) + options, order)


def enhanced(interface: int, units: int, frame: bytes, cut: int = 0, order: str = "<") -> bytes:
    high, low = divmod(units, 1 << 32)
    head = struct.pack(order + "5I", interface, high, low, len(frame), len(frame) + cut)
    return block(6, head + frame + bytes(-len(frame) % 4), order)
