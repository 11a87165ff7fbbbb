/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sends a probe whenever an application's packet leaves for a traced destination (S3.4).
 *
 * `path` finds the destination and asks its meter; `send4` and `send6` choose a hop and clone the
 * packet. The clone passes this hook again before it leaves: `edit4` and `edit6` cut it down and
 * set its TTL. A probe has the flow's addresses, ports and IPv6 flow label, and so takes its path.
 *
 * Other tracers' probes, and their clones on the way to their hook, are counted, and cause no
 * probe.
 *
 * MARK, BURST, APPLICATION_FIRST and GUARD (GUARD_*) come from probes/path/programs.py.
 */
#include "path.h"
#include "cause.h"
#include "guard.h"
#include "meter.h"
#include "own.h"
#include "round_trip_out.h"
#include "scratch.h"

#define SEND4 0
#define SEND6 1
#define EDIT4 2
#define EDIT6 3
#define OWN4 4 /* SEND4 and SEND6 of the tracer's own flow, which no other probe gets */
#define OWN6 5
#define DELIVER 6
BPF_PROG_ARRAY(steps, 7);

#define NET_XMIT_CN 2 /* linux/netdevice.h: the queue took the packet and dropped another */
#define REMARKED 1    /* in `senders`: the clone arrived without its mark */

static __always_inline u64 *sender_of_cpu(void) {
    u32 zero = 0;
    return senders.lookup(&zero);
}

/* Handle a marked clone: make it the probe, or let it pass as the application's packet. */
static __always_inline int take_clone(CONTEXT *ctx) {
    struct scratch *scratch = scratch_of_cpu();
    u64 *sender = sender_of_cpu();
    if (!scratch || !sender || !scratch->sending)
        return VERDICT_DROP; /* a clone of the generation that was just replaced */
    scratch->sending = 0;
    *sender = 0;
#if APPLICATION_FIRST
    ctx->mark = scratch->mark;
    *(volatile u64 *)ctx->cb = scratch->control;
    if (scratch->sender == BY_OWN_FLOW)
        steps.call(ctx, DELIVER);
    return VERDICT_PASS; /* the application's packet */
#else
    u8 version = scratch->ip[0] >> 4;
    steps.call(ctx, version == 4 ? EDIT4 : EDIT6);
    return VERDICT_DROP;
#endif
}

/*
 * Whether an unmarked packet is a clone whose mark another program changed. Between a call of
 * bpf_clone_redirect and the clone's arrival here the same task can send no other packet: softirqs
 * wait, and packets from programs in between are copies of the clone. The task is compared because
 * with PREEMPT_RT another task may take the CPU meanwhile and send.
 */
static __always_inline bool is_remarked_clone(struct shared *shared) {
    if (!shared->clones)
        return false;
    u64 *sender = sender_of_cpu();
    if (!sender || *sender != bpf_get_current_task())
        return false;
    *sender = REMARKED;
    return true;
}

int path(CONTEXT *ctx) {
    struct shared *shared = shared_state();
    if (!shared)
        return VERDICT_PASS;
    if (ctx->mark == CONSTANT(MARK))
        return take_clone(ctx);
    if (is_remarked_clone(shared))
        return VERDICT_DROP; /* it would be a duplicate of the application's packet */

    struct cursor c = {(void *)(long)ctx->data, (void *)(long)ctx->data_end};
    struct address to;
    __be16 type;
    u32 step, protocol, size;
    if (!skip_link(&c, &type))
        return VERDICT_PASS;
    if (type == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return VERDICT_PASS;
        to = mapped(ip->daddr);
        step = SEND4;
        protocol = ip->protocol;
        size = ip->ihl * 4;
    } else if (type == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return VERDICT_PASS;
        to = *(struct address *)&ip->daddr;
        step = SEND6;
        protocol = ip->nexthdr;
        size = sizeof(*ip);
    } else {
        return VERDICT_PASS;
    }
    u32 index = 0;
    struct target *target = target_at(shared, &to, &index);
    if (!target)
        return VERDICT_PASS;
    u64 now = bpf_ktime_get_ns();
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_PASS;
    scratch->l3 = c.at - (void *)(long)ctx->data;
    if (is_tracers(ctx)) {
        count_foreign(ctx, target, scratch, now);
        return VERDICT_PASS;
    }
    scratch->packet_bytes = ctx->len - scratch->l3;
    scratch->sender = sender_of(ctx, target, protocol, scratch->l3 + size);
    if (scratch->sender == BY_APPLICATION) {
        __sync_fetch_and_add(&target->packets, 1);
        depart(ctx, target, index, scratch->l3, step == SEND4, now);
    } else {
        __sync_fetch_and_add(&target->sent_bytes, scratch->packet_bytes);
        step = step == SEND4 ? OWN4 : OWN6;
        if (scratch->sender == BY_REQUEST || target->next_ns > now)
            step = DELIVER;
    }
    if (target->next_ns > now && step != DELIVER)
        return VERDICT_PASS;
    scratch->now = now;
    scratch->target = index;
    steps.call(ctx, step);
    return VERDICT_PASS;
}

enum outcome {
    CLONE_SENT,
    CLONE_DROPPED,
    CLONE_REMARKED, /* dropped because another program changed its mark */
    CLONE_ESCAPED,  /* another program sent or kept it, and `path` never saw it */
};

/* Clone the packet. The clone passes `path` before this returns. */
static __always_inline enum outcome clone(CONTEXT *ctx, struct scratch *scratch) {
    struct shared *shared = shared_state();
    u64 *sender = sender_of_cpu();
    if (!shared || !sender)
        return CLONE_DROPPED;
    /* volatile: the verifier refuses one store of eight bytes with the neighbouring field. */
    volatile CONTEXT *marked = ctx;
    u32 mark = ctx->mark;
    u64 control = *(u64 *)ctx->cb;
    scratch->mark = mark;
    scratch->control = control;
    scratch->sending = 1;
    *sender = bpf_get_current_task();
    __sync_fetch_and_add(&shared->clones, 1);
    marked->mark = CONSTANT(MARK);
    *(volatile u64 *)marked->cb = TRACERS;
    long error = bpf_clone_redirect(ctx, ctx->ifindex, 0);
    *(volatile u64 *)marked->cb = control;
    marked->mark = mark;
    __sync_fetch_and_add(&shared->clones, -1);
    bool seen = !scratch->sending, remarked = *sender == REMARKED;
    scratch->sending = 0;
    *sender = 0;
    if (error && error != NET_XMIT_CN)
        return remarked ? CLONE_REMARKED : CLONE_DROPPED;
    return seen ? CLONE_SENT : CLONE_ESCAPED;
}

static __always_inline int send(CONTEXT *ctx, struct scratch *scratch, u32 edit) {
    struct target *target = target_of(scratch->target);
    if (!target || !chosen(target, scratch))
        return VERDICT_PASS;
    u64 now = scratch->now;
    for (u64 i = 0; i < CONSTANT(BURST); i++) {
        if (!due(target, now))
            break;
        scratch->hop = bounded(next_hop(target));
        if (!scratch->hop)
            break;
        /* A path may become shorter at any moment, and a whole datagram reach the application. */
        u32 whole = scratch->protocol == IPPROTO_UDP ? 0 : target->whole;
        scratch->whole = CONSTANT(GUARD) == GUARD_NONE || whole >> bounded(scratch->hop) & 1;
        scratch->sequence = take_number(target, scratch);
        __sync_fetch_and_add(&target->sent[bounded(scratch->hop)], 1);
        enum outcome outcome = clone(ctx, scratch);
        if (outcome == CLONE_REMARKED)
            __sync_fetch_and_add(&target->remarked, 1);
#if APPLICATION_FIRST
        if (outcome == CLONE_SENT || outcome == CLONE_ESCAPED) {
            steps.call(ctx, edit); /* the clone was the packet; this one becomes the probe */
            return VERDICT_DROP;
        }
#else
        if (outcome == CLONE_ESCAPED) {
            /* The application's packet may be on the wire twice: prevent another duplicate. */
            target->escaped = 1;
            target->next_ns = NEVER;
        }
#endif
        if (outcome != CLONE_SENT)
            keep(scratch, SLOT_DROPPED);
    }
    return VERDICT_PASS;
}

/* `at`: offset of the transport header. `echo`: type of an echo request. */
static __always_inline int send_if_usable(CONTEXT *ctx, struct scratch *scratch, u32 at, u8 ttl,
                                          u8 echo, u32 edit) {
    enum unprobed reason = usable(ctx, scratch, at, echo);
    if (reason != USABLE)
        return refuse(scratch, reason);
    struct target *target = target_of(scratch->target);
    if (target && is_marked(ctx, scratch, at, ttl)) {
        count_foreign(ctx, target, scratch, scratch->now);
        return VERDICT_PASS;
    }
    return send(ctx, scratch, edit);
}

int send4(CONTEXT *ctx) {
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_PASS;
    u32 l3 = scratch->l3;
    if (bpf_skb_load_bytes(ctx, l3, scratch->ip, sizeof(struct iphdr)))
        return VERDICT_PASS;
    struct iphdr *ip = (void *)scratch->ip;
    if (ip->version != 4 || ip->ihl < 5)
        return VERDICT_PASS;
    if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
        return refuse(scratch, UNPROBED_FRAGMENT);
    if (ip->ihl != 5)
        return refuse(scratch, UNPROBED_OPTIONS);
    scratch->protocol = ip->protocol;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_ICMP)
        return refuse(scratch, UNPROBED_PROTOCOL);
    return send_if_usable(ctx, scratch, l3 + sizeof(*ip), ip->ttl, ICMP_ECHO, EDIT4);
}

int send6(CONTEXT *ctx) {
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_PASS;
    u32 l3 = scratch->l3;
    if (bpf_skb_load_bytes(ctx, l3, scratch->ip, sizeof(struct ipv6hdr)))
        return VERDICT_PASS;
    struct ipv6hdr *ip = (void *)scratch->ip;
    u8 protocol = ip->nexthdr;
    scratch->protocol = protocol;
    if (ip->version != 6)
        return VERDICT_PASS;
    if (protocol == IPPROTO_FRAGMENT)
        return refuse(scratch, UNPROBED_FRAGMENT);
    if (protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS ||
        protocol == IPPROTO_AH)
        return refuse(scratch, UNPROBED_EXTENSION);
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_ICMPV6)
        return refuse(scratch, UNPROBED_PROTOCOL);
    return send_if_usable(ctx, scratch, l3 + sizeof(*ip), ip->hop_limit, ICMPV6_ECHO_REQUEST,
                          EDIT6);
}

/* Send a packet that no other probe gets. */
int deliver(CONTEXT *ctx) {
    return VERDICT_PASS;
}

/* Write the headers in `scratch` to the packet, and the result to the slot. */
static __always_inline int finish(CONTEXT *ctx, struct scratch *scratch, u32 ip_size, u32 pseudo,
                                  int partial) {
    u32 l3 = scratch->l3, protocol = scratch->protocol, length = length_of(protocol);
    u8 *transport = scratch->transport;
    long error = partial < 0;
    if (!error) {
        scratch->checksum = seal(transport, protocol, pseudo, partial, scratch->whole);
        error = bpf_skb_store_bytes(ctx, l3 + ip_size, transport, length, 0);
    }
    error = error || bpf_skb_store_bytes(ctx, l3, scratch->ip, ip_size, 0);
    struct target *target = target_of(scratch->target);
    if (target && !error)
        __sync_fetch_and_add(&target->sent_bytes, ip_size + length);
    keep(scratch, error ? SLOT_DROPPED : SLOT_SENT);
    return error ? VERDICT_DROP : VERDICT_PASS;
}

/* Give the probe its packet's mark again. Other tracers still see that it is none of theirs. */
static __always_inline void restore_mark(CONTEXT *ctx, struct scratch *scratch) {
#if APPLICATION_FIRST
    *(volatile u64 *)ctx->cb = TRACERS;
#else
    ctx->mark = scratch->mark;
#endif
}

int edit4(CONTEXT *ctx) {
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_DROP;
    restore_mark(ctx, scratch);
    struct iphdr *ip = (void *)scratch->ip;
    u32 protocol = scratch->protocol, length = length_of(protocol);
    int partial = set_length(ctx, scratch->l3 + sizeof(*ip), protocol, length);
    ip->tot_len = bpf_htons(sizeof(*ip) + length);
    ip->id = bpf_htons(identification_of(scratch->sequence));
    ip->ttl = scratch->hop;
    ip->check = 0;
    ip->check = ~csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
    write_mark(scratch->transport, protocol, scratch->sequence);
    u32 pseudo = 0;
    if (protocol != IPPROTO_ICMP)
        pseudo = pseudo_sum((u8 *)&ip->saddr, 8, protocol, length);
    return finish(ctx, scratch, sizeof(*ip), pseudo, partial);
}

int edit6(CONTEXT *ctx) {
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_DROP;
    restore_mark(ctx, scratch);
    struct ipv6hdr *ip = (void *)scratch->ip;
    u32 protocol = scratch->protocol, length = length_of(protocol);
    int partial = set_length(ctx, scratch->l3 + sizeof(*ip), protocol, length);
    ip->payload_len = bpf_htons(length);
    ip->hop_limit = scratch->hop;
    write_mark(scratch->transport, protocol, scratch->sequence);
    u32 pseudo = pseudo_sum((u8 *)&ip->saddr, 32, protocol, length);
    return finish(ctx, scratch, sizeof(*ip), pseudo, partial);
}
