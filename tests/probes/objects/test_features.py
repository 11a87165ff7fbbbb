"""Features of programs for libbpf: each program counts right in a chain, on two clones."""

from __future__ import annotations

import pytest

from tests.probes.objects.sources import HEAD, LICENSE, config
from tests.probes.program.tools import Loose, metric, snapshots

COUNTS = """
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} packets SEC(".maps");

static __always_inline int counted(void)
{
    __u32 zero = 0;
    __u64 *n = bpf_map_lookup_elem(&packets, &zero);
    if (n)
        *n += 1;
    return XDP_PASS;
}
"""
TAIL_CALL = """
int called(struct xdp_md *ctx);
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 3);
    __type(key, __u32);
    __array(values, int(struct xdp_md *));
} calls SEC(".maps") = { .values = { [1] = (void *)&called } };

SEC("xdp") int called(struct xdp_md *ctx) { return counted(); }
SEC("xdp") int count(struct xdp_md *ctx)
{
    bpf_tail_call(ctx, &calls, 1);
    return XDP_ABORTED;
}
"""
TIMER = """
struct timed { struct bpf_timer timer; __u64 value; };
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct timed);
} timers SEC(".maps");

static int fires(void *map, __u32 *key, struct timed *value) { return 0; }
SEC("xdp") int count(struct xdp_md *ctx)
{
    __u32 zero = 0;
    struct timed *timed = bpf_map_lookup_elem(&timers, &zero);
    if (!timed || (bpf_timer_init(&timed->timer, &timers, 1) < -16))
        return XDP_ABORTED;
    bpf_timer_set_callback(&timed->timer, fires);
    bpf_timer_start(&timed->timer, 1000, 0);
    return counted();
}
"""
DYNPTR = """
extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *to) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *from, __u32 at, void *to, __u32 n) __ksym;
SEC("xdp") int count(struct xdp_md *ctx)
{
    struct bpf_dynptr packet;
    char into[14];
    if (bpf_dynptr_from_xdp(ctx, 0, &packet) || !bpf_dynptr_slice(&packet, 0, into, 14))
        return XDP_ABORTED;
    return counted();
}
"""
INNER = """
struct inner {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} first SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 2);
    __type(key, __u32);
    __array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = &first } };
SEC("xdp") int count(struct xdp_md *ctx)
{
    __u32 one = 1, zero = 0;
    void *map = bpf_map_lookup_elem(&outer, &one);
    __u64 *value = map ? bpf_map_lookup_elem(map, &zero) : NULL;
    if (!value)
        return XDP_ABORTED;
    *value += 1;
    return counted();
}
"""
KINDS = """
struct { __uint(type, BPF_MAP_TYPE_BLOOM_FILTER); __uint(max_entries, 100); __uint(map_extra, 3);
         __type(value, __u32); } bloom SEC(".maps");
struct prefix { __u32 length; __u32 address; };
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 10); __type(key, struct prefix);
         __type(value, __u64); __uint(map_flags, BPF_F_NO_PREALLOC); } trie SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 4); __uint(key_size, 4);
         __uint(value_size, 4); } devices SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_HASH); __uint(max_entries, 4); __type(key, __u32);
         __type(value, __u64); __uint(pinning, LIBBPF_PIN_BY_NAME); } pinned SEC(".maps");
SEC("xdp") int count(struct xdp_md *ctx)
{
    __u32 value = 7;
    struct prefix key = { 32, 1 };
    bpf_map_push_elem(&bloom, &value, 0);
    if (bpf_map_peek_elem(&bloom, &value) || bpf_map_lookup_elem(&trie, &key))
        return XDP_ABORTED;
    bpf_ringbuf_output(&ring, &value, 4, 0);
    bpf_redirect_map(&devices, 1, 0);
    bpf_map_update_elem(&pinned, &value, &key, 0);
    return counted();
}
"""
NAMES = ('"vmlinux.h"', "<bpf/bpf_helpers.h>", "<bpf/bpf_core_read.h>")
KERNEL_TYPES = """
SEC("xdp") int count(struct xdp_md *ctx)
{
    struct task_struct *task = (void *)bpf_get_current_task();
    bpf_printk("%d", BPF_CORE_READ(task, pid));
    return counted();
}
"""
GLOBAL_FUNCTION = """
struct state { __u64 sum; } state;
__noinline int add(struct xdp_md *ctx, int by) { state.sum += by; return 0; }
SEC("xdp.frags") int count(void *ctx) { add(ctx, 3); return counted(); }
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(TAIL_CALL, id="tail call"),
        pytest.param(TIMER, id="timer"),
        pytest.param(DYNPTR, id="dynptr"),
        pytest.param(INNER, id="inner maps"),
        pytest.param(KINDS, id="kinds of maps"),
        pytest.param(KERNEL_TYPES, id="types of the kernel"),
        pytest.param(GLOBAL_FUNCTION, id="global function"),
    ],
)
def test_a_program_with_a_feature_of_libbpf_counts(loose: Loose, body: str) -> None:
    head = HEAD
    if body is KERNEL_TYPES:
        head = "\n".join(f"#include {name}" for name in NAMES) + "\n"
    probe = loose.add(
        config(head + COUNTS + body + LICENSE, metric("packets", snapshot=True), function="count")
    )
    for sent in (3, 4, 5):
        assert loose.send(sent) == 2
        (table,) = snapshots(probe.export())
        assert table.rows["value"].tolist() == [sent]
