/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * noobprobe, ingress: matches routers' answers to probes, and keeps them from the host unless
 * PASS_ANSWERS (S3.16). Packets from a traced destination tell that it lives, and its distance
 * (S3.8). Other packets stay untouched.
 *
 * Answers are no traffic of the host: no other probe of this hook gets them, nor answers to the
 * probes of other tracers.
 */
#include "match.h"
#include "round_trip_in.h"

#define DELIVER 0
#define ARRIVE 1
BPF_PROG_ARRAY(steps, 2);

/* Bytes that hold every header, and an ICMP error up to the end of its extension. */
#define ANSWER_BYTES 2304
/* No verdict yet: the deciding bytes may not be linear. */
#define NOT_ALL_AT_HAND 100

#define HEARD_NS 50000000 /* between two writes of `heard_ns`: readers on other CPUs pay for it */

/* A packet of a traced destination, for the step ARRIVE on the same CPU. */
struct heard {
    u32 target;
    u32 l3; /* offset of the IP header */
    u32 ipv4;
};

BPF_PERCPU_ARRAY(heards, struct heard, 1);

static __always_inline struct heard *heard_of_cpu(void) {
    u32 zero = 0;
    return heards.lookup(&zero);
}

/* Store when a packet came from a traced destination, and its distance. Returns whether it did. */
static __always_inline bool learn(struct shared *shared, struct address *from, u32 ttl, u32 l3,
                                  bool ipv4) {
    if (!may_be_traced(shared, from))
        return false;
    u32 *index = addresses.lookup(from);
    struct target *target = index ? target_of(*index) : 0;
    if (!target)
        return false;
    if (target->ttl != ttl)
        target->ttl = ttl;
    u64 now = bpf_ktime_get_coarse_ns();
    if (now > target->heard_ns + HEARD_NS)
        target->heard_ns = now;
    struct heard *heard = heard_of_cpu();
    if (!heard)
        return false;
    *heard = (struct heard){*index, l3, ipv4};
    return true;
}

/* Store the size that a router's link takes: a packet to a traced destination was larger. */
static __always_inline void learn_mtu(struct shared *shared, struct answer *answer, u32 mtu) {
    u32 *index = may_be_traced(shared, &answer->to) ? addresses.lookup(&answer->to) : 0;
    struct target *target = index ? target_of(*index) : 0;
    if (!target)
        return;
    target->mtu_reporter[0] = answer->responder[0];
    target->mtu_reporter[1] = answer->responder[1];
    target->mtu = mtu;
    target->mtu_ns = answer->now;
}

/* The verdict on a message. Answers that the host gets pass all other probes of this hook. */
static __always_inline int verdict_on(CONTEXT *ctx, enum owner owner, bool drop) {
    if (owner == OF_HOST)
        return VERDICT_PASS;
    if (owner == OF_PROBE && drop)
        return VERDICT_DROP;
    steps.call(ctx, DELIVER);
    return VERDICT_PASS;
}

static __always_inline int answer4(CONTEXT *ctx, struct shared *shared, struct cursor *c,
                                   bool whole) {
    struct iphdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return NOT_ALL_AT_HAND;
    struct address from = mapped(ip->saddr);
    if (ip->protocol != IPPROTO_ICMP || ip->frag_off & bpf_htons(IPV4_FRAGMENT))
        return VERDICT_PASS;
    u32 header_length = ip->ihl * 4;
    struct icmp *icmp = c->at + header_length;
    if ((void *)(icmp + 1) > c->end)
        return NOT_ALL_AT_HAND;
    bool exceeded = icmp->type == ICMP_TIME_EXCEEDED && icmp->code == ICMP_EXC_TTL;
    bool reply = icmp->type == ICMP_ECHOREPLY;
    if (!exceeded && !reply && icmp->type != ICMP_DEST_UNREACH)
        return VERDICT_PASS;
    if (!whole)
        return NOT_ALL_AT_HAND;

    u32 bytes = bpf_ntohs(ip->tot_len);
    struct answer answer = {
        .to = from,
        .responder = {ip->saddr},
        .now = bpf_ktime_get_ns(),
        .icmp = icmp,
        .end = c->end,
        .bytes = bytes,
        .version = 4,
        .ttl = ip->ttl,
    };
    if (reply)
        return verdict_on(ctx, take_reply(shared, &answer), true);
    struct iphdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > c->end || quote->version != 4 || quote->ihl != 5)
        return VERDICT_PASS;
    answer.to = mapped(quote->daddr);
    if (icmp->type == ICMP_DEST_UNREACH && icmp->code == ICMP_FRAG_NEEDED) {
        /* This is about a packet's size, and so never about a probe. */
        learn_mtu(shared, &answer, bpf_ntohs(icmp->unused));
        return VERDICT_PASS;
    }
    answer.source[0] = quote->saddr;
    answer.quote_length = icmp->quoted_words * 4;
    answer.length = bytes - header_length - sizeof(*icmp);
    answer.identification = bpf_ntohs(quote->id);
    answer.packet_length = quote->tot_len;
    answer.protocol = quote->protocol;
    answer.quoted_ttl = quote->ttl;
    answer.quoted_tos = quote->tos;
    enum owner owner = take_error(shared, &answer, quote + 1);
    return verdict_on(ctx, owner, exceeded && !PASS_ANSWERS);
}

static __always_inline int answer6(CONTEXT *ctx, struct shared *shared, struct cursor *c,
                                   bool whole) {
    struct ipv6hdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return NOT_ALL_AT_HAND;
    struct address from = *(struct address *)&ip->saddr;
    if (ip->nexthdr != IPPROTO_ICMPV6)
        return VERDICT_PASS;
    struct icmp *icmp = (void *)(ip + 1);
    if ((void *)(icmp + 1) > c->end)
        return NOT_ALL_AT_HAND;
    bool exceeded = icmp->type == ICMPV6_TIME_EXCEED && icmp->code == ICMPV6_EXC_HOPLIMIT;
    bool reply = icmp->type == ICMPV6_ECHO_REPLY, too_big = icmp->type == ICMPV6_PKT_TOOBIG;
    if (!exceeded && !reply && !too_big && icmp->type != ICMPV6_DEST_UNREACH)
        return VERDICT_PASS;
    if (!whole)
        return NOT_ALL_AT_HAND;

    u32 payload = bpf_ntohs(ip->payload_len);
    struct answer answer = {
        .to = from,
        .responder = {from.word[0], from.word[1]},
        .now = bpf_ktime_get_ns(),
        .icmp = icmp,
        .end = c->end,
        .bytes = sizeof(*ip) + payload,
        .version = 6,
        .ttl = ip->hop_limit,
    };
    if (reply)
        return verdict_on(ctx, take_reply(shared, &answer), true);
    struct ipv6hdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > c->end || quote->version != 6)
        return VERDICT_PASS;
    answer.to = *(struct address *)&quote->daddr;
    if (too_big) {
        learn_mtu(shared, &answer, bpf_ntohl(*(__be32 *)&icmp->quoted_words_v6));
        return VERDICT_PASS;
    }
    struct address source = *(struct address *)&quote->saddr;
    answer.source[0] = source.word[0];
    answer.source[1] = source.word[1];
    answer.quote_length = icmp->quoted_words_v6 * 8;
    answer.length = payload - sizeof(*icmp);
    answer.packet_length = quote->payload_len;
    answer.protocol = quote->nexthdr;
    answer.quoted_ttl = quote->hop_limit;
    answer.quoted_tos = quote->priority << 4 | quote->flow_lbl[0] >> 4;
    enum owner owner = take_error(shared, &answer, quote + 1);
    return verdict_on(ctx, owner, exceeded && !PASS_ANSWERS);
}

static __always_inline int answer_in(CONTEXT *ctx, struct shared *shared, u32 *heard) {
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
    bool ipv4 = type == bpf_htons(ETH_P_IP);
    struct address from;
    u32 ttl;
    if (ipv4) {
        struct iphdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return NOT_ALL_AT_HAND;
        from = mapped(ip->saddr);
        ttl = ip->ttl;
    } else if (type == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return NOT_ALL_AT_HAND;
        from = *(struct address *)&ip->saddr;
        ttl = ip->hop_limit;
    } else {
        return VERDICT_PASS;
    }
    /* Or the verifier would follow both cases through all that comes. */
    *heard = forget(learn(shared, &from, ttl, c.at - data, ipv4));
    return ipv4 ? answer4(ctx, shared, &c, whole) : answer6(ctx, shared, &c, whole);
}

int path(CONTEXT *ctx) {
    struct shared *shared = shared_state();
    if (!shared)
        return VERDICT_PASS;
    u32 heard = 0;
#ifdef HOOK_XDP
    int verdict = answer_in(ctx, shared, &heard);
#else
    int verdict;
#pragma nounroll
    for (int attempt = 0; attempt < 2; attempt++) {
        verdict = answer_in(ctx, shared, &heard);
        if (verdict != NOT_ALL_AT_HAND || bpf_skb_pull_data(ctx, min(ctx->len, (u32)ANSWER_BYTES)))
            break;
    }
#endif
    if (verdict == VERDICT_DROP)
        return VERDICT_DROP;
    if (heard)
        steps.call(ctx, ARRIVE);
    return VERDICT_PASS;
}

/* Whether a packet of a traced destination answers the flow that the tracer sends there. */
static __always_inline bool answers_own(CONTEXT *ctx, struct heard *heard) {
    struct target *target = target_of(heard->target);
    struct passage passage = {};
    u16 ports[2];
    if (!target || !target->own || !read_ip(ctx, heard->l3, heard->ipv4, false, &passage) ||
        target->own >> 32 != passage.protocol || !read(ctx, passage.at, ports, sizeof(ports)))
        return false;
    return (u32)target->own == (ports[1] | (u32)ports[0] << 16);
}

/* Take a packet of a traced destination, which may answer a timed packet. */
int arrive(CONTEXT *ctx) {
    struct heard *heard = heard_of_cpu();
    if (!heard)
        return VERDICT_PASS;
    if (answers_own(ctx, heard))
        steps.call(ctx, DELIVER);
    take_answer(ctx, heard->target, heard->l3, heard->ipv4);
    return VERDICT_PASS;
}

/* Pass a packet to the host: loaded without a next probe. */
int deliver(CONTEXT *ctx) {
    return VERDICT_PASS;
}
