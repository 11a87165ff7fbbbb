/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A probe's transport header: cut to it, and made harmless to the destination as GUARD says.
 *
 * GUARD_DISCARD makes what every receiver drops: TCP without ACK (RFC 9293, section 3.10.7.4), UDP
 * that promises more bytes than there are. TCP's header keeps its true length, as drivers tell it
 * to the hardware that completes a checksum, which may take a wrong one badly.
 */
#ifndef GUARD_H
#define GUARD_H

#include "path.h"
#include "tcp_flags.h"

#define GUARD_NONE 0
#define GUARD_CHECKSUM 1
#define GUARD_DISCARD 2

static __always_inline u32 csum_from32to16(u32 sum) {
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

/*
 * Cut, or lengthen, what is behind the transport header's first byte to `length`. A segment whose
 * checksum is left to the interface can't be cut before its checksum's end: that tells them apart.
 * Negative: not possible. 1: the checksum field has the sum over the pseudo header. 0: it is whole.
 */
static __always_inline int set_length(CONTEXT *ctx, u32 transport, u32 protocol, u32 length) {
    u32 to_checksum = protocol == IPPROTO_TCP ? 16 : protocol == IPPROTO_UDP ? 6 : 2;
    bool partial = bpf_skb_change_tail(ctx, transport + to_checksum, 0) < 0;
    if (bpf_skb_change_tail(ctx, transport + length, 0))
        return -1;
    return partial;
}

/* The sum over the pseudo header; of `both` addresses, `size` bytes. */
static __always_inline u32 pseudo_sum(u8 *both, u32 size, u32 protocol, u32 length) {
    u32 sum = csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)both, size, 0));
    return csum_from32to16(sum + bpf_htons(protocol) + bpf_htons(length));
}

/*
 * Give a TCP, UDP or ICMP header of `length` bytes, the sequence number in it already where it
 * carries that, the lengths and the checksum of GUARD.
 */
static __always_inline void guard(u8 *header, u32 protocol, u32 length, u32 pseudo, bool partial) {
    u32 at;
    if (protocol == IPPROTO_TCP) {
        header[12] = sizeof(struct tcphdr) / 4 << 4;
        header[13] &= GUARD == GUARD_DISCARD ? 0 : TCP_ACK;
        at = 16;
    } else if (protocol == IPPROTO_UDP) {
        u16 claimed = bpf_ntohs(*(__be16 *)(header + 4));
        if (GUARD != GUARD_DISCARD)
            claimed = length;
        else if (claimed <= length)
            claimed = length + 8;
        *(__be16 *)(header + 4) = bpf_htons(claimed);
        at = 6;
    } else {
        at = 2;
    }
    u16 *check = (u16 *)(header + at);
    u16 before = *check;
    *check = 0;
    u16 right = pseudo;
    if (!partial) {
        right = ~csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)header, length, pseudo));
        if (protocol == IPPROTO_UDP && !right)
            right = 0xffff;
    }
    u16 wrong = right ^ 0x5a5a ? right ^ 0x5a5a : 0xa5a5;
    if (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP)
        *check = GUARD == GUARD_CHECKSUM ? wrong : right;
    else /* the application's own, which load balancers may hash, unless it happens to be right */
        *check = GUARD == GUARD_NONE ? right : before == right ? wrong : before;
}

#endif
