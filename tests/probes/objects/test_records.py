"""Ring buffers and perf events of programs for libbpf: each record is a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpf.errors import UsageError
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
    # libbpf's programs count no loss, but an event tells of a full ring.
    loose.send(600)
    items = probe.export()
    assert [len(table.rows) for table in snapshots(items)] == [4096 // 24, 600]
    assert ["ingress.ring is full" in each.text for each in events(items)] == [True]


def test_an_object_does_not_tell_the_type_of_records(loose: Loose, tmp_path: Path) -> None:
    source = compiled(SOURCE, tmp_path)
    for known in ({}, {"record": "struct events"}):
        with pytest.raises(UsageError, match="record: the type of the records of ring is not"):
            loose.add(config(source, metric("ring", **known)))
