/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * noobprobe, ingress: routers' answers to probes, matched and, unless PASS_ANSWERS, kept from the
 * host (S3.16). Every other packet is left as it is; the TTL of one from a traced destination says
 * how far away that is (S3.8).
 *
 * A message matches when what it quotes is, field by field, a probe that is in flight: addresses,
 * ports, sequence number, length, and TCP's sequence number. A packet of the application's own,
 * which may have the same IPv4 identification, has not all of these.
 */
#include "path.h"

#define TIME_EXCEEDED 11
#define UNREACHABLE 3
#define FRAGMENTATION_NEEDED 4 /* is about a packet's size, and so never about a probe */
#define TIME_EXCEEDED_V6 3
#define UNREACHABLE_V6 1
#define ICMP_HEADER 8
/* Where an extension begins whose sender does not say (RFC 4884, section 5.5). */
#define OLD_EXTENSION_AT 128
#define WORD 4

#ifdef HOOK_XDP
#define load_bytes bpf_xdp_load_bytes
#else
#define load_bytes bpf_skb_load_bytes
#endif

struct icmp {
    u8 type;
    u8 code;
    u16 checksum;
    u8 quoted_words_v6; /* RFC 4884: in 8 bytes */
    u8 quoted_words;    /* in 4 bytes */
    u16 unused;
};

/* What a message quotes, and who sent it. */
struct answer {
    struct address to; /* the quoted destination */
    u64 source[2];
    u64 responder[2];
    u64 now;
    u32 ports;
    u32 word;
    u32 at;  /* of the ICMP header */
    u32 end; /* of the packet */
    u32 extension_at;
    u16 sequence;
    u16 length;
    u8 protocol;
    u8 ttl;
    u8 quoted_ttl;
    u8 quoted_tos;
    struct icmp icmp;
};

/* Remember how far away a packet's sender is, if it is traced. */
static __always_inline void learn(struct address *from, u32 ttl) {
    u32 *index = addresses.lookup(from);
    struct target *target = index ? target_of(*index) : 0;
    if (target && target->ttl != ttl)
        target->ttl = ttl;
}

/* Take over what there is of an extension, a word at a time: its length varies. */
static __always_inline void take_extension(CONTEXT *ctx, struct answer *answer, struct slot *slot) {
    u32 at = answer->at + ICMP_HEADER;
    at += answer->extension_at ? answer->extension_at : OLD_EXTENSION_AT;
    slot->extension_size = 0;
#pragma unroll
    for (u32 i = 0; i < EXTENSION_SIZE; i += WORD) {
        if (at + i + WORD > answer->end || load_bytes(ctx, at + i, slot->extension + i, WORD))
            break;
        slot->extension_size = i + WORD;
    }
}

/* Whether it is to a probe, whose slot then has the answer. */
static __always_inline bool matched(CONTEXT *ctx, struct answer *answer) {
    u32 *index = addresses.lookup(&answer->to);
    struct target *target = index ? target_of(*index) : 0;
    if (!target)
        return false;
    struct slot *slot = slot_of(*index, answer->sequence);
    if (!slot)
        return false;
    u64 state = *(volatile u64 *)&slot->state;
    if ((state & 0xff) != SLOT_SENT || (u16)(state >> STATE_BITS) != answer->sequence ||
        slot->ports != answer->ports || slot->word != answer->word ||
        slot->protocol != answer->protocol || slot->length != answer->length ||
        slot->source[0] != answer->source[0] || slot->source[1] != answer->source[1]) {
        __sync_fetch_and_add(&target->unmatched, 1);
        return false;
    }
    u64 answering = state - SLOT_SENT + SLOT_ANSWERING;
    if (__sync_val_compare_and_swap(&slot->state, state, answering) != state)
        return false;
    slot->received_ns = answer->now;
    slot->responder[0] = answer->responder[0];
    slot->responder[1] = answer->responder[1];
    slot->ttl = answer->ttl;
    slot->icmp_type = answer->icmp.type;
    slot->icmp_code = answer->icmp.code;
    slot->quoted_ttl = answer->quoted_ttl;
    slot->quoted_tos = answer->quoted_tos;
    take_extension(ctx, answer, slot);
    in_order();
    *(volatile u64 *)&slot->state = answering - SLOT_ANSWERING + SLOT_ANSWERED;
    __sync_fetch_and_add(&target->matched, 1);
    return true;
}

/* Take the quoted transport header, `carried` having the sequence number of IPv6. */
static __always_inline bool quoted(CONTEXT *ctx, struct answer *answer, u32 at, u16 *carried) {
    u32 header[5];
    u32 protocol = answer->protocol;
    if (protocol == IPPROTO_TCP && carried) {
        if (load_bytes(ctx, at, header, sizeof(struct tcphdr)))
            return false;
        *carried = bpf_ntohs(header[4] >> 16);
    } else if (carried) {
        if (load_bytes(ctx, at, header, 12) || (u16)header[2] != bpf_htons(MARK_V6))
            return false;
        *carried = bpf_ntohs(header[2] >> 16);
    } else if (load_bytes(ctx, at, header, 8)) { /* all that IPv4 routers have to quote */
        return false;
    }
    u32 first = header[0], second = header[1];
    answer->ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? first : second;
    answer->word = protocol == IPPROTO_TCP ? second : second & 0xffff;
    return true;
}

static __always_inline int answer4(CONTEXT *ctx, u32 l3, struct answer *answer) {
    struct iphdr ip;
    if (load_bytes(ctx, l3, &ip, sizeof(ip)))
        return VERDICT_PASS;
    struct address from = mapped(ip.saddr);
    learn(&from, ip.ttl);
    if (ip.protocol != IPPROTO_ICMP || ip.frag_off & bpf_htons(IPV4_FRAGMENT))
        return VERDICT_PASS;
    answer->at = l3 + ip.ihl * 4;
    answer->end = l3 + bpf_ntohs(ip.tot_len);
    answer->ttl = ip.ttl;
    answer->responder[0] = ip.saddr;
    if (load_bytes(ctx, answer->at, &answer->icmp, sizeof(struct icmp)))
        return VERDICT_PASS;
    u32 type = answer->icmp.type, code = answer->icmp.code;
    bool exceeded = type == TIME_EXCEEDED && code == 0;
    if (!exceeded && (type != UNREACHABLE || code == FRAGMENTATION_NEEDED))
        return VERDICT_PASS;
    answer->extension_at = answer->icmp.quoted_words * 4;

    struct iphdr quote;
    u32 at = answer->at + ICMP_HEADER;
    if (load_bytes(ctx, at, &quote, sizeof(quote)) || quote.version != 4 || quote.ihl != 5)
        return VERDICT_PASS;
    answer->to = mapped(quote.daddr);
    answer->source[0] = quote.saddr;
    answer->protocol = quote.protocol;
    answer->sequence = bpf_ntohs(quote.id);
    answer->length = quote.tot_len;
    answer->quoted_ttl = quote.ttl;
    answer->quoted_tos = quote.tos;
    if (!quoted(ctx, answer, at + sizeof(quote), 0) || !matched(ctx, answer))
        return VERDICT_PASS;
    return exceeded && !PASS_ANSWERS ? VERDICT_DROP : VERDICT_PASS;
}

static __always_inline int answer6(CONTEXT *ctx, u32 l3, struct answer *answer) {
    struct ipv6hdr ip;
    if (load_bytes(ctx, l3, &ip, sizeof(ip)))
        return VERDICT_PASS;
    struct address from = *(struct address *)&ip.saddr;
    learn(&from, ip.hop_limit);
    if (ip.nexthdr != PROTO_ICMPV6)
        return VERDICT_PASS;
    answer->at = l3 + sizeof(ip);
    answer->end = answer->at + bpf_ntohs(ip.payload_len);
    answer->ttl = ip.hop_limit;
    answer->responder[0] = from.word[0];
    answer->responder[1] = from.word[1];
    if (load_bytes(ctx, answer->at, &answer->icmp, sizeof(struct icmp)))
        return VERDICT_PASS;
    u32 type = answer->icmp.type;
    bool exceeded = type == TIME_EXCEEDED_V6 && answer->icmp.code == 0;
    if (!exceeded && type != UNREACHABLE_V6)
        return VERDICT_PASS;
    answer->extension_at = answer->icmp.quoted_words_v6 * 8;

    struct ipv6hdr quote;
    u32 at = answer->at + ICMP_HEADER;
    if (load_bytes(ctx, at, &quote, sizeof(quote)) || quote.version != 6)
        return VERDICT_PASS;
    answer->to = *(struct address *)&quote.daddr;
    struct address *source = (void *)&quote.saddr;
    answer->source[0] = source->word[0];
    answer->source[1] = source->word[1];
    answer->protocol = quote.nexthdr;
    answer->length = quote.payload_len;
    answer->quoted_ttl = quote.hop_limit;
    answer->quoted_tos = quote.priority << 4 | quote.flow_lbl[0] >> 4;
    if (!quoted(ctx, answer, at + sizeof(quote), &answer->sequence) || !matched(ctx, answer))
        return VERDICT_PASS;
    return exceeded && !PASS_ANSWERS ? VERDICT_DROP : VERDICT_PASS;
}

int path(CONTEXT *ctx) {
    struct answer answer = {.now = bpf_ktime_get_ns()};
    u32 l3 = 0;
    __be16 type;
#if LINK_ETHERNET
    if (load_bytes(ctx, ETH_HLEN - sizeof(type), &type, sizeof(type)))
        return VERDICT_PASS;
    l3 = ETH_HLEN;
#pragma unroll
    for (int i = 0; i < MAX_VLAN_TAGS; i++) {
        if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
            break;
        if (load_bytes(ctx, l3 + sizeof(type), &type, sizeof(type)))
            return VERDICT_PASS;
        l3 += VLAN_TAG_SIZE;
    }
#else
    type = ctx->protocol;
#endif
    if (type == bpf_htons(ETH_P_IP))
        return answer4(ctx, l3, &answer);
    if (type == bpf_htons(ETH_P_IPV6))
        return answer6(ctx, l3, &answer);
    return VERDICT_PASS;
}
