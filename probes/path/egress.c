/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * noobprobe, egress: an application's packet to a traced destination causes a probe (S3.4).
 *
 * `path` finds the destination and asks its meter; `send4` and `send6` choose a hop and clone the
 * packet. The clone passes this hook again before it leaves: `edit4` and `edit6` cut it down and
 * set its TTL. A probe has the flow's addresses, ports and IPv6 flow label, and so takes its path.
 *
 * Other tracers' probes, and their clones on the way to their hook, are counted, and cause no
 * probe.
 *
 * MARK, BURST, APPLICATION_FIRST and GUARD (GUARD_*) come from probes/path/probe.py.
 */
#include "path.h"
#include "guard.h"
#include "meter.h"
#include "tracer.h"

#define SEND4 0
#define SEND6 1
#define EDIT4 2
#define EDIT6 3
BPF_PROG_ARRAY(steps, 4);

#define NUMBERS 4     /* tried at most for one probe */
#define NET_XMIT_CN 2 /* linux/netdevice.h: the queue took the packet and dropped another */
#define REMARKED 1    /* in `senders`: the clone arrived without its mark */

/* State that one step passes to the next on the same CPU: no other packet comes in between. */
struct scratch {
    u32 target;
    u32 l3; /* offset of the IP header */
    u32 mark;
    u32 sending; /* a clone that this generation of `path` has not seen yet */
    u64 control; /* the packet's control block where a clone has TRACERS */
    u64 now;     /* arrival of the application's packet */
    u64 sequence;
    u32 hop;
    u32 packet_bytes;
    u8 ip[40];
    u8 transport[TRANSPORT_SIZE];
    u32 protocol;
    u16 whole;
    u16 checksum; /* of the finished probe */
    /* Marks of the last probe of another tracer: one packet may cause a probe of each. */
    u16 foreign_identification;
    u16 foreign_urgent;
};

BPF_PERCPU_ARRAY(scratches, struct scratch, 1);

static __always_inline struct scratch *scratch_of_cpu(void) {
    u32 zero = 0;
    return scratches.lookup(&zero);
}

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

/* Count another tracer's probe to `target`, and keep its marks. */
static __always_inline void count_foreign(CONTEXT *ctx, struct target *target,
                                          struct scratch *scratch, u64 now) {
    __sync_fetch_and_add(&target->foreign, 1);
    target->foreign_ns = now;
    u32 l3 = scratch->l3;
    u16 marks[2] = {};
    bpf_skb_load_bytes(ctx, l3 + offsetof(struct iphdr, id), &marks[0], sizeof(u16));
    u32 size =
        ctx->protocol == bpf_htons(ETH_P_IPV6) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
    bpf_skb_load_bytes(ctx, l3 + size + offsetof(struct tcphdr, urg_ptr), &marks[1], sizeof(u16));
    scratch->foreign_identification = bpf_ntohs(marks[0]);
    scratch->foreign_urgent = bpf_ntohs(marks[1]);
}

int path(CONTEXT *ctx) {
    struct shared *shared = shared_state();
    if (!shared)
        return VERDICT_PASS;
    if (ctx->mark == MARK)
        return take_clone(ctx);
    if (is_remarked_clone(shared))
        return VERDICT_DROP; /* it would be a duplicate of the application's packet */

    bool foreign = is_tracers(ctx);
    struct cursor c = {(void *)(long)ctx->data, (void *)(long)ctx->data_end};
    struct address to;
    __be16 type;
    u32 step;
    if (!skip_link(&c, &type))
        return VERDICT_PASS;
    if (type == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return VERDICT_PASS;
        to = mapped(ip->daddr);
        step = SEND4;
    } else if (type == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return VERDICT_PASS;
        to = *(struct address *)&ip->daddr;
        step = SEND6;
    } else {
        return VERDICT_PASS;
    }
    if (!may_be_traced(shared, &to))
        return VERDICT_PASS;
    u32 *index = addresses.lookup(&to);
    struct target *target = index ? target_of(*index) : 0;
    if (!target)
        return VERDICT_PASS;
    u64 now = bpf_ktime_get_ns();
    struct scratch *scratch = scratch_of_cpu();
    if (!scratch)
        return VERDICT_PASS;
    scratch->l3 = c.at - (void *)(long)ctx->data;
    if (foreign) {
        count_foreign(ctx, target, scratch, now);
        return VERDICT_PASS;
    }
    __sync_fetch_and_add(&target->packets, 1);
    if (target->next_ns > now)
        return VERDICT_PASS;
    scratch->now = now;
    scratch->target = *index;
    scratch->packet_bytes = ctx->len - scratch->l3;
    steps.call(ctx, step);
    return VERDICT_PASS;
}

/* Store the probe in `scratch` in its slot. */
static __always_inline void keep(struct scratch *scratch, u64 state) {
    struct slot *slot = slot_of(scratch->target, scratch->sequence);
    if (!slot)
        return;
    u32 first = *(u32 *)scratch->transport, second = *(u32 *)(scratch->transport + 4);
    u32 protocol = scratch->protocol;
    u8 *ip = scratch->ip;
    publish(slot, SLOT_WRITING);
    if (ip[0] >> 4 == 4) {
        slot->source[0] = *(u32 *)(ip + 12);
        slot->source[1] = 0;
        slot->length = *(u16 *)(ip + 2);
        slot->tos = ip[1];
    } else {
        slot->source[0] = *(u64 *)(ip + 8);
        slot->source[1] = *(u64 *)(ip + 16);
        slot->length = *(u16 *)(ip + 4);
        slot->tos = ip[0] << 4 | ip[1] >> 4;
    }
    slot->ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? first : second;
    slot->word = protocol == IPPROTO_TCP ? second : second & 0xffff;
    slot->packet_bytes = scratch->packet_bytes;
    slot->hop = scratch->hop;
    slot->protocol = protocol;
    slot->whole = scratch->whole;
    slot->checksum = scratch->checksum;
    slot->acknowledgement = *(u32 *)(scratch->transport + 8);
    slot->sent_ns = bpf_ktime_get_ns();
    publish(slot, scratch->sequence << STATE_BITS | state);
}

/* Count a packet that cannot become a probe. */
static __always_inline int refuse(struct scratch *scratch, enum unprobed reason) {
    struct target *target = target_of(scratch->target);
    if (target)
        __sync_fetch_and_add(&target->unprobed[reason], 1);
    return VERDICT_PASS;
}

#define USABLE UNPROBED_REASONS

/* Read the transport header. Returns USABLE, or why such a packet cannot become a probe. */
static __always_inline enum unprobed usable(CONTEXT *ctx, struct scratch *scratch, u32 at,
                                            u8 echo) {
    u32 protocol = scratch->protocol;
    u8 *transport = scratch->transport;
    if (protocol == IPPROTO_TCP) {
        if (bpf_skb_load_bytes(ctx, at, transport, sizeof(struct tcphdr)))
            return UNPROBED_SHORT;
        struct target *target = target_of(scratch->target);
        u8 flags = transport[13];
        bool opens = target && target->syn && (flags & TCP_CONTROL) == TCP_SYN;
        return flags & TCP_CONTROL && !opens ? UNPROBED_OPENING : USABLE;
    }
    if (bpf_skb_load_bytes(ctx, at, transport, sizeof(struct udphdr)))
        return UNPROBED_SHORT;
    return protocol == IPPROTO_UDP || transport[0] == echo ? USABLE : UNPROBED_ICMP;
}

/*
 * Whether the packet in `scratch` is a probe of another host's tracer, or of one on this host that
 * sends by a raw socket.
 */
static __always_inline bool is_marked(CONTEXT *ctx, struct scratch *scratch, u32 at, u8 ttl) {
    if (ttl > HOPS)
        return false;
    u8 *transport = scratch->transport;
    if (scratch->protocol == IPPROTO_TCP)
        return scratch->packet_bytes == at - scratch->l3 + sizeof(struct tcphdr) &&
               !(transport[13] & TCP_URG) && *(u16 *)(transport + 18);
    __be32 magic;
    return !bpf_skb_load_bytes(ctx, at + sizeof(struct udphdr), &magic, sizeof(magic)) &&
           magic == bpf_htonl(MAGIC);
}

/* Whether the flow is traced. */
static __always_inline bool chosen(struct target *target, struct scratch *scratch) {
    if (!target->only[0])
        return true;
    bool ports = scratch->protocol == IPPROTO_TCP || scratch->protocol == IPPROTO_UDP;
    u64 flow = (u64)scratch->protocol << 32 | (ports ? *(u32 *)scratch->transport : 0);
#pragma unroll
    for (int i = 0; i < FLOWS; i++)
        if (target->only[i] == flow)
            return true;
    return false;
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
    marked->mark = MARK;
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

/*
 * Take the number of the next probe. Skip numbers whose marks tell nothing: TCP's urgent pointer 0,
 * and those of another tracer's probe by the same packet.
 */
static __always_inline u64 take_number(struct target *target, struct scratch *scratch) {
    u64 sequence;
#pragma nounroll
    for (int i = 0; i < NUMBERS; i++) {
        sequence = __sync_fetch_and_add(&target->sequence, 1);
        u16 low = sequence;
        if (low && low != scratch->foreign_urgent &&
            identification_of(low) != scratch->foreign_identification)
            break;
        struct slot *slot = slot_of(scratch->target, sequence);
        if (slot)
            publish(slot, sequence << STATE_BITS | SLOT_SKIPPED);
    }
    return sequence;
}

static __always_inline int send(CONTEXT *ctx, struct scratch *scratch, u32 edit) {
    struct target *target = target_of(scratch->target);
    if (!target || !chosen(target, scratch))
        return VERDICT_PASS;
    u64 now = scratch->now;
#pragma unroll
    for (int i = 0; i < BURST; i++) {
        if (!due(target, now))
            break;
        scratch->hop = bounded(next_hop(target));
        if (!scratch->hop)
            break;
        u32 whole = scratch->protocol == IPPROTO_UDP ? target->whole_udp : target->whole;
        scratch->whole = GUARD == GUARD_NONE || whole >> bounded(scratch->hop) & 1;
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
