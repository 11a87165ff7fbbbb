"""Ring buffers and perf events of programs for libbpf: each record is a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.errors import UsageError
from probes.snapshot import LossReason
from probes.tables.conversion import columns, flat_rows
from tests.probes.objects.sources import HEAD, LICENSE, compiled, config
from tests.probes.program.tools import Loose, events, metric, snapshots

SOURCE = f"""\
{HEAD}
struct event {{
    __u64 number;
    __be32 saddr;
    __u16 size;
}};
struct {{
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
}} ring SEC(".maps");
struct {{
    __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
    __uint(key_size, 4);
    __uint(value_size, 4);
}} perf SEC(".maps");
__u64 numbers;
const struct event *unused __attribute__((unused));

SEC("xdp")
int report(struct xdp_md *ctx)
{{
    struct event event = {{.number = __sync_fetch_and_add(&numbers, 1), .saddr = 0x0100007f,
                          .size = ctx->data_end - ctx->data}};
    struct event *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
    if (record) {{
        *record = event;
        bpf_ringbuf_submit(record, 0);
    }}
    bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, &event, sizeof(event));
    return XDP_PASS;
}}

{LICENSE}"""


CALLBACK = f"""\
{HEAD}
struct {{
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
}} ring SEC(".maps");

static long each(__u32 index, void *context)
{{
    __u64 record = index;
    bpf_ringbuf_output(&ring, &record, sizeof(record), 0);
    return 0;
}}
SEC("xdp")
int report(struct xdp_md *ctx)
{{
    bpf_loop(2, each, 0, 0);
    return XDP_PASS;
}}

{LICENSE}"""


@pytest.mark.parametrize("is_object", [False, True])
def test_records_are_rows(loose: Loose, tmp_path: Path, is_object: bool) -> None:
    source = compiled(SOURCE, tmp_path) if is_object else SOURCE
    known = {"record": "struct event"} if is_object else {}
    probe = loose.add(config(source, metric("ring", **known), metric("perf", **known)))
    first = 0
    for sent in (3, 1):
        loose.send(sent)
        truth = [(i, first + i, "127.0.0.1", 64) for i in range(sent)]
        for table in snapshots(probe.export()):
            assert table.schema is not None
            names = columns(table.schema, table.rows.dtype)
            assert names == ("position", "value.number", "value.saddr", "value.size")
            assert list(flat_rows(table.schema, table.rows)) == truth
        first += sent
    # Records that do not fit are counted; an event tells of a full ring.
    room = 4096 // 24
    for sent in (600, 5, 200):
        loose.send(sent)
        items = probe.export()
        ring, perf = snapshots(items)
        assert (len(ring.rows), len(perf.rows)) == (min(sent, room), sent)
        lost = ring.losses.get(LossReason.TABLE_FULL)
        assert (lost.packets if lost else 0) == max(0, sent - room)
        assert not perf.losses
        told = ["ingress.ring is full" in each.text for each in events(items)]
        assert told == [True] * (sent > room)


def test_records_that_a_callback_loses_are_counted(loose: Loose) -> None:
    probe = loose.add(config(CALLBACK, metric("ring")))
    loose.send(600)
    (table,) = snapshots(probe.export())
    room = len(table.rows)
    assert room in range(200, 257)
    assert table.losses[LossReason.TABLE_FULL].packets == 1200 - room


def test_a_source_with_a_map_of_losses_keeps_it(loose: Loose) -> None:
    own = """
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} losses SEC(".maps");
"""
    probe = loose.add(
        config(SOURCE.replace("__u64 numbers;", f"{own}__u64 numbers;"), metric("ring"))
    )
    loose.send(600)
    (table,) = snapshots(probe.export())
    assert not table.losses


def test_an_empty_record_is_refused_and_the_packet_behind_it_is_read(loose: Loose) -> None:
    """A program that sends nothing but the packet: the record is the packet's first bytes."""
    source = f"""\
{HEAD}
#include <linux/if_ether.h>
struct event {{ }};
struct {{
    __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __uint(key_size, 4); __uint(value_size, 4);
}} perf SEC(".maps");
SEC("xdp") int report(struct xdp_md *ctx) {{
    struct event event = {{}};
    __u64 size = ctx->data_end - ctx->data;
    bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU | size << 32, &event, sizeof(event));
    return XDP_PASS;
}}
{LICENSE}"""
    with pytest.raises(UsageError, match="the type of the records of perf has no bytes"):
        loose.add(config(source, metric("perf")))
    probe = loose.add(config(source, metric("perf", record="struct ethhdr")))
    loose.send(2, bytes(range(64)))
    (table,) = snapshots(probe.export())
    assert table.rows["value"]["h_source"].tolist() == [[*range(6, 12)]] * 2


def test_an_object_does_not_tell_the_type_of_records(loose: Loose, tmp_path: Path) -> None:
    source = compiled(SOURCE, tmp_path)
    for known in ({}, {"record": "struct events"}):
        with pytest.raises(UsageError, match="record: the type of the records of ring is not"):
            loose.add(config(source, metric("ring", **known)))
