"""Programs in other people's styles, each with its hook, its verdicts and its truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bpf.attach.attachment import Hook
from tests.probes.foreign.truth import (
    Truth,
    apart,
    by_settings,
    classifier,
    connections,
    contained,
    defaults,
    drop_counts,
    five_tuples,
    hashed,
    histograms,
    inline_maps,
    listed,
    lru,
    nested,
    packed,
    percpu_structs,
    prefixes,
    protocols,
    queues,
    reflected,
    sessions,
    spin_locks,
    stages,
    struct_array,
    verdict_stats,
    wide_keys,
)
from tests.probes.running import TCP, UDP


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
    given: dict[str, Any] = field(default_factory=dict)
    """Other keys of the direction: its user space gives them."""
    maps: dict[str, Any] = field(default_factory=dict)
    """Options of maps: entries and programs that its user space writes."""


def verdict_of_protocol(by_protocol: dict[int, int], other: int) -> Callable[[bytes], int]:
    """By an IPv4 packet's protocol."""

    def verdict(frame: bytes) -> int:
        return by_protocol.get(frame[23], other) if frame[12:14] == b"\x08\x00" else other

    return verdict


def always(verdict: int) -> Callable[[bytes], int]:
    return lambda frame: verdict


def filled(entries: dict[int, int]) -> dict[str, Any]:
    return {"writable": True, "entries": [{"key": k, "value": v} for k, v in entries.items()]}


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
    "two names of one number, several programs": Foreign(
        "verdict_stats",
        verdict_stats,
        verdicts=verdict_of_protocol({TCP: 1}, 2),
        agg={"verdict_stats": "sum"},
        given={"function": "filter_func"},
    ),
    "tail calls that user space fills": Foreign(
        "stages",
        stages,
        given={"function": "classify"},
        maps={"stages": {"programs": {1: "count_ip", 3: "count_other"}}},
    ),
    "settings and maps that user space fills": Foreign(
        "settings",
        by_settings,
        Hook.TC_INGRESS,
        always(UNSPEC),
        agg={"by_prefix": "sum"},
        types={"by_prefix": {"key": "ipv4"}},
        given={"define": {"config.ipv4_mask": 0xFFFFFF, "config.track_tcp": 1}},
        maps={"ports": filled({443: 10, 53: 3}), "control": filled({0: 1})},
    ),
    "each CPU apart": Foreign("per_cpu_apart", apart),
    "maps by macros": Foreign(
        "macros",
        lambda frames: {name: hashed(Counter(map(len, frames))) for name in ("large", "renamed")},
    ),
}
