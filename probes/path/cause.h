/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The packets that cause probes, and the reasons of those that cannot. */
#ifndef CAUSE_H
#define CAUSE_H

#include "own.h"
#include "path.h"
#include "scratch.h"
#include "tcp_flags.h"
#include "tracer.h"

/* Count a packet that cannot become a probe. */
static __always_inline int refuse(struct scratch *scratch, enum unprobed reason) {
    struct target *target = target_of(scratch->target);
    if (target && scratch->sender == BY_APPLICATION)
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
        u8 flags = transport[13];
        bool opens = scratch->sender == BY_OWN_FLOW && (flags & TCP_CONTROL) == TCP_SYN;
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

/* Whether the packet's flow is traced. */
static __always_inline bool chosen(struct target *target, struct scratch *scratch) {
    bool ports = scratch->protocol == IPPROTO_TCP || scratch->protocol == IPPROTO_UDP;
    u32 of = ports ? *(u32 *)scratch->transport : 0;
    return is_chosen(target, (u64)scratch->protocol << 32 | of);
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

#endif
