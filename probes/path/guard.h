/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A probe's transport header: cut short, and harmless to the destination as GUARD says.
 *
 * Every receiver drops what GUARD_DISCARD makes: TCP without ACK (RFC 9293, section 3.10.7.4), UDP
 * that claims more bytes than there are. TCP's header keeps its true length: drivers pass it to
 * hardware that completes checksums, which may not survive a wrong one.
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
 * Cut or lengthen the transport header to `length`. The kernel refuses to cut a segment with a
 * partial checksum before the end of that checksum: the first call finds out. Returns -1 on
 * failure, 1 if the checksum field has only the pseudo header's sum, 0 if it is complete.
 */
static __always_inline int set_length(CONTEXT *ctx, u32 transport, u32 protocol, u32 length) {
    u32 to_checksum = protocol == IPPROTO_TCP ? 16 : protocol == IPPROTO_UDP ? 6 : 2;
    bool partial = bpf_skb_change_tail(ctx, transport + to_checksum, 0) < 0;
    if (bpf_skb_change_tail(ctx, transport + length, 0))
        return -1;
    return partial;
}

/* The pseudo header's sum; `both` addresses are `size` bytes together. */
static __always_inline u32 pseudo_sum(u8 *both, u32 size, u32 protocol, u32 length) {
    u32 sum = csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)both, size, 0));
    return csum_from32to16(sum + bpf_htons(protocol) + bpf_htons(length));
}

/*
 * Set lengths and checksum of a TCP, UDP or ICMP header of `length` bytes as GUARD says. The header
 * contains the sequence number already.
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
    else /* load balancers may hash the application's own; replace it only if it is right */
        *check = GUARD == GUARD_NONE ? right : before == right ? wrong : before;
}

#endif
