"""Windows of path tracing, made up."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np

from probes.path.records import (
    HOP,
    HOPS_TABLE,
    PATH,
    PATHS_TABLE,
    TRACE,
    TRACES_TABLE,
    Altered,
    PathRowKind,
    ProbeOutcome,
)
from probes.snapshot import Loss, LossReason, Snapshot

END = 10**12
UTC = 1_767_225_600_123_456_789
OVERRUN = {LossReason.OVERRUN: Loss(2, 0)}


def probe_numbers(first: int, count: int) -> list[int]:
    """The numbers of `count` probes from `first` on, without those that the kernel skips.

    The low 16 bits of a number are a probe's mark. A mark of 0 tells nothing, because usual packets
    have it, too.
    """
    return [n for n in range(first, first + count + 1) if n & 0xFFFF][:count]


def packed(address: str) -> list[int]:
    """As rows hold it."""
    return list(ipaddress.ip_address(address).packed.ljust(16, b"\0"))


def table(name: str, rows: Any, losses: Any = None, window: int = 1) -> Snapshot:
    return Snapshot(
        "path", "eth0", window, 1, END - 10**9, END, UTC, rows, losses or {}, 0.25, 50_000,
        1_000_000, metric=name,
    )  # fmt: skip


def rows_of(dtype: Any, count: int, version: int = 4) -> Any:
    """Of a TCP flow to a documentation address."""
    rows = np.zeros(count, dtype)
    prefix = "192.0.2." if version == 4 else "2001:db8::"
    rows["version"], rows["protocol"] = version, 6
    rows["source"], rows["destination"] = packed(f"{prefix}1"), packed(f"{prefix}2")
    rows["source_port"], rows["destination_port"] = 40000, 443
    return rows


def probes(
    *outcomes: ProbeOutcome, version: int = 4, window: int = 1, losses: Any = None
) -> Snapshot:
    """A row an outcome: hop 1, 2, ..., sent a millisecond apart, answered after 1 ms a hop."""
    rows = rows_of(HOP, len(outcomes), version)
    number = np.arange(1, len(outcomes) + 1)
    rows["hop"], rows["sequence"], rows["packet_bytes"] = number, number + 100, 1514
    rows["outcome"] = outcomes
    rows["sent_ns"] = END - 10**9 + number * 10**6
    there = np.isin(rows["outcome"], (ProbeOutcome.ANSWERED, ProbeOutcome.UNREACHABLE))
    rows["received_ns"][there] = (rows["sent_ns"] + number * 10**6)[there]
    rows["responder"][there] = packed("198.51.100.7" if version == 4 else "2001:db8::7")
    rows["ttl"][there], rows["icmp_type"][there] = 60, 11 if version == 4 else 3
    rows["quoted_ttl"][there], rows["quoted_tos"][there] = 1, 8
    rows["tos"], rows["whole"] = 8, 1
    rows["altered"][there] = Altered.LENGTH | Altered.SEQUENCE
    rows["label_count"][:1] = 2
    rows["labels"][:1, :2] = 16001 << 12 | 5 << 9 | 254, 24 << 12 | 1 << 8 | 1
    return table(HOPS_TABLE, rows, losses, window)


def traces(*destinations: str) -> Snapshot:
    """A row of own traffic a destination: ten probes, nine answers, one of them for nobody."""
    rows = np.zeros(len(destinations), TRACE)
    for row, destination in zip(rows, destinations, strict=True):
        row["destination"] = packed(destination)
        row["version"] = 6 if ":" in destination else 4
    rows["since_ns"] = END - 10**9
    rows["routers"], rows["packets"], rows["unmatched"], rows["foreign"] = 6, 100, 1, 2
    rows["probes"], rows["probe_bytes"] = 10, 400
    rows["answers"], rows["answer_bytes"] = 9, 504
    return table(TRACES_TABLE, rows)


def told(*kinds: PathRowKind, version: int = 4, window: int = 1) -> Snapshot:
    """A row a kind, all of hop 3."""
    rows = rows_of(PATH, len(kinds), version)
    rows["kind"], rows["hop"] = kinds, 3
    rows["at_ns"], rows["since_ns"] = END - 10**8, END - 10**9
    summary = rows["kind"] == PathRowKind.SUMMARY
    rows["responder"] = packed("198.51.100.7" if version == 4 else "2001:db8::7")
    rows["previous"][~summary] = packed("198.51.100.9" if version == 4 else "2001:db8::9")
    for name, value in (
        ("sent", 100), ("answered", 97), ("lost", 2), ("dropped", 1), ("loss_low", 0.0025),
        ("loss_high", 0.07), ("last_ns", -1), ("min_ns", 1), ("median_ns", 2), ("p95_ns", 3),
        ("max_ns", 4), ("jitter_ns", 5), ("alternatives", 2), ("cleared", 1),
    ):  # fmt: skip
        rows[name][summary] = value
    rows["amount_ns"][np.isin(rows["kind"], (PathRowKind.SHIFT, PathRowKind.QUEUE))] = -70_000
    rows["amount"][rows["kind"] == PathRowKind.LONGER] = 2
    return table(PATHS_TABLE, rows, window=window)
