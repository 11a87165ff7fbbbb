/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Decides the fate of packets that the actions of active policies select: drop, limit or mirror
 * (S2.15).
 *
 * It is the last program of the hook, so every probe has counted the packet before. It is in the
 * chain only while an action is active. The kernel ends an action at `until_ns`, even if the
 * process that began it hangs. DATAGRAMS and TUNNELS come from probes/monitor/actions/programs.py.
 */
#include "probe.h"
#include "kernel.h"
#include "select.h"
#include "tracer.h"
#include "tunnel.h"

#define MOST_ACTIONS 8
#define MOST_SPARED 4096
#define OF_DROPPED 1 /* as in bpf/attach/chain.py */
/* Added to a meter's times: a burst may be longer than the time since boot. */
#define LATER (1ULL << 62)
#define MIRRORED 0x70646d72 /* mark of a mirrored copy, which no action takes again */
#ifdef HOOK_TC_EGRESS
#define SIDE 1
#else
#define SIDE 0
#endif

/* As ACTION in programs.py. */
enum kind {
    DROPS = 1,
    LIMITS,
    MIRRORS,
};

struct action {
    u64 until_ns;  /* CLOCK_MONOTONIC */
    u64 packet_ns; /* between two packets of its rate; 0: no rate */
    u64 burst_ns;
    u32 kind;
    u32 side; /* 1: of outgoing packets */
    u32 dry;
    u32 interface; /* that gets the copies */
};

/* The rate's meter, exact on all CPUs together. */
struct meter {
    struct bpf_spin_lock lock;
    u32 unused;
    u64 used_ns; /* the time up to which packets have used the rate, plus LATER */
};

struct acted {
    u64 packets; /* dropped or mirrored; in a dry run, those that would have been */
    u64 bytes;
    u64 spared; /* packets of this host's control connections, which passed */
    u64 failed; /* packets that could not be mirrored */
};

BPF_F_TABLE("array", u32, struct action, actions, SELECTIONS, BPF_F_MMAPABLE);
BPF_ARRAY(meters, struct meter, SELECTIONS);
BPF_PERCPU_ARRAY(acted, struct acted, SELECTIONS);
BPF_PERCPU_ARRAY(seen, u64, 2);             /* packets, by side */
BPF_PROG_ARRAY(chain_head, 1 + OF_DROPPED); /* of the chain of the hook, see bpf/attach/chain.py */
BPF_HASH(spared, struct flow_key, u8, MOST_SPARED); /* without VLAN and tunnel */

static __always_inline bool is_mirrored(CONTEXT *ctx) {
#ifdef HOOK_XDP
    return false;
#else
    return ctx->mark == MIRRORED;
#endif
}

static __always_inline bool is_spared(struct packet *packet) {
    struct flow_key key = packet->key;
    key.transport &= (1ULL << 48) - 1;
#if TUNNELS || INTERFACES
    key.tunnel = 0;
#endif
    return spared.lookup(&key) != 0;
}

/* Whether the rate has a packet left. All packets of a segment pass together, and use the rate of
 * later ones. */
static __always_inline bool is_within_rate(struct action *action, u32 place, u64 packets) {
    struct meter *meter = meters.lookup(&place);
    if (!meter)
        return true;
    u64 now = LATER + bpf_ktime_get_ns(), packet_ns = action->packet_ns;
    u64 earliest = now - action->burst_ns;
    bpf_spin_lock(&meter->lock);
    u64 used = meter->used_ns;
    if (used < earliest)
        used = earliest;
    bool within = used + packet_ns <= now;
    meter->used_ns = within ? used + packets * packet_ns : used;
    bpf_spin_unlock(&meter->lock);
    return within;
}

static __always_inline bool mirror(CONTEXT *ctx, u32 interface) {
#ifdef HOOK_XDP
    return false;
#else
    u32 mark = ctx->mark;
    ctx->mark = MIRRORED;
    long failed = bpf_clone_redirect(ctx, interface, 0);
    ctx->mark = mark;
    return !failed;
#endif
}

int act(CONTEXT *ctx) {
    struct selector *selector = the_selector();
    if (!selector || is_tracers(ctx) || is_mirrored(ctx))
        return VERDICT_PASS;
    struct wire_size size = size_on_wire(ctx);
    u32 side = SIDE;
    u64 *all = seen.lookup(&side);
    if (all)
        *all += size.packets;
    struct packet packet = {};
    if (!parse_innermost(ctx, &packet, size.packets, size.bytes))
        return VERDICT_PASS;
    u64 selections = selections_of(selector, &packet) & selector->active;
    if (!selections)
        return VERDICT_PASS;
    bool passes = is_spared(&packet);
    u64 now = coarse_ns();
    int verdict = VERDICT_PASS;
    for (u64 n = 0; n < MOST_ACTIONS && selections; n++) {
        u32 place = place_of(selections & -selections);
        selections &= selections - 1;
        struct action *action = actions.lookup(&place);
        struct acted *count = acted.lookup(&place);
        if (!action || !count || action->side != SIDE || now >= action->until_ns)
            continue;
        u32 kind = action->kind;
        if (passes && kind != MIRRORS) {
            count->spared += size.packets;
            continue;
        }
        if (kind != DROPS) {
            bool within = is_within_rate(action, place, size.packets);
            if (kind == LIMITS && within)
                continue;
            if (kind == MIRRORS && !(within && (action->dry || mirror(ctx, action->interface)))) {
                count->failed += size.packets;
                continue;
            }
        }
        count->packets += size.packets;
        count->bytes += size.bytes;
        if (kind != MIRRORS && !action->dry)
            verdict = VERDICT_DROP;
    }
    if (verdict == VERDICT_DROP)
        chain_head.call(ctx,
                        OF_DROPPED); /* the program of the ring, if any, with the same verdict */
    return verdict;
}
