/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * noobprobe, ingress: matches routers' answers to probes, and keeps them from the host unless
 * PASS_ANSWERS (S3.16). Other packets stay untouched; the TTL of packets from a traced destination
 * tells its distance (S3.8).
 *
 * A message matches if each quoted field is that of a probe in flight: addresses, ports, sequence
 * number, length, and TCP's sequence number. An application's own packet may share the IPv4
 * identification, but not all of these.
 */
#include "path.h"

/* Offset of an extension whose sender does not state it (RFC 4884, section 5.5). */
#define OLD_EXTENSION_AT 128
#define WORD 4
/* Bytes that hold every header, and an ICMP error up to the end of its extension. */
#define ANSWER_BYTES 2304
/* No verdict yet: the deciding bytes may not be linear. */
#define NOT_ALL_AT_HAND 100

struct icmp {
    u8 type;
    u8 code;
    u16 checksum;
    u8 quoted_words_v6; /* RFC 4884: in 8 bytes */
    u8 quoted_words;    /* in 4 bytes */
    u16 unused;
};

/* A message's quoted fields, and its sender. */
struct answer {
    struct address to; /* the quoted destination */
    u64 source[2];
    u64 responder[2];
    u64 now;
    struct icmp *icmp;
    void *end;        /* of the linear bytes */
    u32 quote_length; /* up to the extension; 0 if its sender does not say */
    s32 length;       /* of the ICMP payload, from the IP header */
    u32 ports;
    u32 word;
    u16 sequence;
    u16 packet_length;
    u8 protocol;
    u8 ttl;
    u8 quoted_ttl;
    u8 quoted_tos;
};

/* Store the distance of a packet's sender if it is traced. */
static __always_inline void learn(struct shared *shared, struct address *from, u32 ttl) {
    if (!may_be_traced(shared, from))
        return;
    u32 *index = addresses.lookup(from);
    struct target *target = index ? target_of(*index) : 0;
    if (target && target->ttl != ttl)
        target->ttl = ttl;
}

/* Copy the part of an extension that the packet has, word by word: its length varies. */
static __always_inline void take_extension(struct answer *answer, struct slot *slot) {
    u64 offset = answer->quote_length ? answer->quote_length : OLD_EXTENSION_AT;
    asm volatile("%0 &= 0x7ff" : "+r"(offset)); /* 255 * 8 at most, which the verifier forgets */
    s32 length = answer->length - (s32)offset;
    u8 *extension = (u8 *)(answer->icmp + 1) + offset;
    slot->extension_size = 0;
#pragma unroll
    for (s32 i = 0; i < EXTENSION_SIZE; i += WORD) {
        if (i + WORD > length || (void *)(extension + i + WORD) > answer->end)
            break;
        *(u32 *)(slot->extension + i) = *(u32 *)(extension + i);
        slot->extension_size = i + WORD;
    }
}

/* Find the probe that was answered, and store the answer in its slot. Returns whether it exists. */
static __always_inline bool matched(struct shared *shared, struct answer *answer) {
    u32 *index = may_be_traced(shared, &answer->to) ? addresses.lookup(&answer->to) : 0;
    struct target *target = index ? target_of(*index) : 0;
    if (!target)
        return false;
    struct slot *slot = slot_of(*index, answer->sequence);
    if (!slot)
        return false;
    u64 state = *(volatile u64 *)&slot->state;
    if ((state & 0xff) != SLOT_SENT || (u16)(state >> STATE_BITS) != answer->sequence ||
        slot->ports != answer->ports || slot->word != answer->word ||
        slot->protocol != answer->protocol || slot->length != answer->packet_length ||
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
    slot->icmp_type = answer->icmp->type;
    slot->icmp_code = answer->icmp->code;
    slot->quoted_ttl = answer->quoted_ttl;
    slot->quoted_tos = answer->quoted_tos;
    slot->altered = 0;
    take_extension(answer, slot);
    publish(slot, answering - SLOT_ANSWERING + SLOT_ANSWERED);
    __sync_fetch_and_add(&target->matched, 1);
    return true;
}

/* Read the quoted transport header at `header`, and IPv6's sequence number into `carried`. */
static __always_inline bool quoted(struct answer *answer, u32 *header, u16 *carried) {
    u32 protocol = answer->protocol;
    if ((void *)(header + 2) > answer->end) /* IPv4 routers need not quote more */
        return false;
    if (carried && protocol == IPPROTO_TCP) {
        if ((void *)(header + 5) > answer->end)
            return false;
        *carried = bpf_ntohs(header[4] >> 16);
    } else if (carried) {
        if ((void *)(header + 3) > answer->end || (u16)header[2] != bpf_htons(MARK_V6))
            return false;
        *carried = bpf_ntohs(header[2] >> 16);
    }
    u32 first = header[0], second = header[1];
    answer->ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? first : second;
    answer->word = protocol == IPPROTO_TCP ? second : second & 0xffff;
    return true;
}

static __always_inline int answer4(struct shared *shared, struct cursor *c, bool whole) {
    struct iphdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return NOT_ALL_AT_HAND;
    struct address from = mapped(ip->saddr);
    learn(shared, &from, ip->ttl);
    if (ip->protocol != IPPROTO_ICMP || ip->frag_off & bpf_htons(IPV4_FRAGMENT))
        return VERDICT_PASS;
    u32 header_length = ip->ihl * 4;
    struct icmp *icmp = c->at + header_length;
    if ((void *)(icmp + 1) > c->end)
        return NOT_ALL_AT_HAND;
    bool exceeded = icmp->type == ICMP_TIME_EXCEEDED && icmp->code == ICMP_EXC_TTL;
    /* ICMP_FRAG_NEEDED is about a packet's size, and so never about a probe. */
    if (!exceeded && (icmp->type != ICMP_DEST_UNREACH || icmp->code == ICMP_FRAG_NEEDED))
        return VERDICT_PASS;
    if (!whole)
        return NOT_ALL_AT_HAND;

    struct iphdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > c->end || quote->version != 4 || quote->ihl != 5)
        return VERDICT_PASS;
    struct answer answer = {
        .to = mapped(quote->daddr),
        .source = {quote->saddr},
        .responder = {ip->saddr},
        .now = bpf_ktime_get_ns(),
        .icmp = icmp,
        .end = c->end,
        .quote_length = icmp->quoted_words * 4,
        .length = bpf_ntohs(ip->tot_len) - header_length - sizeof(*icmp),
        .sequence = bpf_ntohs(quote->id),
        .packet_length = quote->tot_len,
        .protocol = quote->protocol,
        .ttl = ip->ttl,
        .quoted_ttl = quote->ttl,
        .quoted_tos = quote->tos,
    };
    if (!quoted(&answer, (void *)(quote + 1), 0) || !matched(shared, &answer))
        return VERDICT_PASS;
    return exceeded && !PASS_ANSWERS ? VERDICT_DROP : VERDICT_PASS;
}

static __always_inline int answer6(struct shared *shared, struct cursor *c, bool whole) {
    struct ipv6hdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return NOT_ALL_AT_HAND;
    struct address from = *(struct address *)&ip->saddr;
    learn(shared, &from, ip->hop_limit);
    if (ip->nexthdr != IPPROTO_ICMPV6)
        return VERDICT_PASS;
    struct icmp *icmp = (void *)(ip + 1);
    if ((void *)(icmp + 1) > c->end)
        return NOT_ALL_AT_HAND;
    bool exceeded = icmp->type == ICMPV6_TIME_EXCEED && icmp->code == ICMPV6_EXC_HOPLIMIT;
    if (!exceeded && icmp->type != ICMPV6_DEST_UNREACH)
        return VERDICT_PASS;
    if (!whole)
        return NOT_ALL_AT_HAND;

    struct ipv6hdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > c->end || quote->version != 6)
        return VERDICT_PASS;
    struct address source = *(struct address *)&quote->saddr;
    struct answer answer = {
        .to = *(struct address *)&quote->daddr,
        .source = {source.word[0], source.word[1]},
        .responder = {from.word[0], from.word[1]},
        .now = bpf_ktime_get_ns(),
        .icmp = icmp,
        .end = c->end,
        .quote_length = icmp->quoted_words_v6 * 8,
        .length = bpf_ntohs(ip->payload_len) - sizeof(*icmp),
        .packet_length = quote->payload_len,
        .protocol = quote->nexthdr,
        .ttl = ip->hop_limit,
        .quoted_ttl = quote->hop_limit,
        .quoted_tos = quote->priority << 4 | quote->flow_lbl[0] >> 4,
    };
    if (!quoted(&answer, (void *)(quote + 1), &answer.sequence) || !matched(shared, &answer))
        return VERDICT_PASS;
    return exceeded && !PASS_ANSWERS ? VERDICT_DROP : VERDICT_PASS;
}

static __always_inline int answer_in(CONTEXT *ctx, struct shared *shared) {
    void *data = (void *)(long)ctx->data;
    struct cursor c = {data, (void *)(long)ctx->data_end};
#ifdef HOOK_XDP
    bool whole = true;
#else
    bool whole = c.end - data >= min(ctx->len, (u32)ANSWER_BYTES);
#endif
    __be16 type;
    if (!skip_link(&c, &type))
        return NOT_ALL_AT_HAND;
    if (type == bpf_htons(ETH_P_IP))
        return answer4(shared, &c, whole);
    if (type == bpf_htons(ETH_P_IPV6))
        return answer6(shared, &c, whole);
    return VERDICT_PASS;
}

int path(CONTEXT *ctx) {
    struct shared *shared = shared_state();
    if (!shared)
        return VERDICT_PASS;
#ifdef HOOK_XDP
    int verdict = answer_in(ctx, shared);
#else
    int verdict;
#pragma nounroll
    for (int attempt = 0; attempt < 2; attempt++) {
        verdict = answer_in(ctx, shared);
        if (verdict != NOT_ALL_AT_HAND || bpf_skb_pull_data(ctx, min(ctx->len, (u32)ANSWER_BYTES)))
            break;
    }
#endif
    return verdict == NOT_ALL_AT_HAND ? VERDICT_PASS : verdict;
}
