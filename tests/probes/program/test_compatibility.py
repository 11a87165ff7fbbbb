"""Contents that a replacement keeps and loses, predicted before the swap."""

from __future__ import annotations

from typing import Any

import pytest

from bpf.errors import UsageError
from probes.program.loading import compile_probe
from probes.reports import Compatibility, Fate, MapFate
from tests.probes.program.tools import (
    COUNTER,
    PACKETS,
    Loose,
    config,
    metric,
    replace,
    snapshots,
    table,
    total,
)


def source(declaration: str, extra: str = "") -> str:
    """Declares one map on line 3."""
    return (
        f"{extra}\n\n{declaration}\nint count(struct xdp_md *ctx)\n{{\n    return XDP_PASS;\n}}\n"
    )


def report(loose: Loose, old: Any, new: Any) -> Compatibility:
    probe = loose.add(old)
    with probe.compile(new) as compiled:
        told = probe.compare(compiled)
    loose.remove(probe)
    return told


STRUCT = "struct value { u32 packets; u32 bytes; };"
HASH = "BPF_HASH(map, u32, u64, 64);"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (HASH, HASH, ""),
        (HASH, "BPF_HASH(map, u32, u64, 65);", "size 65, was 64"),
        (HASH, "BPF_HASH(map, u64, u64, 64);", "key bytes 8, was 4"),
        (HASH, "BPF_HASH(map, u32, u32, 64);", "value bytes 4, was 8"),
        (HASH, "BPF_PERCPU_HASH(map, u32, u64, 64);", "kind percpu_hash, was hash"),
        (HASH, 'BPF_F_TABLE("hash", u32, u64, map, 64, 1);', "flags 1, was 0"),
        (HASH, "BPF_HASH(map, u32, s64, 64);", "value int64, was uint64"),
        (HASH, "BPF_HASH(map, s32, u64, 64);", "key int32, was uint32"),
        (
            HASH,
            "BPF_HASH(map, u32, struct value, 64);",
            "value {packets uint32, bytes uint32}, was uint64",
        ),
    ],
)
def test_contents_are_kept_where_the_layout_is_the_same(
    loose: Loose, old: str, new: str, reason: str
) -> None:
    """S1.8, S1.26: kind, key, value, size and flags."""
    told = report(loose, config(source(old, STRUCT)), config(source(new, STRUCT)))
    fate = Fate.EMPTY if reason else Fate.KEPT
    assert told == Compatibility((MapFate("ingress", "map", fate, reason, 3),), (), (), ())


def test_bit_fields_of_other_widths_are_another_layout(loose: Loose) -> None:
    """S1.26: the word is the same, and means another thing."""
    declaration = "BPF_HASH(map, u32, struct value, 64);"
    halves, thirds = (f"struct value {{ u8 low:{low}, high:{8 - low}; }};" for low in (4, 3))
    told = report(loose, config(source(declaration, halves)), config(source(declaration, thirds)))
    assert (
        told.maps[0].reason == "value {low uint8:3, high uint8:5}, was {low uint8:4, high uint8:4}"
    )


def test_members_that_change_places_are_another_layout(loose: Loose) -> None:
    declaration = "BPF_HASH(map, u32, struct value, 64);"
    other = "struct value { u32 bytes; u32 packets; };"
    told = report(loose, config(source(declaration, STRUCT)), config(source(declaration, other)))
    (fate,) = told.maps
    assert fate.reason == (
        "value {bytes uint32, packets uint32}, was {packets uint32, bytes uint32}"
    )


@pytest.mark.parametrize(
    ("before", "after", "fate", "reason"),
    [
        (False, False, Fate.KEPT, ""),
        (True, True, Fate.WINDOW, ""),
        (True, False, Fate.EMPTY, "only one of the two is a snapshot metric's"),
        (False, True, Fate.EMPTY, "only one of the two is a snapshot metric's"),
    ],
)
def test_a_snapshot_metric_starts_with_each_window(
    loose: Loose, before: bool, after: bool, fate: Fate, reason: str
) -> None:
    """S1.14, S1.21: and so it is."""
    probe = loose.add(config(COUNTER, metric("packets", snapshot=before)))
    loose.send(5)
    new = config(COUNTER, metric("packets", snapshot=after))
    with probe.compile(new) as compiled:
        told = probe.compare(compiled)
    assert [(m.fate, m.reason) for m in told.maps] == [(fate, reason)]
    assert total(replace(probe, new)) == 5
    loose.send(2)
    assert table(probe.export(), "packets") == {0: 7 if fate is Fate.KEPT else 2}


def test_maps_and_metrics_come_and_go(loose: Loose) -> None:
    two = source(f"BPF_ARRAY(other, u64, 1);\n{HASH}")
    told = report(
        loose,
        config(source(HASH), metric("sizes", "map"), metric("kept", "map")),
        config(two, metric("kept", "map"), metric("more", "other")),
    )
    assert set(told.maps) == {
        MapFate("ingress", "map", Fate.KEPT, "", 4),
        MapFate("ingress", "other", Fate.NEW, "", 3),
    }
    assert told.lost_metrics == ("ingress.sizes",)
    assert told.new_metrics == ("ingress.more",)
    told = report(loose, config(two), config(source(HASH)))
    assert MapFate("ingress", "other", Fate.GONE, "", 0) in told.maps


OTHERS = {
    "BPF_PERF_OUTPUT(out);": "u64 v = 1; out.perf_submit(ctx, &v, sizeof(v));",
    "BPF_RINGBUF_OUTPUT(out, 8);": "u64 v = 1; out.ringbuf_output(&v, sizeof(v), 0);",
    "BPF_DEVMAP(out, 8);": "if (ctx->rx_queue_index == 7) return out.redirect_map(0, 0);",
    "BPF_CPUMAP(out, 2);": "if (ctx->rx_queue_index == 7) return out.redirect_map(0, 0);",
    "BPF_XSKMAP(out, 2);": "",
    "BPF_PROG_ARRAY(out, 2);": "out.call(ctx, 0);",
    'BPF_ARRAY(in, u64, 4);\nBPF_ARRAY_OF_MAPS(out, "in", 4);': "u32 at = 0; out.lookup(&at);",
    'BPF_ARRAY(in, u64, 4);\nBPF_HASH_OF_MAPS(out, int, "in", 4);': "",
}
"""Kinds of maps that can't be exported, and their use."""


@pytest.mark.parametrize("declaration", OTHERS)
def test_a_program_may_have_any_kind_of_map_beside(loose: Loose, declaration: str) -> None:
    """S1.5, S1.8: it is cloned, kept and rolled back like all others."""
    body = f"{OTHERS[declaration]}\n    return XDP_PASS"
    any_kind = config(declaration + "\n" + COUNTER.replace("return XDP_PASS", body), PACKETS)
    probe = loose.add(any_kind)
    loose.send(5)
    assert total(replace(probe, any_kind)) == 5
    loose.send(3)
    told, ended = probe.roll_back()
    assert {m.map: m.fate for m in told.maps}["out"] is Fate.KEPT
    assert total(ended) == 3
    loose.send(1)
    assert total(probe.export()) == 1


LOCKED = """\
struct value { struct bpf_spin_lock lock; u64 packets; };
BPF_ARRAY(packets, struct value, 4);

int count(struct xdp_md *ctx)
{
    u32 zero = 0;
    struct value *v = packets.lookup(&zero);

    if (!v)
        return XDP_PASS;
    bpf_spin_lock(&v->lock);
    v->packets++;
    bpf_spin_unlock(&v->lock);
    return XDP_PASS;
}
"""


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_map_that_needs_its_types_gets_them(loose: Loose, snapshot: bool) -> None:
    """S1.15: a lock in a value is found by the map's BTF, in each map that is made like it."""
    probe = loose.add(config(LOCKED, metric("packets", snapshot=snapshot)))
    for sent in (5, 3):
        loose.send(sent)
        (taken,) = snapshots(probe.export())
        so_far = sent if snapshot or sent == 5 else 8
        assert taken.rows["value"]["packets"].tolist() == [so_far, 0, 0, 0]


UNSERVED = {
    "BPF_PROG_ARRAY(steps, 4);": "steps (prog array) stays empty, so each tail call falls through",
    "BPF_PERF_OUTPUT(seen);": "seen (perf event array) has no reader, so each submit fails",
    "BPF_RINGBUF_OUTPUT(ring, 4);": "ring (ringbuf) has no reader and fills up",
    "BPF_XSKMAP(socks, 4);": "socks (xskmap) stays empty, so a redirect by it fails",
    "BPF_DEVMAP(ports, 4);": "ports (devmap) stays empty, so a redirect by it fails",
}


@pytest.mark.parametrize("declaration", UNSERVED)
def test_a_map_that_nobody_fills_or_reads_is_warned_of(loose: Loose, declaration: str) -> None:
    with compile_probe(loose.compiler, config(source(declaration)), loose.hooks) as compiled:
        (warning,) = compiled.diagnostics
    assert (warning.severity, warning.file, warning.line) == ("warning", "probe.ingress.c", 3)
    assert warning.text.startswith(UNSERVED[declaration])


@pytest.mark.parametrize(
    ("how", "noted"), [({"init": True}, True), ({"snapshot": True}, False), ({}, False)]
)
def test_what_is_emptied_while_packets_write_it_is_noted(
    loose: Loose, how: dict[str, Any], noted: bool
) -> None:
    configured = config(COUNTER, metric("packets", **how))
    with compile_probe(loose.compiler, configured, loose.hooks) as compiled:
        said = [(d.severity, d.line, d.text[:24]) for d in compiled.diagnostics]
    assert said == [("note", 1, "packets empties packets ")] * noted


def test_maps_that_are_read_are_not_warned_of(loose: Loose) -> None:
    with compile_probe(loose.compiler, config(COUNTER, PACKETS), loose.hooks) as compiled:
        assert compiled.diagnostics == ()


def test_a_file_may_hold_programs_of_other_hooks(loose: Loose) -> None:
    others = (
        "int other(struct __sk_buff *skb) { return 0; }\n"
        "int unsafe(struct xdp_md *ctx) { return *(u8 *)(long)ctx->data; }\n"
    )
    probe = loose.add(config(COUNTER + others, PACKETS, function="count"))
    loose.send(3)
    assert total(probe.export()) == 3
    with pytest.raises(UsageError, match="no program 'cuont'; it has count, other, unsafe"):
        compile_probe(loose.compiler, config(COUNTER + others, function="cuont"), loose.hooks)
