"""Made traffic: captures of attacks and of ordinary loads, as rows of packets.

Each function makes rows of dtype PACKET (n,) from a rate and a number of seconds. The same
`generator` makes the same packets. Frames have headers only; their recorded length is the size.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Rows = np.ndarray[tuple[int, ...], np.dtype[Any]]
Random = np.random.Generator
PACKET = np.dtype([
    ("time_ns", "i8"), ("source", ">u4"), ("destination", ">u4"), ("source_port", ">u2"),
    ("destination_port", ">u2"), ("protocol", "u1"), ("flags", "u1"), ("fragment", ">u2"),
    ("size", "u4"),
])  # fmt: skip
"""A packet of IPv4. ICMP has type and code in place of the destination port, as flows do, and the
identifier in place of the source port. `fragment` is the header's word; `size` is of the frame."""
F, S, R, P, A, U = (1 << bit for bit in range(6))
"""TCP flags."""
ICMP, TCP, UDP, GRE, ESP = 1, 6, 17, 47, 50
ECHO_REQUEST, ECHO_REPLY = 0x0800, 0x0000
MORE_FRAGMENTS = 0x2000
VICTIM, ATTACKER, CLIENT, SERVER = 0xC6336401, 0xC0000242, 0x0A140003, 0x0A1E0005
"""198.51.100.1, 192.0.2.66, 10.20.0.3, 10.30.0.5."""
_RECORD = np.dtype([
    ("seconds", "<u4"), ("nanoseconds", "<u4"), ("captured", "<u4"), ("length", "<u4"),
    ("link", "u1", (14,)), ("version", "u1"), ("tos", "u1"), ("ip_length", ">u2"),
    ("identification", ">u2"), ("fragment", ">u2"), ("ttl", "u1"), ("protocol", "u1"),
    ("checksum", ">u2"), ("source", ">u4"), ("destination", ">u4"),
    ("ports", ">u2", (2,)), ("word", ">u2", (4,)), ("offset", "u1"), ("flags", "u1"),
    ("end", "u1", (6,)),
])  # fmt: skip
"""A frame in a pcap file."""
_HEADER = 16
_CAPTURED = _RECORD.itemsize - _HEADER
_LINK = np.frombuffer(bytes.fromhex("020000000001 020000000002 0800"), "u1")


def packets(rate: float, seconds: float, random: Random, **columns: Any) -> Rows:
    """Rows at a rate, nearly evenly spaced; columns are values or arrays (n,)."""
    rows = np.zeros(round(rate * seconds), PACKET)
    gaps = np.arange(len(rows)) + random.random(len(rows))
    rows["time_ns"] = gaps / rate * 1e9
    for name, value in ({"protocol": TCP, "destination": VICTIM, "size": 60} | columns).items():
        rows[name] = value
    return rows


def mixed(*parts: Rows) -> Rows:
    """All packets in order of time."""
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["time_ns"], kind="stable")]


def later(rows: Rows, seconds: float) -> Rows:
    rows = rows.copy()
    rows["time_ns"] += round(seconds * 1e9)
    return rows


def faster(rows: Rows, factor: float) -> Rows:
    """The same packets at a multiple of their rate, in less time."""
    rows = rows.copy()
    rows["time_ns"] = rows["time_ns"] / factor
    return rows


def pcap(rows: Rows) -> bytes:
    """A pcap file, with times in nanoseconds."""
    records = np.zeros(len(rows), _RECORD)
    records["seconds"], records["nanoseconds"] = np.divmod(rows["time_ns"], 1_000_000_000)
    records["captured"] = _CAPTURED
    records["length"] = np.maximum(rows["size"], _CAPTURED)
    records["link"], records["version"], records["ttl"] = _LINK, 0x45, 64
    records["ip_length"] = records["length"] - len(_LINK)
    for name in ("fragment", "protocol", "source", "destination", "flags"):
        records[name] = rows[name]
    icmp = rows["protocol"] == ICMP
    records["ports"][:, 0] = np.where(icmp, rows["destination_port"], rows["source_port"])
    records["ports"][:, 1] = np.where(icmp, 0, rows["destination_port"])
    records["word"][:, 0] = np.where(icmp, rows["source_port"], 0)
    records["offset"] = 0x50
    head = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 16, 1)
    return head + records.tobytes()


def addresses(count: int, random: Random, network: int = 0x2D000000, bits: int = 24) -> Rows:
    """Addresses of a network of `bits` host bits, at random."""
    return network + random.integers(1, 1 << bits, count, "u4")


def ports(count: int, random: Random) -> Rows:
    return random.integers(1024, 65536, count, "u2")


def connections(
    rate: float,
    seconds: float,
    random: Random,
    sources: Rows | None = None,
    flags: tuple[int, ...] = (S, A, P | A, A, F | A, A),
    spread: float = 0.05,
    **columns: Any,
) -> Rows:
    """TCP connections to a server: one packet for each of `flags`, within `spread` seconds."""
    opened = packets(rate, seconds, random, destination=SERVER, destination_port=443, **columns)
    opened["source"] = random.choice(sources, len(opened)) if sources is not None else CLIENT
    opened["source_port"] = 1024 + np.arange(len(opened)) % 64000
    parts = []
    for number, each in enumerate(flags):
        part = later(opened, spread * number / len(flags))
        part["flags"], part["size"] = each, 300 if each & P else 66
        parts.append(part)
    return mixed(*parts)


def lasting(
    flows: int, rate: float, seconds: float, random: Random, small: int = 66, **columns: Any
) -> Rows:
    """A number of flows that share a rate of packets."""
    rows = packets(rate, seconds, random, **({"size": small, "flags": A} | columns))
    flow = np.arange(len(rows)) % flows
    if "source" not in columns:
        rows["source"] = 0x0A140000 + flow
    if "source_port" not in columns:
        rows["source_port"] = 40000 + flow
    return rows
