/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A probe has the transport header of its packet, without options and data. A whole probe is a
 * valid packet of its flow, so address translation and stateful firewalls pass it. A guarded one is
 * harmless to the destination as GUARD says.
 *
 * Every receiver drops what GUARD_DISCARD makes: TCP without ACK (RFC 9293, section 3.10.7.4), and
 * UDP that claims more bytes than there are. UDP does so with GUARD_CHECKSUM, too: a receiver that
 * trusts its interface would give the datagram to the application. TCP's header keeps its true
 * length: drivers pass it to hardware that completes checksums, which may not survive a wrong one.
 * Of an ICMP echo, every guard makes the checksum wrong.
 */
#ifndef GUARD_H
#define GUARD_H

#include "scratch.h"
#include "tcp_flags.h"

#define ECHO_BALANCE 16 /* offset of the word that makes an echo request's checksum right */
#define WRONG 0x5a5a    /* flips bits of a right checksum */

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
    bool partial = bpf_skb_change_tail(ctx, transport + checksum_at(protocol), 0) < 0;
    if (bpf_skb_change_tail(ctx, transport + length, 0))
        return -1;
    return partial;
}

/* The pseudo header's sum; `both` addresses are `size` bytes together. */
static __always_inline u32 pseudo_sum(u8 *both, u32 size, u32 protocol, u32 length) {
    u32 sum = csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)both, size, 0));
    return csum_from32to16(sum + bpf_htons(protocol) + bpf_htons(length));
}

/* Bytes of a probe's transport header and mark: with IPv4, 40 for TCP (S3.14). */
static __always_inline u32 length_of(u32 protocol) {
    return protocol == IPPROTO_UDP ? sizeof(struct udphdr) + sizeof(struct mark) : TRANSPORT_SIZE;
}

/* Write the sequence number to TCP's urgent pointer, else to the mark behind the header. */
static __always_inline void write_mark(u8 *header, u32 protocol, u16 sequence) {
    if (protocol == IPPROTO_TCP) {
        *(__be16 *)(header + 18) = bpf_htons(sequence);
        return;
    }
    *(struct mark *)(header + sizeof(struct udphdr)) = mark_of(sequence);
    *(u32 *)(header + ECHO_BALANCE) = 0;
}

/*
 * Set lengths and checksum of a TCP, UDP or ICMP header with its mark. Returns the checksum that
 * the packet has on the wire.
 */
static __always_inline u16 seal(u8 *header, u32 protocol, u32 pseudo, bool partial, bool whole) {
    u32 length = length_of(protocol), guard = whole ? GUARD_NONE : CONSTANT(GUARD);
    bool wrong = guard == GUARD_CHECKSUM;
    u16 *check;
    if (protocol == IPPROTO_TCP) {
        header[12] = sizeof(struct tcphdr) / 4 << 4;
        header[13] &= guard == GUARD_NONE       ? TCP_ACK | TCP_SYN
                      : guard == GUARD_CHECKSUM ? TCP_ACK
                                                : 0;
        check = (u16 *)(header + 16);
    } else if (protocol == IPPROTO_UDP) {
        u16 claimed = bpf_ntohs(*(__be16 *)(header + 4));
        if (guard == GUARD_NONE)
            claimed = length;
        else if (claimed <= length)
            claimed = length + 8;
        *(__be16 *)(header + 4) = bpf_htons(claimed);
        check = (u16 *)(header + 6);
    } else {
        check = (u16 *)(header + 2);
        wrong = guard != GUARD_NONE;
        if (!partial) {
            /* Load balancers may hash the application's checksum: the payload makes it right. */
            u16 balance =
                ~csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)header, TRANSPORT_SIZE, pseudo));
            *(u16 *)(header + ECHO_BALANCE) = wrong ? balance ^ WRONG : balance;
            return *check;
        }
    }
    *check = 0;
    u16 right = pseudo;
    if (!partial) {
        right = ~csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)header, length, pseudo));
        if (protocol == IPPROTO_UDP && !right)
            right = 0xffff;
    }
    *check = !wrong ? right : right ^ WRONG ? right ^ WRONG : ~WRONG;
    if (!partial)
        return *check;
    return ~csum_from32to16(bpf_csum_diff(0, 0, (__be32 *)header, length, 0));
}

#endif
