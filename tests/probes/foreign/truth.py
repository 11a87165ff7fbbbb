"""The expected counts of each program, computed in Python from the same frames."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bpf.machine import possible_cpus
from tests.probes.foreign.packets import Packet, packets, sixes
from tests.probes.running import FIN, SYN, TCP, UDP

Rows = dict[Any, Any]
Truth = Callable[[Sequence[bytes]], dict[str, Any]]


def slot(value: int) -> int:
    """bpf_log2l."""
    return max(value.bit_length(), 1)


def histogram(values: Sequence[int]) -> list[dict[str, int]]:
    counts = Counter(map(slot, values))
    return [ranged(number, counts[number]) for number in range(max(counts, default=-1) + 1)]


def ranged(number: int, count: int) -> dict[str, int]:
    low, high = (2 ** (number - 1) if number > 1 else 0, 2**number - 1) if number else (0, 0)
    return {"slot": number, "low": low, "high": high, "count": count}


def hashed(rows: Rows) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in rows.items()]


def listed(values: Sequence[Any], index: str = "index") -> list[dict[str, Any]]:
    return [{index: number, "value": value} for number, value in enumerate(values)]


def drop_counts(frames: Sequence[bytes]) -> dict[str, Any]:
    counts = Counter(p.protocol for p in packets(frames))
    counts[UDP] += len(sixes(frames))
    counts[0] = len(frames) - counts.total()
    return {"dropcnt": listed([counts[n] for n in range(256)])}


def defaults(frames: Sequence[bytes]) -> dict[str, Any]:
    return {"by_length": hashed(Counter(map(len, frames)))}


def five_tuples(frames: Sequence[bytes]) -> dict[str, Any]:
    flows: dict[tuple[Any, ...], list[int]] = {}
    for p in packets(frames):
        flow = flows.setdefault((p.source, p.destination, *p.ports, p.protocol), [0, 0])
        flow[0] += 1
        flow[1] += len(p)
    names = "src_ip", "dst_ip", "src_port", "dst_port", "protocol"
    return {
        "flows": [
            {"key": dict(zip(names, key, strict=True)), "value": {"pkts": n, "bytes": size}}
            for key, (n, size) in flows.items()
        ]
    }


def contained(frames: Sequence[bytes]) -> dict[str, Any]:
    return {
        "p": hashed({1: len(frames)}),
        "pkt": hashed(Counter(map(len, frames))),
        "pkt_len": hashed({1: sum(map(len, frames))}),
        "pkt_len_max": hashed({1: max(map(len, frames))}),
    }


def inline_maps(frames: Sequence[bytes]) -> dict[str, Any]:
    types = Counter(int.from_bytes(frame[12:14], "big") for frame in frames)
    return {
        "counters": listed([len(frames), types[0x800], len(frames) - types[0x800]]),
        # lookup_or_init() stores the 1, and then it is counted.
        "types": hashed({key: count + 1 for key, count in types.items()}),
    }


def datarec(sizes: Sequence[int]) -> dict[str, int]:
    return {"rx_packets": len(sizes), "rx_bytes": sum(sizes), "largest": max(sizes, default=0)}


def percpu_structs(frames: Sequence[bytes]) -> dict[str, Any]:
    by_protocol: dict[int, list[int]] = {}
    for p in packets(frames):
        by_protocol.setdefault(p.protocol, []).append(len(p))
    return {
        "stats": hashed({key: datarec(sizes) for key, sizes in by_protocol.items()}),
        "total": listed([datarec([len(frame) for frame in frames])]),
    }


def packed(frames: Sequence[bytes]) -> dict[str, Any]:
    counts = Counter((p.ports[1], p.destination) for p in packets(frames) if p.protocol == UDP)
    return {
        "services": [
            {
                "key": {"proto": UDP, "dport": port, "daddr": address},
                "value": {"seen": 1, "count": count},
            }
            for (port, address), count in counts.items()
        ]
    }


def nested(frames: Sequence[bytes]) -> dict[str, Any]:
    hosts: dict[str, list[Packet]] = {}
    for p in packets(frames):
        hosts.setdefault(p.destination, []).append(p)
    rows = {}
    for address, seen in hosts.items():
        tos = Counter(p.tos >> 2 for p in seen)
        tcp = sum(p.protocol == TCP for p in seen)
        last = socket.inet_aton(seen[-1].source)
        rows[address] = {
            "hits": len(seen),
            "seen": {
                "len": {"least": min(map(len, seen)), "most": max(map(len, seen))},
                "flags": sum({1 << (p.protocol & 15) for p in seen}),
            },
            "by_tos": [tos[n] for n in range(4)],
            "tcp": [len(seen) - tcp, tcp],
            "src_ip": seen[-1].source,
            "bytes": list(last),
        }
    return {"hosts": hashed(rows)}


def lru(frames: Sequence[bytes]) -> dict[str, Any]:
    last = {int(ipaddress.ip_address(p.source)): len(p) for p in packets(frames)}
    counts = Counter(int(ipaddress.ip_address(p.source)) for p in packets(frames))
    return {"last_len": hashed(last), "pkts": hashed(counts)}


def queues(frames: Sequence[bytes]) -> dict[str, Any]:
    events = [{"len": len(p), "proto": p.protocol, "tos": p.tos} for p in packets(frames)]
    lengths = [len(p) for p in packets(frames)]
    return {"events": listed(events, "position"), "lengths": listed(lengths[::-1], "position")}


def prefixes(frames: Sequence[bytes]) -> dict[str, Any]:
    nets = Counter(
        str(ipaddress.ip_network(f"{p.source}/24", strict=False)) for p in packets(frames)
    )
    nets6 = Counter(
        str(ipaddress.ip_network((frame[22:38], 64), strict=False)) for frame in sixes(frames)
    )
    return {"nets": hashed(nets), "nets6": hashed(nets6)}


def histograms(frames: Sequence[bytes]) -> dict[str, Any]:
    slots = Counter((p.protocol, slot(len(p))) for p in packets(frames))
    return {
        "dist": histogram([len(frame) for frame in frames]),
        "by_proto": [
            {"key": {"proto": protocol}, **ranged(number, count)}
            for (protocol, number), count in slots.items()
        ],
    }


def struct_array(frames: Sequence[bytes]) -> dict[str, Any]:
    rows = []
    for number in range(4):
        seen = [frame for frame in frames if min(len(frame) // 64, 3) == number]
        four = [frame[12:14] == b"\x08\x00" for frame in seen]
        rows.append(
            {
                "packets": len(seen),
                "bytes": sum(map(len, seen)),
                "balance": sum(1 if each else -100 for each in four),
                "ip": bool(four and four[-1]),
                "name": f"size {number}" if seen else "",
            }
        )
    return {"per_size": listed(rows)}


def wide_keys(frames: Sequence[bytes]) -> dict[str, Any]:
    by_source: Counter[int] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for frame in sixes(frames):
        by_source[int.from_bytes(frame[22:38], "little")] += 1
        source, destination = (str(ipaddress.ip_address(frame[at : at + 16])) for at in (22, 38))
        pairs[source, destination] += int.from_bytes(frame[18:20], "big")
    return {
        "by_source": hashed(by_source),
        "pairs": [
            {"key": {"saddr": source, "daddr": destination}, "value": size}
            for (source, destination), size in pairs.items()
        ],
    }


def spin_locks(frames: Sequence[bytes]) -> dict[str, Any]:
    def cell(sizes: Sequence[int]) -> dict[str, Any]:
        return {"lock": {"val": 0}, "packets": len(sizes), "bytes": sum(sizes)}

    sizes = [len(frame) for frame in frames]
    odd = {key: [size for size in sizes if size & 1 == key] for key in (0, 1)}
    return {
        "cells": hashed({key: cell(sizes) for key, sizes in odd.items() if sizes}),
        "total": listed([cell(sizes)]),
    }


def connections(frames: Sequence[bytes]) -> dict[str, Any]:
    half_open: Counter[int] = Counter()
    first: dict[int, int] = {}
    finished: Counter[int] = Counter()
    for p in packets(frames):
        if p.protocol != TCP:
            continue
        who = p.ports[0] << 16 | p.ports[1]
        first.setdefault(who, len(p))
        half_open[who] += bool(p.flags & SYN)
        if p.flags & FIN:
            del half_open[who]
            finished[who] += 1
    return {
        "half_open": hashed({who: count for who, count in half_open.items() if count}),
        "first_seen": hashed(first),
        "finished": hashed(finished),
    }


def classifier(frames: Sequence[bytes]) -> dict[str, Any]:
    by_source: Counter[str] = Counter()
    for p in packets(frames):
        by_source[p.source] += len(p)
    keys = {int.from_bytes(socket.inet_aton(source), "little"): source for source in by_source}
    return {
        "by_source": hashed({key: by_source[source] for key, source in keys.items()}),
        "by_protocol": hashed(Counter(int.from_bytes(f[12:14], "big") for f in frames)),
        "by_byte": hashed(Counter(p.protocol for p in packets(frames))),
    }


def sessions(frames: Sequence[bytes]) -> dict[str, Any]:
    found: dict[tuple[int, int], list[int]] = {}
    for p in packets(frames):
        # Bit fields of bcc/proto.h give numbers of this machine.
        pair = int(ipaddress.ip_address(p.source)), int(ipaddress.ip_address(p.destination))
        found.setdefault(pair, []).append(len(p))
    return {
        "sessions": [
            {
                "key": {"src_ip": source, "dst_ip": destination},
                "value": {"packets": len(sizes), "bytes": sum(sizes)},
            }
            for (source, destination), sizes in found.items()
        ]
    }


def reflected(frames: Sequence[bytes]) -> dict[str, Any]:
    verdicts = Counter({UDP: 3, TCP: 1}.get(p.protocol, 2) for p in packets(frames))
    verdicts[2] += len(frames) - verdicts.total()
    return {"verdicts": listed([verdicts[n] for n in range(5)])}


def protocols(frames: Sequence[bytes]) -> dict[str, Any]:
    sizes: Counter[int] = Counter()
    for p in packets(frames):
        sizes[p.protocol] += len(p)
    return {"proto_bytes": hashed(sizes)}


def apart(frames: Sequence[bytes]) -> dict[str, Any]:
    (cpu,) = os.sched_getaffinity(0)

    def here(value: int) -> list[int]:
        return [value if number == cpu else 0 for number in range(possible_cpus())]

    return {
        "counts": listed([here(0), here(len(frames))]),
        "lengths": hashed({size: here(n) for size, n in Counter(map(len, frames)).items()}),
    }


def verdict_stats(frames: Sequence[bytes]) -> dict[str, Any]:
    dropped = [len(p) for p in packets(frames) if p.protocol == TCP]
    passed = [sum(map(len, frames)) - sum(dropped), len(frames) - len(dropped)]
    counts = [[0, 0], [sum(dropped), len(dropped)], passed, [0, 0], [0, 0]]
    names = ("packets", 1), ("rx_packets", 1), ("bytes", 0), ("rx_bytes", 0)
    return {"verdict_stats": listed([{name: each[at] for name, at in names} for each in counts])}


def by_settings(frames: Sequence[bytes]) -> dict[str, Any]:
    """TCP alone is tracked, by /24; a packet to port 443 adds 10, one to port 53 adds 3."""
    found = [p for p in packets(frames) if p.protocol == TCP]
    prefixes: dict[str, list[int]] = {}
    for p in found:
        prefixes.setdefault(p.source.rsplit(".", 1)[0] + ".0", []).append(len(p))
    return {
        "by_prefix": hashed(
            {
                key: {"last_seen": 0, "rx": {"packets": len(sizes), "bytes": sum(sizes)}}
                for key, sizes in prefixes.items()
            }
        ),
        "hits": listed([sum({53: 3, 443: 10}[p.ports[1]] for p in found)]),
    }


def stages(frames: Sequence[bytes]) -> dict[str, Any]:
    counts = Counter(p.protocol for p in packets(frames))
    return {"by_protocol": hashed(counts), "others": listed([len(frames) - counts.total()])}
