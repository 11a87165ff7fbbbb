"""The life of a probe for libbpf: windows, replacements, roll-backs, under traffic."""

from __future__ import annotations

import base64
import random
import time
from pathlib import Path

import pytest

from bpf.attach.attachment import Hook
from bpf.errors import UsageError
from probes.config.model import parse
from probes.snapshot import Item
from tests.probes.objects.sources import COUNTER, HEAD, LICENSE, compiled, config
from tests.probes.program.tools import (
    Loose,
    Traffic,
    events,
    metric,
    snapshots,
    total,
)

PACKETS, SEEN = metric("packets", snapshot=True), metric("seen", snapshot=True)


@pytest.mark.parametrize("is_object", [False, True])
def test_a_map_and_a_variable_count_each_packet_once(
    loose: Loose, tmp_path: Path, is_object: bool
) -> None:
    source = compiled(COUNTER, tmp_path) if is_object else COUNTER
    probe = loose.add(config(source, PACKETS, SEEN))
    items: list[Item] = []
    with Traffic(loose.fd(), burst=10_000) as traffic:
        for _ in range(20):
            time.sleep(0.002)
            items += probe.export()
    items += probe.export()
    assert not events(items)
    for name in ("packets", "seen"):
        values = [t.rows["value"].sum() for t in snapshots(items) if t.metric == name]
        assert len(values) == 21
        assert sum(values) == traffic.sent > 0


def test_a_window_of_a_variable_ends_at_a_replacement_and_its_state_goes_on(loose: Loose) -> None:
    """The same variables are the same map; a variable more makes a new section."""
    seen = metric("seen")
    probe = loose.add(config(COUNTER, seen))
    loose.send(5)
    with probe.compile(config(COUNTER.replace("!= 3", "!= 3 + 0"), seen)) as alike:
        assert probe.compare(alike).maps
        probe.replace(alike)
    loose.send(2)
    (table,) = snapshots(probe.export())
    assert table.rows["value"].tolist() == [7]
    more = COUNTER.replace("__u64 seen;", "__u64 seen, more;").replace("odd ^= 1;", "more += 2;")
    with probe.compile(config(more, seen, metric("more"))) as other:
        probe.replace(other)
    loose.send(1)
    first, second = snapshots(probe.export())
    assert (first.rows["value"].tolist(), second.rows["value"].tolist()) == ([1], [2])
    probe.roll_back()
    loose.send(1)
    (table,) = snapshots(probe.export())
    assert table.rows["value"].tolist() == [8]


def test_define_sets_a_constant_of_each_generation(loose: Loose, tmp_path: Path) -> None:
    seen = metric("seen", init=True)
    data = compiled(COUNTER, tmp_path)
    probe = loose.add(config(data, seen, define={"step": 3}))
    loose.send(2)
    with probe.compile(config(COUNTER, seen, define={"step": 10})) as compiled_:
        (ended,) = snapshots(probe.replace(compiled_))
    assert ended.rows["value"].tolist() == [6]
    loose.send(2)
    (table,) = snapshots(probe.export())
    assert table.rows["value"].tolist() == [20]


def test_define_sets_members_of_variables(loose: Loose) -> None:
    """A struct of settings, as many user spaces fill it before the load: constants, in an anonymous
    union, and the first values of variables that the program writes."""
    source = (
        f"{HEAD}struct rates {{ __u8 on; union {{ __s32 low; __u32 high; }}; __u64 odd : 3; }};\n"
        "struct settings { __u64 step; struct rates rates; };\n"
        "static volatile const struct settings settings = {}; struct settings state; __u64 seen;\n"
        'SEC("xdp") int count(struct xdp_md *ctx) {\n'
        "    if (settings.rates.on) seen += settings.step - settings.rates.low;\n"
        f"    state.step++; return XDP_PASS;\n}}\n{LICENSE}"
    )
    define = {"settings.step": 1 << 40, "settings.rates.on": 1, "settings.rates.low": -3}
    metrics = metric("seen"), metric("state")
    probe = loose.add(config(source, *metrics, define={**define, "state.step": 20}))
    loose.send(2)
    seen, state = snapshots(probe.export())
    assert seen.rows["value"].tolist() == [2 * ((1 << 40) + 3)]
    assert state.rows["value"]["step"].tolist() == [22]
    for path, value, said in (
        ("settings.rates.odd", 1, "the source has no such `const volatile` variable, or member"),
        ("settings.none", 1, "the source has no such `const volatile` variable, or member"),
        ("settings.rates.on", 300, "300 does not fit settings.rates.on, of 1 bytes"),
    ):
        with pytest.raises(UsageError, match=said):
            loose.add(config(source, define={path: value}))
    source = "int count(struct xdp_md *ctx) { return XDP_PASS; }"
    with pytest.raises(UsageError, match=r"settings\.on: C for bcc has no variables"):
        loose.add(config(source, define={"settings.on": 1}))


def test_an_array_of_variables_has_a_row_for_each_element(loose: Loose) -> None:
    source = (
        f"{HEAD}__u32 sizes[4]; struct point {{ __u64 x; __u8 y; }} last;\n"
        'SEC("xdp") int count(struct xdp_md *ctx) {\n'
        "    sizes[2] += 1; last.x = 9; last.y = ctx->data_end - ctx->data;\n"
        f"    return XDP_PASS;\n}}\n{LICENSE}"
    )
    probe = loose.add(config(source, metric("sizes", snapshot=True), metric("last", snapshot=True)))
    loose.send(3)
    sizes, last = snapshots(probe.export())
    assert sizes.rows["value"].tolist() == [0, 0, 3, 0]
    assert last.rows["value"]["x"].tolist() == [9]
    assert last.rows["value"]["y"].tolist() == [64]


def test_swaps_under_traffic_count_each_packet_once(loose: Loose) -> None:
    """S1.26, for libbpf: 200 changes between two sources, with exports between them."""
    draw = random.Random(1)
    other = COUNTER.replace("bpf_loop(3", "bpf_loop(3 + (sum & 0)")
    sources = [config(COUNTER, PACKETS, SEEN), config(other, PACKETS, SEEN)]
    probe = loose.add(sources[0])
    results = [probe.compile(each) for each in sources]
    items: list[Item] = []
    with Traffic(loose.fd(), burst=10_000) as traffic:
        for _ in range(200):
            what = draw.random()
            if what < 0.2 and probe.previous:
                items += probe.roll_back()[1]
            else:
                items += probe.replace(draw.choice(results))
    items += probe.export()
    for each in results:
        each.close()
    assert not events(items)
    for name in ("packets", "seen"):
        assert sum(total([t], name) for t in snapshots(items)) == traffic.sent > 0


def test_both_directions_of_one_object_share_its_maps_and_variables(
    loose: Loose, tmp_path: Path
) -> None:
    source = (
        f"{HEAD}struct {{ __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8);\n"
        '__type(key, __u32); __type(value, __u64); } both SEC(".maps");\n__u64 seen, own;\n'
        'SEC("tc") int in(struct __sk_buff *ctx) {\n'
        "    __u32 key = 1; __u64 value = 5; seen += 1;\n"
        "    bpf_map_update_elem(&both, &key, &value, 0); return 0;\n}\n"
        'SEC("tcx/egress") int out(struct __sk_buff *ctx) {\n'
        "    __u32 key = 1; __u64 *value = bpf_map_lookup_elem(&both, &key);\n"
        f"    if (value) seen += *value;\n    return 0;\n}}\n{LICENSE}"
    )
    data = base64.b64encode(compiled(source, tmp_path)).decode()
    sides = {
        side: {"interface": "lo", "object": data, "function": name, "metrics": [metric("seen")]}
        for side, name in (("ingress", "in"), ("egress", "out"))
    }
    probe = loose.add(parse({"name": "probe", "interval": 0, **sides}, "test"))
    loose.send(2, hook=Hook.TC_INGRESS)
    loose.send(3, hook=Hook.TC_EGRESS)
    tables = snapshots(probe.export())
    assert [table.rows["value"].tolist() for table in tables] == [[17], [17]]
