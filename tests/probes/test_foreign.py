"""Programs in other people's styles (tests/probes/foreign), each metric held against the truth.

S1.5: nothing but the data plane is given. S1.7, S1.8 and S1.10: kinds, layouts and types are found
out, and each value is converted. S1.14 and S1.15: what a snapshot has is private to its window, and
everything else is shared.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.lab.netns import inside
from bpf.attach.attachment import Hook
from bpf.cpus import possible_cpus
from bpf.syscall import prog_test_run
from probes.config.model import parse
from probes.control.controller import Controller
from probes.hooks import Hooks
from probes.snapshot import Snapshot
from probes.tables.conversion import objects
from tests.probes.running import ACK, ARP, FIN, SYN, TCP, UDP, Frame
from tests.support.veth import veth_pair

ICMP = socket.IPPROTO_ICMP
FOREIGN = Path(__file__).parent / "foreign"
Rows = dict[Any, Any]
Truth = Callable[[Sequence[bytes]], dict[str, Any]]


def ipv6(number: int) -> bytes:
    """A UDP packet from one of four addresses in two networks."""
    source = ipaddress.ip_address(f"2001:db8:0:{number % 2}::{number % 4}").packed
    destination = ipaddress.ip_address("2001:db8::ffff").packed
    size = 8 + number
    header = b"\x60\0\0\0" + size.to_bytes(2, "big") + bytes((UDP, 64)) + source + destination
    return bytes(12) + b"\x86\xdd" + header + bytes(size)


FRAMES: list[bytes] = [
    *(
        bytes(
            Frame(
                source=f"10.0.{n % 2}.{n % 5}",
                destination=f"192.0.2.{n % 3}",
                protocol=(UDP, TCP, ICMP)[n % 3],
                source_port=1000 + n % 4,
                destination_port=(53, 443)[n % 2],
                flags=(SYN, ACK, FIN)[n // 3 % 3],
                tos=(n % 4) << 2,
                payload=n * 3,
            )
        )
        for n in range(60)
    ),
    *(ipv6(n) for n in range(20)),
    *[ARP] * 5,
]


@dataclass(frozen=True)
class Packet:
    """Fields of an IPv4 packet as a program sees them."""

    frame: bytes

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def protocol(self) -> int:
        return self.frame[23]

    @property
    def source(self) -> str:
        return socket.inet_ntoa(self.frame[26:30])

    @property
    def destination(self) -> str:
        return socket.inet_ntoa(self.frame[30:34])

    @property
    def ports(self) -> tuple[int, int]:
        if self.protocol not in (TCP, UDP):
            return 0, 0
        return int.from_bytes(self.frame[34:36], "big"), int.from_bytes(self.frame[36:38], "big")

    @property
    def tos(self) -> int:
        return self.frame[15]

    @property
    def flags(self) -> int:
        return self.frame[47]


def packets(frames: Sequence[bytes]) -> list[Packet]:
    return [Packet(frame) for frame in frames if frame[12:14] == b"\x08\x00"]


def sixes(frames: Sequence[bytes]) -> list[bytes]:
    return [frame for frame in frames if frame[12:14] == b"\x86\xdd"]


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


@dataclass(frozen=True)
class Foreign:
    """A program, and its results for frames."""

    file: str
    truth: Truth
    hook: Hook = Hook.XDP
    verdicts: Callable[[bytes], int] = lambda frame: 2
    agg: dict[str, str] = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    change: Callable[[str], str] = str


def verdict_of_protocol(by_protocol: dict[int, int], other: int) -> Callable[[bytes], int]:
    """By an IPv4 packet's protocol."""

    def verdict(frame: bytes) -> int:
        return by_protocol.get(frame[23], other) if frame[12:14] == b"\x08\x00" else other

    return verdict


def always(verdict: int) -> Callable[[bytes], int]:
    return lambda frame: verdict


UNSPEC = 0xFFFFFFFF
HOST = {"key.src_ip": "host", "key.dst_ip": "host"}
PROGRAMS = {
    "bcc's example": Foreign(
        "xdp_drop_count", drop_counts, verdicts=always(1), agg={"dropcnt": "sum"}
    ),
    "nothing but a name": Foreign("defaults", defaults),
    "several lines": Foreign("five_tuple", five_tuples),
    "names that contain one another": Foreign("contained_names", contained),
    "maps in inline functions": Foreign("inline_maps", inline_maps),
    "per-CPU structs": Foreign(
        "percpu_structs", percpu_structs, agg={"stats": "sum", "total": "sum"}
    ),
    "packed structs": Foreign("packed", packed),
    "nested structs, arrays, unions": Foreign("nested", nested, types={"hosts": {"key": "ipv4"}}),
    "LRU": Foreign("lru", lru, agg={"pkts": "max"}, types={"last_len": {}}),
    "a queue and a stack": Foreign("queue", queues),
    "tries": Foreign("lpm", prefixes),
    "histograms": Foreign("histograms", histograms),
    "an array of structs": Foreign("struct_array", struct_array),
    "keys of 128 bits and more": Foreign("wide_keys", wide_keys),
    "spin locks": Foreign("spin_lock", spin_locks),
    "maps in comments, deletion, flags": Foreign("connections", connections),
    "a tail call to nobody": Foreign(
        "tail_call", lambda frames: {"fell_through": listed([len(frames)])}
    ),
    "a TC classifier": Foreign(
        "tc_classifier",
        classifier,
        Hook.TC_INGRESS,
        verdict_of_protocol({UDP: 2}, UNSPEC),
        types={"by_source": {}},
    ),
    "bcc's cursor, on egress": Foreign(
        "tc_cursor", sessions, Hook.TC_EGRESS, always(UNSPEC), types={"sessions": HOST}
    ),
    "drops some and returns some": Foreign(
        "reflector",
        reflected,
        verdicts=verdict_of_protocol({UDP: 3, TCP: 1}, 2),
        agg={"verdicts": "sum"},
    ),
    "K&R, UTF-8, tabs, no last newline": Foreign(
        "knr", lambda frames: {"sizes": hashed(Counter(map(len, frames)))}
    ),
    "CRLF": Foreign("five_tuple", five_tuples, change=lambda text: text.replace("\n", "\r\n")),
    "a byte order mark and form feeds": Foreign(
        "inline_maps",
        inline_maps,
        change=lambda text: "\ufeff" + text.replace("\n\n", "\n\f\n"),
    ),
    "tabs": Foreign("connections", connections, change=lambda text: text.replace("    ", "\t")),
    "libbpf's": Foreign("libbpf", protocols),
    "each CPU apart": Foreign("per_cpu_apart", apart),
    "maps by macros": Foreign(
        "macros",
        lambda frames: {name: hashed(Counter(map(len, frames))) for name in ("large", "renamed")},
    ),
}


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    """A controller whose hooks get only what a test runs through them."""
    with Controller() as made:
        made._hooks = Hooks(lambda point: None)
        yield made


def configured(program: Foreign, metrics: Sequence[str], *, snapshot: bool) -> Any:
    source = (FOREIGN / f"{program.file}.c").read_text(encoding="utf-8")
    direction = {
        "interface": "lo",
        "hook": "xdp" if program.hook is Hook.XDP else "tc",
        "source": program.change(source),
        "metrics": [
            {
                "name": name,
                "map": name,
                "snapshot": snapshot,
                "agg": program.agg.get(name, ""),
                "types": program.types.get(name, {}),
            }
            for name in metrics
        ],
    }
    side = "egress" if program.hook is Hook.TC_EGRESS else "ingress"
    return parse({"name": "foreign", "interval": 0, side: direction}, "test")


def tables(snapshots: Sequence[Snapshot]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for snapshot in snapshots:
        assert snapshot.schema is not None
        found[snapshot.metric] = list(objects(snapshot.schema, snapshot.rows))
    return found


def in_order(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """A hash's entries come in any order; all else in its own."""
    return {
        name: sorted(each, key=repr) if each and "key" in each[0] else each
        for name, each in rows.items()
    }


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "plain"])
@pytest.mark.parametrize("style", PROGRAMS)
def test_each_export_equals_the_truth(controller: Controller, style: str, snapshot: bool) -> None:
    """S1.5, S1.7, S1.8, S1.10, S1.14, S1.15: all fields, in two windows one after the other."""
    program = PROGRAMS[style]
    os.sched_setaffinity(0, {0})
    first, second = FRAMES[::2] + FRAMES[-3:], FRAMES[5:]
    expected = program.truth(first)
    controller.add(configured(program, list(expected), snapshot=snapshot), force=True)
    try:
        (point,) = controller.hooks()

        def window(frames: Sequence[bytes]) -> dict[str, list[dict[str, Any]]]:
            for frame in frames:
                run = prog_test_run(point.chain.fd, frame)
                assert run.verdict == program.verdicts(frame), frame
            return in_order(tables(controller.export("foreign")))

        assert window(first) == in_order(expected)
        # Queues and stacks are emptied by reading them; all else goes on where it is shared.
        goes_on = not snapshot and program.file != "queue"
        assert window(second) == in_order(program.truth(first + second if goes_on else second))
        ended = in_order(tables(controller.remove("foreign")))
        assert ended.keys() == expected.keys()
    finally:
        if controller.probes():
            controller.remove("foreign")


def test_packets_of_an_interface_are_what_is_counted() -> None:
    """S1.5: the same on a veth pair, with datagrams that are really sent."""
    program = PROGRAMS["per-CPU structs"]
    with veth_pair() as (left, right):
        with inside(right.ns):
            controller = Controller()
            config = configured(program, ["total", "stats"], snapshot=True)
            config = config.model_copy(
                update={"ingress": config.ingress.model_copy(update={"interface": right.ifname})}
            )
            controller.add(config)
            inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            inbox.bind((right.ipv4, 9))
            inbox.settimeout(2)
        with inside(left.ns):
            outbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inbox, outbox, controller:
            for window in range(2):
                for number in range(100 + window):
                    outbox.sendto(bytes(number), (right.ipv4, 9))
                    inbox.recv(2000)
                found = tables(controller.export("foreign"))
                (udp,) = (row["value"] for row in found["stats"] if row["key"] == UDP)
                assert udp == datarec([42 + number for number in range(100 + window)])
