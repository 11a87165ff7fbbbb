"""Made traffic: captures of attacks and of ordinary loads, as rows of packets.

A `Make` makes rows of dtype PACKET (n,) from a number of seconds. The same generator of random
numbers makes the same packets. Frames have headers only; their recorded length is the size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from app.lab.frames import CapturedFrame

Rows = np.ndarray[tuple[int, ...], np.dtype[Any]]
Random = np.random.Generator
Make = Callable[[float, Random], Rows]
Pick = Callable[[int, Random], Any]
"""Makes values of a column for a number of packets."""
PACKET = np.dtype([
    ("time_ns", "i8"), ("source", ">u4"), ("destination", ">u4"), ("source_port", ">u2"),
    ("destination_port", ">u2"), ("protocol", "u1"), ("flags", "u1"), ("fragment", ">u2"),
    ("size", "u4"), ("kind", "u1"),
])  # fmt: skip
"""A packet of IPv4, or of another kind. ICMP has type and code in place of the destination port, as
flows do, and the identifier in place of the source port. `fragment` is the header's word; `size` is
of the frame."""
F, S, R, P, A, U = (1 << bit for bit in range(6))
"""TCP flags."""
ICMP, TCP, UDP, GRE, ESP, ICMP6 = 1, 6, 17, 47, 50, 58
ECHO_REQUEST, ECHO_REPLY = 0x0800, 0x0000
IPV6, ARP = 1, 2
IPV6_NETWORK = 0x20010DB8
"""Kinds of packets. An address of IPv6 has the bits of IPv4 at its end."""
MORE_FRAGMENTS = 0x2000
VICTIM, ATTACKER, CLIENT, SERVER = 0xC6336401, 0xC0000242, 0x0A140003, 0x0A1E0005
"""198.51.100.1, 192.0.2.66, 10.20.0.3, 10.30.0.5."""
_LINK = np.frombuffer(bytes.fromhex("020000000001 020000000002 0800"), "u1")
_ARP_REQUEST = np.frombuffer(
    bytes.fromhex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001").ljust(60, b"\0"), "u1"
)
_ENDS = [("source", ">u4"), ("destination", ">u4")]
_TRANSPORT = [
    ("ports", ">u2", (2,)), ("word", ">u2", (4,)), ("offset", "u1"), ("flags", "u1"),
    ("end", "u1", (6,)),
]  # fmt: skip
_FRAME = np.dtype([
    ("link", "u1", (14,)), ("version", "u1"), ("tos", "u1"), ("ip_length", ">u2"),
    ("identification", ">u2"), ("fragment", ">u2"), ("ttl", "u1"), ("protocol", "u1"),
    ("checksum", ">u2"), *_ENDS, *_TRANSPORT,
])  # fmt: skip
_FRAME6 = np.dtype([
    ("link", "u1", (14,)), ("version", "u1"), ("label", "u1", (3,)), ("ip_length", ">u2"),
    ("protocol", "u1"), ("ttl", "u1"), ("from", ">u4", (3,)), ("source", ">u4"),
    ("to", ">u4", (3,)), ("destination", ">u4"), *_TRANSPORT,
])  # fmt: skip


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


def frames(rows: Rows) -> Iterator[CapturedFrame]:
    """The packets as frames of a capture."""
    data = np.empty(len(rows), object)
    for kind in np.unique(rows["kind"]):
        where = np.flatnonzero(rows["kind"] == kind)
        made = _headers(rows[where], kind)
        all_bytes = made.tobytes()
        size = len(all_bytes) // len(made)
        data[where] = [all_bytes[at : at + size] for at in range(0, len(all_bytes), size)]
    lengths = map(max, rows["size"].tolist(), map(len, data))
    yield from map(CapturedFrame, rows["time_ns"].tolist(), data, lengths)


def _headers(rows: Rows, kind: int) -> Rows:
    if kind == ARP:
        return np.broadcast_to(_ARP_REQUEST, (len(rows), len(_ARP_REQUEST))).copy()
    made = np.zeros(len(rows), _FRAME6 if kind == IPV6 else _FRAME)
    made["link"], made["ttl"], made["offset"] = _LINK, 64, 0x50
    for name in ("protocol", "source", "destination", "flags"):
        made[name] = rows[name]
    icmp = np.isin(rows["protocol"], (ICMP, ICMP6))
    made["ports"][:, 0] = np.where(icmp, rows["destination_port"], rows["source_port"])
    made["ports"][:, 1] = np.where(icmp, 0, rows["destination_port"])
    made["word"][:, 0] = np.where(icmp, rows["source_port"], 0)
    if kind == IPV6:
        made["link"][:, 12:], made["version"] = (0x86, 0xDD), 0x60
        made["ip_length"] = np.maximum(rows["size"], made.itemsize) - 54
        made["from"] = made["to"] = IPV6_NETWORK, 0, 0
        return made
    made["version"], made["fragment"] = 0x45, rows["fragment"]
    made["ip_length"] = np.maximum(rows["size"], made.itemsize) - len(_LINK)
    return made


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


# Columns


def anywhere(count: int, random: Random) -> Rows:
    """Addresses at random, as forged ones are."""
    return random.integers(0x01000000, 0xDF000000, count, "u4")


def some(count: int, network: int = 0x2D000000, bits: int = 26) -> Pick:
    """A number of addresses of a network of `bits` host bits, in random order."""
    return lambda n, random: random.choice(addresses(count, random, network, bits), n)


def each(first: int, count: int) -> Pick:
    """One value after the other, again and again."""
    return lambda n, random: first + np.arange(n) % count


def shuffled(first: int, count: int) -> Pick:
    """Different values in random order, again and again."""
    return lambda n, random: first + random.permutation(count)[np.arange(n) % count]


def among(*values: int) -> Pick:
    return lambda n, random: random.choice(np.array(values), n)


def between(first: int, last: int) -> Pick:
    return lambda n, random: random.integers(first, last + 1, n)


_SHORT = {"src": "source", "dst": "destination", "sport": "source_port",
          "dport": "destination_port", "proto": "protocol"}  # fmt: skip


def _fill(rows: Rows, random: Random, columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        rows[_SHORT.get(name, name)] = value(len(rows), random) if callable(value) else value


def stream(rate: float, **columns: Any) -> Make:
    """Packets at a rate. Columns, in their short names, are values or picks."""

    def make(seconds: float, random: Random) -> Rows:
        rows = packets(rate, seconds, random)
        _fill(rows, random, columns)
        return rows

    return make


_STEP = re.compile(r"([<>])([FSRPAU]*)(?::(\d+))?(?:\*(\d+))?")


def talks(rate: float, script: str, *, spread: float = 0.05, **columns: Any) -> Make:
    """Conversations that begin at a rate. The script has `>FLAGS:SIZE*COUNT` for packets of the
    client, and `<` for answers: `>S <SA >A >PA:300 <A:1514*20`. They lie evenly within `spread`
    seconds. Columns are the client's."""

    def make(seconds: float, random: Random) -> Rows:
        opened = packets(rate, seconds, random, destination=SERVER)
        _fill(opened, random, {"src": CLIENT, "sport": ports, "dport": 443} | columns)
        steps = [
            step for word in script.split() if (step := _STEP.fullmatch(word))
            for _ in range(int(step[4] or 1))
        ]  # fmt: skip
        assert len(steps) >= len(script.split())
        parts = []
        for number, (way, flags, size, _) in enumerate(step.groups() for step in steps):
            part = later(opened, spread * number / len(steps))
            if way == "<":
                part = answered(part)
            part["flags"] = sum(1 << "FSRPAU".index(flag) for flag in flags)
            part["size"] = int(size or 66)
            parts.append(part)
        rows = mixed(*parts)
        kept: Rows = rows[rows["time_ns"] < seconds * 1e9]
        return kept

    return make


def answered(rows: Rows) -> Rows:
    """The same packets the other way."""
    other = rows.copy()
    for one, another in (("source", "destination"), ("source_port", "destination_port")):
        other[one], other[another] = rows[another], rows[one]
    return other


def both(*makes: Make) -> Make:
    """Several at once."""
    return lambda seconds, random: mixed(*(make(seconds, random) for make in makes))


def incoming(make: Make, host: int = SERVER) -> Make:
    """The packets that a host receives."""

    def received(seconds: float, random: Random) -> Rows:
        rows = make(seconds, random)
        kept: Rows = rows[rows["destination"] == host]
        return kept

    return received


def bursts(make: Make, every: float, length: float) -> Make:
    """The packets of the first `length` seconds of each `every`."""

    def some_time(seconds: float, random: Random) -> Rows:
        rows = make(seconds, random)
        kept: Rows = rows[rows["time_ns"] % round(every * 1e9) < length * 1e9]
        return kept

    return some_time
