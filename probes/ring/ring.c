/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The packet ring: each CPU keeps the first bytes of its last packets of selected flows, and
 * overwrites the oldest ones.
 *
 * The programs of both directions write the ring of their CPU. CPUs share nothing, and bottom
 * halves are off, so no operation is atomic. A reader sets `paused`, waits for a grace period, and
 * copies: meanwhile packets are only counted. A reader without a pause compares the two numbers of
 * a slot. BYTES and TUNNELS come from probes/ring/probe.py, and SLOTS, slots of a CPU, is a power
 * of two. Every packet passes.
 */
#include "probe.h"
#include "kernel.h"
#include "select.h"
#include "bits.h"
#include "tracer.h"
#include "tunnel.h"

#define MOST_KEPT 8 /* selections, as MOST_KEPT in probes/ring/options.py */
#define SHORTEST 20 /* bytes of the header of IPv4: shorter frames have no IP packet */
#define INTERFACE_SHIFT 40
#define ORDERED asm volatile("" : : : "memory") /* writes before it come first */
#ifdef HOOK_TC_EGRESS
#define OUTGOING 1
#else
#define OUTGOING 0
#endif

struct slot {
    u64 number;   /* of the packet in the order of its CPU, from 1 */
    u64 time;     /* CLOCK_MONOTONIC */
    u64 key[6];   /* struct flow_key; its last word has the interface's number, too, as in flow.c */
    u32 length;   /* bytes of the frame, without the tag that the NIC took off */
    u16 captured; /* of `bytes` */
    u8 raw;       /* whether it starts with the IP header */
    u8 dropped;   /* whether an action of a policy dropped it */
    u16 tag;      /* that the NIC took off, if `tag_type` (network order) is not 0 */
    u16 tag_type;
    u16 packets; /* of a large segment on the wire */
    u8 selections;
    u8 outgoing;
    u8 bytes[BYTES];
    u64 ended; /* `number` again, written last */
};

/* Counts of one CPU: packets, frames of large segments once. */
struct kept_cpu {
    u64 last;              /* number of the newest packet */
    u64 now;               /* number of the packet that the CPU is at; 0: it is not kept */
    u64 kept[MOST_KEPT];   /* written to the ring, by selection */
    u64 paused[MOST_KEPT]; /* that came during a pause */
    u64 failed[MOST_KEPT]; /* without a slot for their CPU, or whose bytes could not be read */
    u64 unused[6];         /* up to a cache line */
};

struct ring_control {
    u64 paused;
};

BPF_F_TABLE("array", u32, struct slot, slots, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct kept_cpu, kept_cpus, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct ring_control, ring_control, 1, BPF_F_MMAPABLE);

static __always_inline struct slot *slot_of(u32 cpu, u64 number) {
    u32 place = cpu * CONSTANT(SLOTS) + (number & (CONSTANT(SLOTS) - 1));
    return slots.lookup(&place);
}

static __always_inline bool copy(CONTEXT *ctx, struct slot *slot, u64 size) {
#ifdef HOOK_XDP
    return !bpf_probe_read_kernel(slot->bytes, size, (void *)(long)ctx->data);
#else
    return !bpf_skb_load_bytes(ctx, 0, slot->bytes, size);
#endif
}

static __always_inline void count(u64 *counts, u64 selections) {
#pragma unroll
    for (int n = 0; n < MOST_KEPT; n++)
        counts[n] += selections >> n & 1;
}

int ring(CONTEXT *ctx) {
    struct selector *selector = the_selector();
    u32 cpu = bpf_get_smp_processor_id(), zero = 0;
    struct kept_cpu *counts = kept_cpus.lookup(&cpu);
    if (!selector || !counts || is_tracers(ctx))
        return VERDICT_PASS;
    counts->now = 0;
    struct wire_size size = size_on_wire(ctx);
    struct packet packet = {};
    if (!parse_innermost(ctx, &packet, size.packets, size.bytes))
        return VERDICT_PASS;
    u64 selections = selections_of(selector, &packet) & selector->active;
    if (!selections)
        return VERDICT_PASS;
    struct ring_control *control = ring_control.lookup(&zero);
    if (!control)
        return VERDICT_PASS;
    if (control->paused) {
        count(counts->paused, selections);
        return VERDICT_PASS;
    }
    u64 number = counts->last + 1;
    struct slot *slot = slot_of(cpu, number);
    if (!slot) {
        count(counts->failed, selections);
        return VERDICT_PASS;
    }
    slot->ended = 0;
    ORDERED;
    slot->number = number;
    slot->time = bpf_ktime_get_ns();
    u64 *key = (u64 *)&packet.key;
    slot->key[5] = 0;
#pragma unroll
    for (int n = 0; n < sizeof(packet.key) / 8; n++)
        slot->key[n] = key[n];
    slot->key[5] |= (u64)INTERFACE(ctx) << INTERFACE_SHIFT;
#ifdef HOOK_XDP
    u64 length = ctx->data_end - ctx->data;
    slot->tag_type = 0;
#else
    u64 length = ctx->len;
    slot->tag_type = ctx->vlan_present ? ctx->vlan_proto : 0;
    slot->tag = ctx->vlan_tci;
#endif
    /* Verifiers before 6.8 learn nothing of a size that is not 0. Two comparisons that the compiler
     * cannot join tell them the least and the largest size. */
    u64 captured = opaque(length < BYTES ? length : BYTES);
    if (captured < SHORTEST)
        return VERDICT_PASS;
    captured = opaque(captured);
    if (captured > BYTES || !copy(ctx, slot, captured)) {
        count(counts->failed, selections);
        return VERDICT_PASS;
    }
    slot->length = length;
    slot->captured = captured;
    slot->raw = LINK_RAW(ctx);
    slot->dropped = 0;
    slot->packets = size.packets;
    slot->selections = selections;
    slot->outgoing = OUTGOING;
    ORDERED;
    slot->ended = number;
    counts->last = counts->now = number;
    count(counts->kept, selections);
    return VERDICT_PASS;
}

/* The actions of the hook, which come later in its chain, call it for a packet that they drop. */
int dropped(CONTEXT *ctx) {
    u32 cpu = bpf_get_smp_processor_id();
    struct kept_cpu *counts = kept_cpus.lookup(&cpu);
    if (!counts || !counts->now)
        return VERDICT_DROP;
    struct slot *slot = slot_of(cpu, counts->now);
    if (slot)
        slot->dropped = 1;
    return VERDICT_DROP;
}
