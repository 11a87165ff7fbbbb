"""Readings of all maps of a probe: exact, bounded, and without any effect on the maps."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.flow.hook import SOURCE as FLOW_C
from probes.map_reading import MOST_ENTRIES, read_maps
from probes.monitor.options import MonitorOptions
from probes.monitor.programs import SOURCE as MONITOR_C
from probes.reports import MapReading, MapReadings
from tests.probes.conftest import MakeProbe
from tests.probes.flow.test_source import edited, put
from tests.probes.flow.test_source import run as run_flows
from tests.probes.monitor.bed import Bed
from tests.probes.program.test_metrics import KINDS
from tests.probes.program.tools import Loose, config, metric, snapshots
from tests.probes.running import Frame
from tests.support.descriptors import open_fds

MINE = FLOW_C.read_text(encoding="utf-8").replace(
    "int flow(CONTEXT *ctx) {",
    "BPF_ARRAY(mine, u64, 1);\n\nint flow(CONTEXT *ctx) {\n"
    "    u32 nought = 0;\n    u64 *all = mine.lookup(&nought);\n"
    "    if (all)\n        lock_xadd(all, 1);\n",
)
"""The flow probe's source with a counter of every packet."""


def read(probe: Any, most: int = 1000) -> MapReadings:
    return read_maps(probe.name, probe.generation, probe.latest, probe.lend_maps(), most)


def by_name(readings: MapReadings) -> dict[str, MapReading]:
    return {each.name: each for each in readings.maps}


def test_every_kind_of_map_is_read_and_stays_as_it_was(loose: Loose) -> None:
    """Maps without a metric; queues and stacks are only named, because a read would empty them."""
    probe = loose.add(config(KINDS))
    loose.send(3, bytes(64))
    loose.send(2, bytes(80))
    before = open_fds()
    for _ in range(2):
        maps = by_name(read(probe))
        for name in ("hash", "lru", "percpu_hash", "trie"):
            assert [row[-1] for row in maps[name].rows] == [3, 2], name  # the largest first
            assert (maps[name].entries, maps[name].at_least) == (2, False)
        assert maps["hash"].columns == ("key.address", "key.kind", "value")
        assert maps["hash"].fill == 2 / 64
        for name in ("array", "percpu_array"):
            assert maps[name].table == "array"
            assert [row for row in maps[name].rows if row[1]] == [(0, 3), (16, 2)], name
            assert len(maps[name].rows) == 64
        assert maps["histogram"].rows[-1] == (7, 64, 127, 5)
        for name in ("queue", "stack"):
            assert not maps[name].rows
            assert "take its entries out" in maps[name].note
        assert maps["trie"].rows[0][0] == "64.0.0.0/32"
        assert not any(each.cleared or each.metrics for each in maps.values())
    assert open_fds() <= before


def test_private_maps_have_a_name_and_a_size_only(loose: Loose) -> None:
    """S1.9: nobody outside sees what they hold."""
    private = {name: {"private": True} for name in ("hash", "array")}
    probe = loose.add(config(KINDS, maps=private))
    loose.send(3)
    maps = by_name(read(probe))
    assert [(maps[name].rows, maps[name].max_entries) for name in private] == [((), 64)] * 2
    assert maps["lru"].rows


def test_windows_of_a_snapshot_metric_are_neither_read_twice_nor_emptied(loose: Loose) -> None:
    source = KINDS.replace("BPF_HASH(hash,", "BPF_HASH(ports,").replace("hash.inc", "ports.inc")
    probe = loose.add(config(source, metric("ports", snapshot=True), metric("array", init=True)))
    maps = by_name(read(probe))
    assert (maps["ports"].rows, maps["ports"].metrics, maps["ports"].cleared) == (
        (),
        ("ports",),
        True,
    )
    sent = 0
    for packets in (2, 5):
        loose.send(packets)
        sent += packets
        read(probe)
        tables = snapshots(probe.export())
        assert [int(t.rows["value"].sum()) for t in tables] == [packets, packets]
        readings = read(probe)
        maps = by_name(readings)
        assert maps["ports"].rows == (("64.0.0.0", 7, packets),)
        assert (maps["ports"].entries, maps["ports"].fill) == (1, 1 / 64)
        assert maps["array"].rows[0] == (0, packets)
        assert maps["histogram"].rows[-1][-1] == sent
        assert (readings.window, readings.probe) == (tables[0].window, "probe")
        assert readings.seconds == tables[0].seconds


def test_a_reading_is_bounded(loose: Loose) -> None:
    source = """\
BPF_HASH(many, u32, u64, 65536);
BPF_ARRAY(long_array, u64, 65536);
struct wide { u64 part[9000]; };
BPF_ARRAY(wide, struct wide, 1);
BPF_RINGBUF_OUTPUT(ring, 1);

int count(struct xdp_md *ctx)
{
    u32 key = bpf_get_prandom_u32(), last = 65535, two = 2;
    u64 record = 7;
    many.increment(key);
    long_array.increment(two);
    ring.ringbuf_output(&record, sizeof(record), 0);
    return XDP_PASS;
}
"""
    probe = loose.add(config(source))
    loose.send(MOST_ENTRIES + 5000)
    maps = by_name(read(probe, 10))
    many = maps["many"]
    assert len(many.rows) == 10
    assert many.at_least
    assert MOST_ENTRIES <= (many.entries or 0) < MOST_ENTRIES + 1000
    assert "largest" in many.note
    assert (2, MOST_ENTRIES + 5000) in maps["long_array"].rows
    assert "too many to show" in maps["wide"].note
    assert (maps["ring"].entries, maps["ring"].max_entries) == (4080, 4096)


def test_a_map_that_a_user_adds_to_the_flow_probe_counts_every_packet_once(
    make_probe: MakeProbe,
) -> None:
    """Its two halves take turns, and they count in one map; the probe's own tables have no
    values here."""
    loose = make_probe(Hook.XDP)
    probe = loose.probe
    put(probe, edited(probe, MINE))
    sent = 0
    for packets in (3, 4, 5):
        run_flows(loose, packets)
        sent += packets
        window = probe.poll()
        assert int(window.rows["packets"].sum()) == packets
        maps = by_name(read(probe))
        assert maps["mine"].rows == ((0, sent),)
        assert maps["mine"].line == MINE[: MINE.index("mine,")].count("\n") + 1
    assert not any(each.rows for name, each in maps.items() if name != "mine")
    assert maps["records"].memory > 1 << 16
    assert maps["alarm"].fill == 0
    probe._resize(changed(probe._sizes, records=probe._sizes.records // 2))
    for _ in range(2):
        run_flows(loose, 1)
        probe.poll()
    assert by_name(read(probe))["mine"].rows == ((0, sent + 2),)


@pytest.mark.slow
def test_a_map_that_a_user_adds_to_the_monitor_counts_every_packet_once(
    compiler: Compiler,
) -> None:
    source = MONITOR_C.read_text(encoding="utf-8")
    start = source.index("int monitor(")
    body = source.index("{", start) + 1
    source = (
        f"{source[:start]}BPF_PERCPU_ARRAY(mine, u64, 1);\n{source[start:body]}\n"
        "    u32 nought = 0;\n    u64 *all = mine.lookup(&nought);\n"
        "    if (all)\n        (*all)++;\n"
        f"{source[body:]}"
    )
    with Bed(compiler, MonitorOptions(bits=8)) as bed:
        probe = bed.monitor
        with probe.compile(probe.config.with_source("ingress", source)) as compiled:
            probe.replace(compiled)
        for _ in range(3):
            bed.run(bytes(Frame()), 2)
            probe.export()
        maps = by_name(read(probe))
        assert maps["mine"].rows == ((0, 6),)
        assert maps["receivers"].entries == 0
        assert not any(each.rows for name, each in maps.items() if name != "mine")
